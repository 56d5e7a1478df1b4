import java.util.ArrayList;
import java.util.List;
import java.util.Map;
import java.util.TreeMap;
import java.util.concurrent.ExecutionException;
import java.util.concurrent.Future;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.serialization.StringSerializer;

/** One batch of a hundred records to a compacted topic, every tenth without a key: what each record's sender hears. */
public class RecordErrors {
    public static void main(String[] arguments) throws Exception {
        Map<String, Object> config = Map.of(
            "bootstrap.servers", arguments[0], "batch.size", 1_000_000, "linger.ms", 60_000);
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        Map<String, List<Integer>> heard = new TreeMap<>();
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            for (int number = 0; number < 100; number++) {
                String key = number % 10 == 3 ? null : "key" + number;
                sent.add(producer.send(new ProducerRecord<>(arguments[1], 0, key, "value")));
            }
            producer.flush();
            for (int number = 0; number < sent.size(); number++) {
                try {
                    sent.get(number).get();
                    heard.computeIfAbsent("stored", any -> new ArrayList<>()).add(number);
                } catch (ExecutionException error) {
                    Throwable cause = error.getCause();
                    String text = cause.getClass().getSimpleName() + ": " + cause.getMessage();
                    heard.computeIfAbsent(text, any -> new ArrayList<>()).add(number);
                }
            }
        }
        heard.forEach((what, numbers) -> System.out.println(numbers.size() + " " + what + " " + numbers));
    }
}
