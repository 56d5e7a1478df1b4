// Runs several of Apache Kafka's tools in one JVM, since starting one takes longer than most tools do. Each line of
// the input is a main class and its arguments, with tabs between them. After what each printed comes a line with
// "==== " and its exit code.
import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.lang.reflect.InvocationTargetException;
import java.util.Arrays;
import org.apache.kafka.common.utils.Exit;

public class SeveralTools {
    static class Ended extends RuntimeException {
    }

    static Integer code;
    // Of the first call of exit: tools that catch everything catch Ended too, and call it again.

    public static void main(String[] arguments) throws Exception {
        Exit.setExitProcedure((given, message) -> {
            if (code == null) {
                code = given;
            }
            throw new Ended();
        });
        System.setErr(System.out);
        BufferedReader input = new BufferedReader(new InputStreamReader(System.in));
        for (String line; (line = input.readLine()) != null; ) {
            String[] parts = line.split("\t");
            code = null;
            try {
                Class.forName(parts[0]).getMethod("main", String[].class)
                    .invoke(null, (Object) Arrays.copyOfRange(parts, 1, parts.length));
            } catch (InvocationTargetException error) {
                if (code == null) {
                    error.getCause().printStackTrace();
                    code = 1;
                }
            }
            System.out.println("==== " + (code == null ? 0 : code));
        }
        System.exit(0);
    }
}
