import java.io.FileReader;
import java.nio.ByteBuffer;
import java.nio.file.Files;
import java.nio.file.Path;
import java.time.Duration;
import java.util.Arrays;
import java.util.Properties;
import java.util.concurrent.atomic.AtomicLongArray;
import java.util.concurrent.atomic.AtomicReference;
import java.util.concurrent.locks.LockSupport;

import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.serialization.ByteArrayDeserializer;
import org.apache.kafka.common.serialization.ByteArraySerializer;

/**
 * An idempotent producer and a group of one, both as fast as they can, for some time: every value
 * begins with its number in its partition, so that what is lost, doubled or out of order shows.
 *
 * Arguments: bootstrap servers, a client properties file, a topic, its partitions, seconds, and
 * optionally a file: they go on until it is there. One line of JSON at the end: the records by
 * partition that were acknowledged. Exit status 1 with the exception on stderr.
 */
public final class Traffic {
    private static final int VALUE_BYTES = 200;
    private static final long READ_ON_MS = 120_000;
    private static final long PAUSE_NANOS = 5_000_000;

    private final Properties common = new Properties();
    private final String topic;
    private final int partitions;
    private final long seconds;
    private final Path until;
    private final AtomicLongArray acknowledged;
    private final AtomicReference<Exception> failure = new AtomicReference<>();
    private volatile long endsAt = Long.MAX_VALUE;
    private volatile boolean produced;

    private Traffic(String[] args) throws Exception {
        try (FileReader reader = new FileReader(args[1])) {
            common.load(reader);
        }
        common.setProperty("bootstrap.servers", args[0]);
        topic = args[2];
        partitions = Integer.parseInt(args[3]);
        seconds = Long.parseLong(args[4]);
        until = args.length > 5 ? Path.of(args[5]) : null;
        acknowledged = new AtomicLongArray(partitions);
    }

    public static void main(String[] args) throws Exception {
        Traffic traffic = new Traffic(args);
        Thread consumer = new Thread(traffic::consume);
        consumer.start();
        traffic.produce();
        consumer.join();
        if (traffic.failure.get() != null) {
            throw traffic.failure.get();
        }
        System.out.printf("{\"records\": %s}%n", traffic.acknowledged);
    }

    private void produce() {
        Properties properties = new Properties();
        properties.putAll(common);
        properties.setProperty("enable.idempotence", "true");
        properties.setProperty("linger.ms", "2");
        properties.setProperty("buffer.memory", "4000000");
        long[] next = new long[partitions];
        try (KafkaProducer<byte[], byte[]> producer =
                new KafkaProducer<>(properties, new ByteArraySerializer(), new ByteArraySerializer())) {
            producer.partitionsFor(topic);
            long enough = System.currentTimeMillis() + 1_000 * seconds; // not before it is connected
            while (failure.get() == null && (System.currentTimeMillis() < enough || goesOn())) {
                for (int partition = 0; partition < partitions; partition++) {
                    send(producer, partition, next[partition]++);
                }
                LockSupport.parkNanos(PAUSE_NANOS); // at full speed it would use all of a machine
            }
        }
        endsAt = System.currentTimeMillis();
        produced = true;
    }

    private boolean goesOn() {
        return until != null && !Files.exists(until);
    }

    private void send(KafkaProducer<byte[], byte[]> producer, int partition, long number) {
        byte[] value = ByteBuffer.allocate(VALUE_BYTES).putLong(number).array();
        producer.send(new ProducerRecord<>(topic, partition, null, value), (metadata, error) -> {
            if (error != null) {
                failure.compareAndSet(null, error);
            } else {
                acknowledged.incrementAndGet(partition);
            }
        });
    }

    private void consume() {
        Properties properties = new Properties();
        properties.putAll(common);
        properties.setProperty("group.id", topic);
        properties.setProperty("auto.offset.reset", "earliest");
        long[] next = new long[partitions];
        try (KafkaConsumer<byte[], byte[]> consumer =
                new KafkaConsumer<>(properties, new ByteArrayDeserializer(), new ByteArrayDeserializer())) {
            consumer.subscribe(Arrays.asList(topic));
            while (!isDone(next)) {
                for (ConsumerRecord<byte[], byte[]> record : consumer.poll(Duration.ofMillis(100))) {
                    long number = ByteBuffer.wrap(record.value()).getLong();
                    if (number != next[record.partition()]++) {
                        throw new IllegalStateException("out of order: " + record);
                    }
                }
            }
        } catch (Exception error) {
            failure.compareAndSet(null, error);
        }
    }

    private boolean isDone(long[] next) {
        if (failure.get() != null) {
            return true;
        }
        if (System.currentTimeMillis() - READ_ON_MS > endsAt) {
            throw new IllegalStateException("read " + Arrays.toString(next) + " of " + acknowledged);
        }
        for (int partition = 0; partition < partitions; partition++) {
            if (!produced || next[partition] < acknowledged.get(partition)) {
                return false;
            }
        }
        return true;
    }
}
