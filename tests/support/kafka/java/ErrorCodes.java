import org.apache.kafka.common.protocol.Errors;

/** Kafka's error codes, one a line: name and number. */
public final class ErrorCodes {
    private ErrorCodes() {
    }

    public static void main(String[] args) {
        for (Errors error : Errors.values()) {
            System.out.println(error.name() + " " + error.code());
        }
    }
}
