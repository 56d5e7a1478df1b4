import java.lang.reflect.Field;
import java.util.HashSet;
import java.util.Set;
import org.apache.kafka.common.config.ConfigDef;
import org.apache.kafka.common.config.ConfigDef.ConfigKey;
import org.apache.kafka.coordinator.group.GroupConfig;
import org.apache.kafka.server.config.AbstractKafkaConfig;
import org.apache.kafka.server.config.QuotaConfig;
import org.apache.kafka.server.metrics.ClientMetricsConfigs;
import org.apache.kafka.storage.internals.log.LogConfig;

/**
 * Prints every config that this release of Apache Kafka knows, one line each, separated by tabs:
 * resource, name, type, default, low, high, choices, and whether a running broker takes a change.
 * Nothing is "-", the empty string is "''". Run by tools/kafka_configs.py.
 */
public final class KafkaConfigs {
    private static final String NOTHING = "-";

    public static void main(String[] arguments) throws Exception {
        Set<String> dynamic = dynamicBrokerConfigs();
        print("broker", AbstractKafkaConfig.CONFIG_DEF, dynamic);
        print("broker", QuotaConfig.brokerQuotaConfigs(), null);
        print("topic", LogConfig.configDefCopy(), null);
        print("group", GroupConfig.configDef(), null);
        print("client-metrics", ClientMetricsConfigs.configDef(), null);
    }

    private static Set<String> dynamicBrokerConfigs() {
        scala.collection.Iterator<String> names =
            kafka.server.DynamicBrokerConfig$.MODULE$.AllDynamicConfigs().iterator();
        Set<String> found = new HashSet<>();
        while (names.hasNext()) {
            found.add(names.next());
        }
        return found;
    }

    private static void print(String resource, ConfigDef definitions, Set<String> dynamic) throws Exception {
        for (ConfigKey key : definitions.configKeys().values()) {
            if (key.internalConfig) {
                continue;
            }
            String low = NOTHING;
            String high = NOTHING;
            String choices = NOTHING;
            if (key.validator instanceof ConfigDef.Range) {
                low = text(field(key.validator, "min"));
                high = text(field(key.validator, "max"));
            } else if (key.validator instanceof ConfigDef.ValidString
                || key.validator instanceof ConfigDef.ValidList) {
                String list = key.validator.toString();
                choices = list.substring(1, list.length() - 1).replace(" ", "");
            }
            String taken = dynamic == null || dynamic.contains(key.name) ? "dynamic" : "fixed";
            String[] row = {resource, key.name, key.type.name(), defaultOf(key), low, high, choices, taken};
            System.out.println(String.join("\t", row));
        }
    }

    private static String defaultOf(ConfigKey key) {
        if (!key.hasDefault() || key.defaultValue == null) {
            return NOTHING;
        }
        String value = ConfigDef.convertToString(key.defaultValue, key.type);
        return value.isEmpty() ? "''" : value;
    }

    private static Object field(Object of, String name) throws Exception {
        Field field = of.getClass().getDeclaredField(name);
        field.setAccessible(true);
        return field.get(of);
    }

    private static String text(Object value) {
        return value == null ? NOTHING : value.toString();
    }
}
