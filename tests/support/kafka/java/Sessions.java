import java.io.FileReader;
import java.nio.file.Files;
import java.nio.file.Path;
import java.nio.file.Paths;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Arrays;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import java.util.concurrent.atomic.AtomicReference;

import javax.security.auth.callback.Callback;
import javax.security.auth.callback.UnsupportedCallbackException;
import javax.security.auth.login.AppConfigurationEntry;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.security.auth.AuthenticateCallbackHandler;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerToken;
import org.apache.kafka.common.security.oauthbearer.OAuthBearerTokenCallback;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Several logins side by side, each with an idempotent producer, a transactional one and a group of
 * one, at an easy pace: what tests/support/kafka/sasl_clients.py says of all such programs.
 *
 * Runs with the clients of Kafka 2.1 and later. Arguments: bootstrap servers, a file (they go on
 * until it is there), and a properties file for each login, whose client.id is also the name of
 * its topic, group and transactional id. One line for each login at the end: its name and the
 * records of each partition. Exit status 1 with the first exception on stderr.
 */
public final class Sessions {
    private static final int PLAIN_PARTITIONS = 2;
    private static final int ROUND_MS = 100;
    private static final int ROUNDS_PER_TRANSACTION = 5;
    private static final int ABORTED_OF = 3;
    private static final long READ_ON_MS = 60_000;

    private final Properties common = new Properties();
    private final String name;
    private final String bootstrap;
    private final Path until;
    private final AtomicReference<Exception> failure = new AtomicReference<>();
    private final long[] written = new long[PLAIN_PARTITIONS + 1];
    private volatile boolean isWritten;

    private Sessions(String bootstrap, Path until, String file) throws Exception {
        this.bootstrap = bootstrap;
        this.until = until;
        try (FileReader reader = new FileReader(file)) {
            common.load(reader);
        }
        name = common.getProperty("client.id");
    }

    public static void main(String[] args) throws Exception {
        List<Sessions> all = new ArrayList<>();
        List<Thread> threads = new ArrayList<>();
        for (String file : Arrays.asList(args).subList(2, args.length)) {
            Sessions one = new Sessions(args[0], Paths.get(args[1]), file);
            all.add(one);
            threads.add(new Thread(() -> one.attempt(one::write)));
            threads.add(new Thread(() -> one.attempt(one::read)));
        }
        for (Thread thread : threads) {
            thread.start();
        }
        for (Thread thread : threads) {
            thread.join();
        }
        for (Sessions one : all) {
            if (one.failure.get() != null) {
                throw new IllegalStateException(one.name, one.failure.get());
            }
            System.out.println(one.name + " " + Arrays.toString(one.written));
        }
        System.exit(0);
    }

    private interface Part {
        void run() throws Exception;
    }

    private void attempt(Part part) {
        try {
            part.run();
        } catch (Exception error) {
            failure.compareAndSet(null, error);
        }
    }

    private boolean goesOn() {
        return failure.get() == null && !Files.exists(until);
    }

    private void write() throws Exception {
        try (KafkaProducer<String, String> plain = producer(null);
                KafkaProducer<String, String> transactional = producer(name)) {
            transactional.initTransactions();
            for (int round = 0; goesOn(); round++) {
                for (int partition = 0; partition < PLAIN_PARTITIONS; partition++) {
                    send(plain, partition, String.valueOf(written[partition]++));
                }
                if (round % ROUNDS_PER_TRANSACTION == 0) {
                    transact(transactional, round / ROUNDS_PER_TRANSACTION % ABORTED_OF == 1);
                }
                Thread.sleep(ROUND_MS);
            }
        }
        isWritten = true;
    }

    private void transact(KafkaProducer<String, String> producer, boolean isAborted) {
        producer.beginTransaction();
        if (isAborted) {
            send(producer, PLAIN_PARTITIONS, "aborted");
            producer.flush();
            producer.abortTransaction();
        } else {
            send(producer, PLAIN_PARTITIONS, String.valueOf(written[PLAIN_PARTITIONS]++));
            send(producer, PLAIN_PARTITIONS, String.valueOf(written[PLAIN_PARTITIONS]++));
            producer.commitTransaction();
        }
    }

