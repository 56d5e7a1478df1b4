// A transactional producer whose requests arrive in bursts. In each round a partition joins the transaction in the
// first of five requests, and the other four go to a partition that is in it already. Whoever runs this stops the
// broker when it reads "ready", answers with a line, and lets the broker go on when it reads "sent": so the broker
// finds all five at once. Prints at the end how many batches failed, how many of the bursts were sent again, and how
// many transactions committed. (The first request of a transaction may be sent again: the one before is still ending.)
import java.io.BufferedReader;
import java.io.InputStreamReader;
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

public class PipelinedTransactions {
    static final int IN_FLIGHT = 5;
    static final String LARGE = "larger than a batch ".repeat(10);

    public static void main(String[] arguments) throws Exception {
        String bootstrap = arguments[0], topic = arguments[1];
        int partitions = Integer.parseInt(arguments[2]), transactions = Integer.parseInt(arguments[3]);
        Map<String, Object> config = Map.of(
            "bootstrap.servers", bootstrap,
            "transactional.id", topic + "-tx",
            "max.in.flight.requests.per.connection", IN_FLIGHT,
            "batch.size", 100,
            "linger.ms", 60_000);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        Map<String, Integer> failures = new TreeMap<>();
        int committed = 0, retries = 0;
        try (KafkaProducer<String, String> producer =
                new KafkaProducer<>(config, new StringSerializer(), new StringSerializer())) {
            producer.initTransactions();
            for (int transaction = 0; transaction < transactions; transaction++) {
                producer.beginTransaction();
                try {
                    Future<RecordMetadata> first = producer.send(new ProducerRecord<>(topic, 0, null, LARGE));
                    producer.flush();
                    first.get();
                    for (int partition = 1; partition < partitions; partition++) {
                        int before = metric(producer, "record-retry-total");
                        System.out.println("ready");
                        input.readLine();
                        List<Future<RecordMetadata>> sent = burst(producer, topic, partition);
                        System.out.println("sent");
                        producer.flush();
                        retries += metric(producer, "record-retry-total") - before;
                        for (Future<RecordMetadata> one : sent) {
                            one.get();
                        }
                    }
                    producer.commitTransaction();
                    committed++;
                } catch (ExecutionException error) {
                    failures.merge(error.getCause().getClass().getSimpleName(), 1, Integer::sum);
                    producer.abortTransaction();
                }
            }
            System.out.println("errors " + metric(producer, "record-error-total"));
        }
        System.out.println("retries " + retries);
        System.out.println("failures " + failures);
        System.out.println("committed " + committed);
    }

    static List<Future<RecordMetadata>> burst(
            KafkaProducer<String, String> producer, String topic, int joining) throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        // This batch is not full; it leaves together with the first of the others. Each of those is full when the
        // next one comes.
        sent.add(producer.send(new ProducerRecord<>(topic, joining, null, "joins")));
        for (int request = 0; request <= IN_FLIGHT; request++) {
            sent.add(producer.send(new ProducerRecord<>(topic, 0, null, LARGE)));
        }
        long end = System.nanoTime() + 30_000_000_000L;
        while (metric(producer, "requests-in-flight") < IN_FLIGHT) {
            if (System.nanoTime() > end) {
                throw new IllegalStateException("the requests were not sent");
            }
            Thread.sleep(1);
        }
        return sent;
    }

    static int metric(KafkaProducer<String, String> producer, String wanted) {
        return producer.metrics().entrySet().stream()
            .filter(one -> one.getKey().name().equals(wanted) && one.getKey().group().equals("producer-metrics"))
            .mapToInt(one -> ((Number) one.getValue().metricValue()).intValue())
            .sum();
    }
}
