import java.time.Duration;
import java.util.HashMap;
import java.util.HashSet;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.Set;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.ConsumerRecords;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/**
 * Consume, transform, produce in transactions: {@code Worker --do work|read --bootstrap ... }.
 * Every fifth transaction is aborted once and done again. It runs until it is killed.
 */
public final class Worker {
    private static final int ABORT_EACH = 5;
    private static final int PAUSE_MS = 10; // in each state of a transaction, so that a kill meets all of them

    private static KafkaConsumer<String, String> consumer(Map<String, String> options, String isolation) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", options.get("bootstrap"));
        settings.put("key.deserializer", StringDeserializer.class);
        settings.put("value.deserializer", StringDeserializer.class);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        settings.put("isolation.level", "read_" + isolation);
        if (options.containsKey("group")) {
            settings.put("group.id", options.get("group"));
            settings.put("session.timeout.ms", 6000);
            settings.put("heartbeat.interval.ms", 500);
            settings.put("max.poll.records", 20);
        }
        return new KafkaConsumer<>(settings);
    }

    private static KafkaProducer<String, String> producer(Map<String, String> options) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", options.get("bootstrap"));
        settings.put("key.serializer", StringSerializer.class);
        settings.put("value.serializer", StringSerializer.class);
        settings.put("transactional.id", options.get("id"));
        settings.put("transaction.timeout.ms", 30000);
        return new KafkaProducer<>(settings);
    }

    private static void work(Map<String, String> options) throws Exception {
        Diary diary = new Diary(options.get("diary"));
        try (KafkaProducer<String, String> producer = producer(options);
                KafkaConsumer<String, String> consumer = consumer(options, "committed")) {
            producer.initTransactions();
            consumer.subscribe(List.of(options.get("input")));
            for (int number = 1; ; ) {
                ConsumerRecords<String, String> records = consumer.poll(Duration.ofMillis(200));
                if (records.isEmpty()) {
                    continue;
                }
                if (number % ABORT_EACH == 0) {
                    send(producer, consumer, records, options.get("output"), diary);
                    producer.abortTransaction();
                    diary.write("aborted " + number);
                    Thread.sleep(PAUSE_MS);
                }
                send(producer, consumer, records, options.get("output"), diary);
                producer.commitTransaction();
                diary.write("committed " + number);
                number++;
            }
        }
    }

    private static void send(
            KafkaProducer<String, String> producer,
            KafkaConsumer<String, String> consumer,
            ConsumerRecords<String, String> records,
            String output,
            Diary diary)
            throws Exception {
        producer.beginTransaction();
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        for (ConsumerRecord<String, String> record : records) {
            producer.send(new ProducerRecord<>(output, record.partition(), null, "done:" + record.value()));
            ends.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
        }
        producer.flush();
        diary.write("sent " + ends.size());
        Thread.sleep(PAUSE_MS);
        producer.sendOffsetsToTransaction(ends, consumer.groupMetadata());
        diary.write("offsets " + ends.size());
        Thread.sleep(PAUSE_MS);
    }

    /** Print every value until each partition has said "end". */
    private static void read(Map<String, String> options) {
        try (KafkaConsumer<String, String> consumer = consumer(options, options.get("isolation"))) {
            List<TopicPartition> partitions = consumer.partitionsFor(options.get("topic")).stream()
                    .map(each -> new TopicPartition(each.topic(), each.partition()))
                    .toList();
            consumer.assign(partitions);
            consumer.seekToBeginning(partitions);
            Set<Integer> ended = new HashSet<>();
            while (ended.size() < partitions.size()) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                    if (record.value().equals("end")) {
                        ended.add(record.partition());
                    } else {
                        System.out.println(record.value());
                    }
                }
            }
        }
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = Diary.options(arguments);
        if (options.get("do").equals("work")) {
            work(options);
        } else {
            read(options);
        }
    }
}
