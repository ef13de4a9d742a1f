import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.net.InetAddress;
import java.nio.charset.StandardCharsets;
import java.util.HashMap;
import java.util.List;
import java.util.Map;

import org.apache.kafka.common.Uuid;
import org.apache.kafka.common.acl.AclOperation;
import org.apache.kafka.common.acl.AclPermissionType;
import org.apache.kafka.common.metrics.Metrics;
import org.apache.kafka.common.metrics.internals.PluginMetricsImpl;
import org.apache.kafka.common.resource.PatternType;
import org.apache.kafka.common.resource.ResourcePattern;
import org.apache.kafka.common.resource.ResourceType;
import org.apache.kafka.common.security.auth.KafkaPrincipal;
import org.apache.kafka.common.security.auth.SecurityProtocol;
import org.apache.kafka.metadata.authorizer.StandardAcl;
import org.apache.kafka.metadata.authorizer.StandardAuthorizer;
import org.apache.kafka.server.authorizer.Action;
import org.apache.kafka.server.authorizer.AuthorizableRequestContext;

/**
 * What Kafka's StandardAuthorizer decides. Lines of the input, parts between blanks: `set EVERYONE`
 * begins a set of ACLs (`true`: whatever none is about is everybody's), `acl TYPE PATTERN NAME
 * PRINCIPAL HOST OPERATION PERMISSION` adds one, the numbers being those of the protocol, and `ask
 * PRINCIPAL HOST OPERATION TYPE NAME` is answered with ALLOWED or DENIED, as `any PRINCIPAL HOST
 * OPERATION TYPE` is, about any resource of the type.
 */
public final class Decisions {
    private Decisions() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        StringBuilder answers = new StringBuilder();
        Map<Uuid, StandardAcl> acls = new HashMap<>();
        Map<Boolean, StandardAuthorizer> authorizers =
            Map.of(true, authorizer(true), false, authorizer(false));
        StandardAuthorizer authorizer = null;
        boolean loaded = false;
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] part = line.split(" ");
            switch (part[0]) {
                case "set":
                    acls = new HashMap<>();
                    authorizer = authorizers.get(Boolean.parseBoolean(part[1]));
                    loaded = false;
                    break;
                case "acl":
                    acls.put(Uuid.randomUuid(), acl(part));
                    break;
                default:
                    if (!loaded) {
                        authorizer.loadSnapshot(acls);
                        loaded = true;
                    }
                    answers.append(decision(authorizer, part)).append('\n');
            }
        }
        System.out.print(answers);
    }

    private static StandardAuthorizer authorizer(boolean everyone) {
        StandardAuthorizer authorizer = new StandardAuthorizer();
        authorizer.configure(
            Map.of("allow.everyone.if.no.acl.found", Boolean.toString(everyone)));
        authorizer.withPluginMetrics(new PluginMetricsImpl(new Metrics(), Map.of()));
        authorizer.completeInitialLoad();
        return authorizer;
    }

    private static StandardAcl acl(String[] part) {
        return new StandardAcl(
            ResourceType.fromCode(code(part[1])),
            part[3],
            PatternType.fromCode(code(part[2])),
            part[4],
            part[5],
            AclOperation.fromCode(code(part[6])),
            AclPermissionType.fromCode(code(part[7])));
    }

    private static String decision(StandardAuthorizer authorizer, String[] part) throws Exception {
        String[] principal = part[1].split(":", 2);
        AclOperation operation = AclOperation.fromCode(code(part[3]));
        ResourceType type = ResourceType.fromCode(code(part[4]));
        Client client = new Client(
            new KafkaPrincipal(principal[0], principal[1]), InetAddress.getByName(part[2]));
        if (part[0].equals("any")) {
            return authorizer.authorizeByResourceType(client, operation, type).name();
        }
        Action action = new Action(
            operation, new ResourcePattern(type, part[5], PatternType.LITERAL), 1, false, false);
        return authorizer.authorize(client, List.of(action)).get(0).name();
    }

    private static byte code(String text) {
        return Byte.parseByte(text);
    }

    private record Client(KafkaPrincipal principal, InetAddress clientAddress)
        implements AuthorizableRequestContext {

        @Override
        public String listenerName() {
            return "CLIENTS";
        }

        @Override
        public SecurityProtocol securityProtocol() {
            return SecurityProtocol.SASL_SSL;
        }

        @Override
        public int requestType() {
            return 0;
        }

        @Override
        public int requestVersion() {
            return 0;
        }

        @Override
        public String clientId() {
            return "";
        }

        @Override
        public int correlationId() {
            return 0;
        }
    }
}