    private void send(KafkaProducer<String, String> producer, int partition, String value) {
        producer.send(new ProducerRecord<>(name, partition, null, value), (metadata, error) -> {
            if (error != null) {
                failure.compareAndSet(null, error);
            }
        });
    }

    private void read() {
        long[] next = new long[PLAIN_PARTITIONS + 1];
        long[] nextOffset = new long[PLAIN_PARTITIONS + 1];
        long deadline = Long.MAX_VALUE;
        try (KafkaConsumer<String, String> consumer = consumer()) {
            consumer.subscribe(Collections.singletonList(name));
            while (failure.get() == null && !(isWritten && Arrays.equals(next, written))) {
                if (isWritten) {
                    deadline = Math.min(deadline, System.currentTimeMillis() + READ_ON_MS);
                }
                if (System.currentTimeMillis() > deadline) {
                    throw new IllegalStateException(
                            "read " + Arrays.toString(next) + " of " + Arrays.toString(written));
                }
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
                    if (record.offset() < nextOffset[record.partition()]) {
                        continue; // again, as it joined again before it had committed
                    }
                    nextOffset[record.partition()] = record.offset() + 1;
                    String expected = String.valueOf(next[record.partition()]++);
                    if (!record.value().equals(expected)) {
                        throw new IllegalStateException("not " + expected + ": " + record);
                    }
                }
            }
        }
    }

    private Properties properties() {
        Properties properties = new Properties();
        properties.putAll(common);
        properties.setProperty("bootstrap.servers", bootstrap);
        properties.setProperty("reconnect.backoff.max.ms", "500");
        return properties;
    }

    private KafkaProducer<String, String> producer(String transactionalId) {
        Properties properties = properties();
        properties.setProperty("enable.idempotence", "true");
        properties.setProperty("acks", "all");
        if (transactionalId != null) {
            properties.setProperty("transactional.id", transactionalId);
            properties.setProperty("client.id", name + ".transactions");
        }
        return new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
    }

    private KafkaConsumer<String, String> consumer() {
        Properties properties = properties();
        properties.setProperty("group.id", name);
        properties.setProperty("auto.offset.reset", "earliest");
        properties.setProperty("auto.commit.interval.ms", "1000");
        properties.setProperty("isolation.level", "read_committed");
        properties.setProperty("client.id", name + ".group");
        return new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
    }

    /** The token of a file, whose path is the option `file` of the login module. */
    public static final class FileToken implements AuthenticateCallbackHandler {
        private Path file;

        @Override
        public void configure(Map<String, ?> configs, String mechanism, List<AppConfigurationEntry> entries) {
            file = Paths.get((String) entries.get(0).getOptions().get("file"));
        }

        @Override
        public void handle(Callback[] callbacks) throws UnsupportedCallbackException {
            for (Callback callback : callbacks) {
                if (!(callback instanceof OAuthBearerTokenCallback)) {
                    throw new UnsupportedCallbackException(callback);
                }
                ((OAuthBearerTokenCallback) callback).token(new Token(text()));
            }
        }

        private String text() {
            try {
                return new String(Files.readAllBytes(file));
            } catch (java.io.IOException error) {
                throw new java.io.UncheckedIOException(error);
            }
        }

        @Override
        public void close() {
            // nothing is open
        }
    }

    private static final class Token implements OAuthBearerToken {
        private static final long LIFETIME_MS = 3_600_000;
        private final String value;
        private final long startMs = System.currentTimeMillis();

        private Token(String value) {
            this.value = value;
        }

        @Override
        public String value() {
            return value;
        }

        @Override
        public Set<String> scope() {
            return Collections.emptySet();
        }

        @Override
        public long lifetimeMs() {
            return startMs + LIFETIME_MS;
        }

        @Override
        public String principalName() {
            return "alice";
        }

        @Override
        public Long startTimeMs() {
            return startMs;
        }
    }
}
