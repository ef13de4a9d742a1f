import java.io.FileReader;
import java.time.Duration;
import java.util.ArrayList;
import java.util.Collections;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.Future;

import org.apache.kafka.clients.admin.Admin;
import org.apache.kafka.clients.admin.NewTopic;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.clients.producer.RecordMetadata;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * What an application does, once: an admin creates a topic, a producer writes, a transaction is
 * aborted and one is committed, a group reads it all in order and commits.
 *
 * Arguments: bootstrap servers, a client properties file, a name for topic and group, the number
 * of records, and optionally the milliseconds to wait after each. One line of JSON per step; exit
 * status 1 with the exception on stderr.
 */
public final class RoundTrip {
    private static final Duration POLL = Duration.ofMillis(200);
    private static final long READ_DEADLINE_MS = 60_000;

    private final Properties common = new Properties();
    private final String name;
    private final int records;
    private final long pauseMs;

    private RoundTrip(String[] args) throws Exception {
        try (FileReader reader = new FileReader(args[1])) {
            common.load(reader);
        }
        common.setProperty("bootstrap.servers", args[0]);
        name = args[2];
        records = Integer.parseInt(args[3]);
        pauseMs = args.length > 4 ? Long.parseLong(args[4]) : 0;
    }

    public static void main(String[] args) throws Exception {
        RoundTrip program = new RoundTrip(args);
        program.administer();
        program.produce();
        program.transact();
        program.consume();
        System.out.println("{\"step\": \"done\"}");
    }

    private void administer() throws Exception {
        try (Admin admin = Admin.create(common)) {
            int nodes = admin.describeCluster().nodes().get().size();
            admin.createTopics(List.of(new NewTopic(name, 1, (short) 1))).all().get();
            System.out.printf("{\"step\": \"admin\", \"nodes\": %d}%n", nodes);
        }
    }

    private void produce() throws Exception {
        List<Future<RecordMetadata>> sent = new ArrayList<>();
        try (KafkaProducer<String, String> producer = producer(Map.of())) {
            for (int n = 0; n < records; n++) {
                sent.add(producer.send(new ProducerRecord<>(name, "plain-" + n)));
                Thread.sleep(pauseMs);
            }
            for (Future<RecordMetadata> each : sent) {
                each.get();
            }
        }
        System.out.printf("{\"step\": \"produce\", \"records\": %d}%n", sent.size());
    }

    private void transact() throws Exception {
        try (KafkaProducer<String, String> producer = producer(Map.of("transactional.id", name))) {
            producer.initTransactions();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(name, "aborted")).get();
            producer.abortTransaction();
            producer.beginTransaction();
            producer.send(new ProducerRecord<>(name, "committed")).get();
            producer.commitTransaction();
        }
        System.out.println("{\"step\": \"transaction\"}");
    }

    private void consume() {
        List<String> expected = new ArrayList<>();
        for (int n = 0; n < records; n++) {
            expected.add("plain-" + n);
        }
        expected.add("committed");
        List<String> seen = new ArrayList<>();
        try (KafkaConsumer<String, String> consumer = consumer()) {
            consumer.subscribe(Collections.singletonList(name));
            long deadline = System.currentTimeMillis() + READ_DEADLINE_MS;
            while (seen.size() < expected.size() && System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<String, String> record : consumer.poll(POLL)) {
                    seen.add(record.value());
                }
            }
            consumer.commitSync();
            TopicPartition partition = new TopicPartition(name, 0);
            OffsetAndMetadata committed = consumer.committed(Collections.singleton(partition)).get(partition);
            System.out.printf(
                    "{\"step\": \"group\", \"records\": %d, \"in_order\": %b, \"committed\": %d}%n",
                    seen.size(), seen.equals(expected), committed.offset());
        }
    }

    private KafkaProducer<String, String> producer(Map<String, String> more) {
        Properties properties = new Properties();
        properties.putAll(common);
        properties.putAll(more);
        return new KafkaProducer<>(properties, new StringSerializer(), new StringSerializer());
    }

    private KafkaConsumer<String, String> consumer() {
        Properties properties = new Properties();
        properties.putAll(common);
        properties.setProperty("group.id", name);
        properties.setProperty("auto.offset.reset", "earliest");
        properties.setProperty("isolation.level", "read_committed");
        properties.setProperty("enable.auto.commit", "false");
        return new KafkaConsumer<>(properties, new StringDeserializer(), new StringDeserializer());
    }
}
