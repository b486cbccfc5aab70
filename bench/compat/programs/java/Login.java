import java.io.FileReader;
import java.time.Duration;
import java.util.List;
import java.util.Properties;
import org.apache.kafka.clients.consumer.ConsumerRecord;
import org.apache.kafka.clients.consumer.KafkaConsumer;
import org.apache.kafka.clients.producer.KafkaProducer;
import org.apache.kafka.clients.producer.ProducerRecord;
import org.apache.kafka.common.TopicPartition;
import org.apache.kafka.common.serialization.StringDeserializer;
import org.apache.kafka.common.serialization.StringSerializer;

/** Produce one message and read the topic up to it, logged in as a file of properties says. */
public final class Login {
    private static final int PATIENCE_MS = 15000;

    public static void main(String[] arguments) throws Exception {
        Properties settings = new Properties();
        try (FileReader file = new FileReader(arguments[0])) {
            settings.load(file);
        }
        settings.put("key.serializer", StringSerializer.class);
        settings.put("value.serializer", StringSerializer.class);
        settings.put("key.deserializer", StringDeserializer.class);
        settings.put("value.deserializer", StringDeserializer.class);
        settings.put("max.block.ms", PATIENCE_MS);
        settings.put("default.api.timeout.ms", PATIENCE_MS);
        String topic = arguments[1];
        String text = arguments[2];
        try {
            try (KafkaProducer<String, String> producer = new KafkaProducer<>(settings)) {
                producer.send(new ProducerRecord<>(topic, 0, null, text)).get();
            }
            read(settings, topic, text);
        } catch (Exception error) {
            for (Throwable each = error; each != null; each = each.getCause()) {
                System.err.println(each);
            }
            System.exit(1);
        }
    }

    private static void read(Properties settings, String topic, String text) {
        long deadline = System.currentTimeMillis() + PATIENCE_MS;
        try (KafkaConsumer<String, String> consumer = new KafkaConsumer<>(settings)) {
            TopicPartition place = new TopicPartition(topic, 0);
            consumer.assign(List.of(place));
            consumer.seekToBeginning(List.of(place));
            while (System.currentTimeMillis() < deadline) {
                for (ConsumerRecord<String, String> record : consumer.poll(Duration.ofMillis(500))) {
                    System.out.println(record.value());
                    if (record.value().equals(text)) {
                        return;
                    }
                }
            }
        }
        throw new IllegalStateException("it was not read");
    }
}
