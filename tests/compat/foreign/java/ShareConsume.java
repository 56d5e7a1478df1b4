import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.KafkaShareConsumer;
import org.apache.kafka.common.serialization.StringDeserializer;

/** A share consumer (KIP-932) that polls until it has a record; what it fails with is printed. */
public class ShareConsume {
    public static void main(String[] arguments) {
        Properties properties = new Properties();
        properties.put("bootstrap.servers", arguments[0]);
        properties.put("group.id", arguments[1] + "-share");
        try (KafkaShareConsumer<String, String> consumer = new KafkaShareConsumer<>(
                properties, new StringDeserializer(), new StringDeserializer())) {
            consumer.subscribe(List.of(arguments[1]));
            while (consumer.poll(Duration.ofSeconds(1)).isEmpty()) {
            }
            System.out.println("a record");
        } catch (RuntimeException error) {
            System.out.println(error.getClass().getSimpleName() + ": " + error.getMessage());
        }
    }
}
