import java.time.Duration;
import java.util.Collection;
import java.util.HashMap;
import java.util.List;
import java.util.Map;
import java.util.Properties;
import java.util.concurrent.CountDownLatch;
import java.util.stream.Collectors;
import org.apache.kafka.clients.consumer.CommitFailedException;
import org.apache.kafka.clients.consumer.ConsumerRebalanceListener;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.CooperativeStickyAssignor;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.consumer.OffsetAndMetadata;
import org.apache.kafka.clients.consumer.RangeAssignor;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.errors.RebalanceInProgressException;
import org.apache.kafka.common.errors.RetriableException;
import org.apache.kafka.common.serialization.StringDeserializer;

/** One member of a consumer group: reads, writes down what it read, and only then commits. SIGTERM makes it leave. */
public final class Member {
    private static volatile boolean isStopping = false;

    private static Properties settings(Map<String, String> options) {
        Properties settings = new Properties();
        settings.put("bootstrap.servers", options.get("bootstrap"));
        settings.put("group.id", options.get("group"));
        settings.put("key.deserializer", StringDeserializer.class);
        settings.put("value.deserializer", StringDeserializer.class);
        settings.put("auto.offset.reset", "earliest");
        settings.put("enable.auto.commit", false);
        settings.put("max.poll.records", 20);
        settings.put("reconnect.backoff.max.ms", 500);
        String strategy = options.get("strategy");
        if (strategy.equals("consumer")) {
            settings.put("group.protocol", "consumer");
        } else {
            settings.put("group.protocol", "classic");
            settings.put("session.timeout.ms", 6000);
            settings.put("heartbeat.interval.ms", 500);
            Class<?> assignor = strategy.equals("range") ? RangeAssignor.class : CooperativeStickyAssignor.class;
            settings.put("partition.assignment.strategy", List.of(assignor));
        }
        return settings;
    }

    private static String numbers(Collection<TopicPartition> partitions) {
        return partitions.stream().map(each -> " " + each.partition()).sorted().collect(Collectors.joining());
    }

    private static ConsumerRebalanceListener listener(Diary diary) {
        return new ConsumerRebalanceListener() {
            @Override
            public void onPartitionsRevoked(Collection<TopicPartition> partitions) {
                diary.write("revoked" + numbers(partitions));
            }

            @Override
            public void onPartitionsAssigned(Collection<TopicPartition> partitions) {
                diary.write("assigned" + numbers(partitions));
            }
        };
    }

    private static void handle(KafkaConsumer<String, String> consumer, Diary diary) {
        Map<TopicPartition, OffsetAndMetadata> ends = new HashMap<>();
        for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(200))) {
            diary.write("got " + record.partition() + " " + record.offset() + " " + record.value());
            ends.put(new TopicPartition(record.topic(), record.partition()), new OffsetAndMetadata(record.offset() + 1));
        }
        if (ends.isEmpty()) {
            return;
        }
        try {
            consumer.commitSync(ends);
            ends.forEach((at, end) -> diary.write("committed " + at.partition() + " " + end.offset()));
        } catch (CommitFailedException | RebalanceInProgressException | RetriableException error) {
            System.err.println(error); // the group moved on; what was not committed comes again
        }
    }

    public static void main(String[] arguments) throws Exception {
        Map<String, String> options = Diary.options(arguments);
        Diary diary = new Diary(options.get("diary"));
        CountDownLatch hasLeft = new CountDownLatch(1);
        Runtime.getRuntime().addShutdownHook(new Thread(() -> {
            isStopping = true;
            try {
                hasLeft.await();
            } catch (InterruptedException error) {
                Thread.currentThread().interrupt();
            }
        }));
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings(options))) {
            consumer.subscribe(List.of(options.get("topic")), listener(diary));
            while (!isStopping) {
                handle(consumer, diary);
            }
        } finally {
            hasLeft.countDown();
        }
    }
}
