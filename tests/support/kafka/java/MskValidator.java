import java.net.URI;
import java.net.URLDecoder;
import java.net.URLEncoder;
import java.nio.charset.StandardCharsets;
import java.security.MessageDigest;
import java.time.Instant;
import java.time.ZoneOffset;
import java.time.format.DateTimeFormatter;
import java.util.Base64;
import java.util.HexFormat;
import java.util.List;
import java.util.Map;
import java.util.Set;
import java.util.TreeMap;

import javax.crypto.Mac;
import javax.crypto.spec.SecretKeySpec;
import javax.security.auth.callback.Callback;
import javax.security.auth.callback.UnsupportedCallbackException;
import javax.security.auth.login.AppConfigurationEntry;

import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerValidatorCallback;

/**
 * Brokers of Amazon MSK with IAM: a token is a URL in Base64 that is signed for
 * kafka-cluster:Connect, as AWS documents Signature Version 4 and its signers for MSK make it. The
 * secret key and the session token, PRINCIPAL+END=, are those of tests/support/cloud.py.
 *
 * Prints one line for each login: the key and the principal.
 */
public final class MskValidator implements AuthenticateCallbackHandler {
    private static final DateTimeFormatter TIME =
        DateTimeFormatter.ofPattern("yyyyMMdd'T'HHmmss'Z'").withZone(ZoneOffset.UTC);
    private static final Set<String> FIELDS = Set.of(
        "Action", "User-Agent", "X-Amz-Algorithm", "X-Amz-Credential", "X-Amz-Date",
        "X-Amz-Expires", "X-Amz-Security-Token", "X-Amz-Signature", "X-Amz-SignedHeaders");
    private static final long SKEW_MS = 300_000;
    private static final long SHORTEST_MS = 60_000;
    private static final String SECRET = "wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY";

    @Override
    public void configure(
            Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> jaas) {
    }

    @Override
    public void handle(Callback[] callbacks) throws UnsupportedCallbackException {
        for (Callback callback : callbacks) {
            if (!(callback instanceof OAuthBearerValidatorCallback)) {
                throw new UnsupportedCallbackException(callback);
            }
            OAuthBearerValidatorCallback one = (OAuthBearerValidatorCallback) callback;
            try {
                one.token(validated(one.tokenValue()));
            } catch (Exception refused) {
                System.out.println("IAM login refused: " + refused);
                one.error("Access denied", null, null);
            }
        }
    }

    private Login validated(String token) throws Exception {
        require(!token.endsWith("="), "padding");
        byte[] bytes = Base64.getUrlDecoder().decode(token);
        URI url = new URI(new String(bytes, StandardCharsets.US_ASCII));
        TreeMap<String, String> fields = new TreeMap<>();
        for (String field : url.getRawQuery().split("&")) {
            String[] parts = field.split("=", 2);
            String value = URLDecoder.decode(parts[1], StandardCharsets.UTF_8);
            require(fields.put(parts[0], value) == null, "twice: " + parts[0]);
        }
        require(fields.keySet().equals(FIELDS), "fields: " + fields.keySet());
        String[] scope = fields.get("X-Amz-Credential").split("/");
        String date = fields.get("X-Amz-Date");
        require(scope.length == 5 && scope[0].startsWith("ASIA"), "credential");
        require(date.startsWith(scope[1]), "the credential's day");
        require(scope[3].equals("kafka-cluster") && scope[4].equals("aws4_request"), "service");
        require(url.getHost().equals("kafka." + scope[2] + ".amazonaws.com"), "host");
        require(url.getScheme().equals("https") && url.getPath().equals("/"), "URL");
        require(fields.get("Action").equals("kafka-cluster:Connect"), "action");
        require(fields.get("X-Amz-Algorithm").equals("AWS4-HMAC-SHA256"), "algorithm");
        require(fields.get("X-Amz-SignedHeaders").equals("host"), "headers");
        long now = System.currentTimeMillis();
        long signed = Instant.from(TIME.parse(date)).toEpochMilli();
        long lives = 1000 * Long.parseLong(fields.get("X-Amz-Expires"));
        require(Math.abs(now - signed) < SKEW_MS, "date");
        require(lives <= 900_000 && signed + lives > now, "expired");
        fields.remove("User-Agent");
        String signature = fields.remove("X-Amz-Signature");
        require(signature.equals(signature(url.getHost(), date, scope, fields)), "signature");
        String[] known = fields.get("X-Amz-Security-Token").split("[+=]");
        long ends = (long) (1000 * Double.parseDouble(known[1]));
        require(ends - now > SHORTEST_MS, "Session too short");
        System.out.println("IAM login: " + scope[0] + " " + known[0]);
        return new Login(token, known[0], signed, Math.min(signed + lives, ends));
    }

    private String signature(
            String host, String date, String[] scope, TreeMap<String, String> fields)
            throws Exception {
        StringBuilder query = new StringBuilder();
        fields.forEach((name, value) -> query.append('&').append(name).append('=').append(
            URLEncoder.encode(value, StandardCharsets.UTF_8).replace("+", "%20")));
        String headers = "host:" + host + "\n\nhost\n";
        String request = "GET\n/\n" + query.substring(1) + "\n" + headers + hash("");
        byte[] key = ("AWS4" + SECRET).getBytes(StandardCharsets.UTF_8);
        for (String part : List.of(scope).subList(1, scope.length)) {
            key = mac(key, part);
        }
        String place = fields.get("X-Amz-Credential").substring(scope[0].length() + 1);
        String[] lines = {"AWS4-HMAC-SHA256", date, place, hash(request)};
        return HexFormat.of().formatHex(mac(key, String.join("\n", lines)));
    }

    private static String hash(String text) throws Exception {
        byte[] bytes = text.getBytes(StandardCharsets.UTF_8);
        return HexFormat.of().formatHex(MessageDigest.getInstance("SHA-256").digest(bytes));
    }

    private static byte[] mac(byte[] key, String text) throws Exception {
        Mac mac = Mac.getInstance("HmacSHA256");
        mac.init(new SecretKeySpec(key, "HmacSHA256"));
        return mac.doFinal(text.getBytes(StandardCharsets.UTF_8));
    }

    private static void require(boolean holds, String what) {
        if (!holds) {
            throw new IllegalArgumentException(what);
        }
    }

    @Override
    public void close() {
    }

    private record Login(String value, String principalName, Long startTimeMs, long lifetimeMs)
            implements OAuthBearerToken {
        @Override
        public Set<String> scope() {
            return Set.of();
        }
    }
}
