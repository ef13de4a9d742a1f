import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.charset.StandardCharsets;
import java.util.Base64;
import javax.security.auth.x500.X500Principal;

import org.apache.kafka.common.security.ssl.SslPrincipalMapper;

/**
 * Whom Kafka takes certificates for. Each line of the input is an answer's question, its parts in
 * Base64: a distinguished name in DER, or rules and a subject. An answer is the name in Base64, or
 * `refused` or `nobody`.
 */
public final class Principals {
    private Principals() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] parts = line.split(" ", -1);
            System.out.println(
                parts.length == 1
                    ? encoded(new X500Principal(Base64.getDecoder().decode(parts[0])).getName())
                    : mapped(decoded(parts[0]), decoded(parts[1])));
        }
    }

    private static String mapped(String rules, String subject) {
        SslPrincipalMapper mapper;
        try {
            mapper = SslPrincipalMapper.fromRules(rules);
        } catch (RuntimeException error) {
            return "refused";
        }
        try {
            return encoded(mapper.getName(subject));
        } catch (Exception error) {
            return "nobody";
        }
    }

    private static String decoded(String text) {
        return new String(Base64.getDecoder().decode(text), StandardCharsets.UTF_8);
    }

    private static String encoded(String text) {
        return "=" + Base64.getEncoder().encodeToString(text.getBytes(StandardCharsets.UTF_8));
    }
}
