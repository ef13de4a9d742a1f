import java.io.BufferedReader;
import java.io.InputStreamReader;
import java.nio.ByteBuffer;
import java.nio.charset.StandardCharsets;
import java.util.HexFormat;

import org.apache.kafka.common.message.ApiMessageType;
import org.apache.kafka.common.protocol.ApiMessage;

import org.apache.kafka.common.protocol.ByteBufferAccessor;
import org.apache.kafka.common.protocol.ObjectSerializationCache;

/**
 * What Kafka's generated classes read and write. Each line of the input is `request` or `response`,
 * API key, version and the bytes in hexadecimal; it is answered with the bytes that the class writes
 * of what it read, or with `!` and the exception.
 */
public final class Messages {
    private Messages() {
    }

    public static void main(String[] args) throws Exception {
        BufferedReader input =
            new BufferedReader(new InputStreamReader(System.in, StandardCharsets.US_ASCII));
        StringBuilder answers = new StringBuilder();
        for (String line = input.readLine(); line != null; line = input.readLine()) {
            String[] parts = line.split(" ", -1);
            answers.append(answer(parts)).append('\n');
        }
        System.out.print(answers);
    }

    private static String answer(String[] parts) {
        short version = Short.parseShort(parts[2]);
        ApiMessageType type = ApiMessageType.fromApiKey(Short.parseShort(parts[1]));
        ApiMessage message = parts[0].equals("request") ? type.newRequest() : type.newResponse();
        ByteBuffer bytes = ByteBuffer.wrap(HexFormat.of().parseHex(parts[3]));
        try {
            message.read(new ByteBufferAccessor(bytes), version);
            if (bytes.hasRemaining()) {
                return "!" + bytes.remaining() + " bytes are left";
            }
            ObjectSerializationCache cache = new ObjectSerializationCache();
            ByteBuffer written = ByteBuffer.allocate(message.size(cache, version));
            message.write(new ByteBufferAccessor(written), cache, version);
            return HexFormat.of().formatHex(written.array());
        } catch (RuntimeException error) {
            return "!" + error;
        }
    }
}
