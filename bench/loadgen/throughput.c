/* As fast as possible: produce with a bounded number of unacknowledged records, consume without a group. */
#include "loadgen.h"

#include <stdlib.h>
#include <string.h>
#include <unistd.h>

enum { CHUNK_MAX = 1000, CONSUME_BATCH = 10000 };

void run_produce(void) {
    rd_kafka_t **rk = calloc(opt.producers, sizeof *rk);
    rd_kafka_topic_t **topic = calloc(opt.producers, sizeof *topic);
    for (int i = 0; i < opt.producers; i++) {
        rk[i] = open_producer(&topic[i], NULL, NULL);
    }
    char *payload = make_payload();
    /* Enough for full batches to every partition, little enough that waiting for the last acks stays short. */
    if (!opt.window) opt.window = 100000000LL / opt.size < 200000 ? 100000000LL / opt.size : 200000;
    int chunk = opt.batch_messages < 100 ? opt.batch_messages : 100;
    if (chunk > opt.window) chunk = (int)opt.window;
    rd_kafka_message_t batch[CHUNK_MAX];

    long long sent = 0, turn = 0;
    double cpu_start = cpu_seconds();
    int64_t start = now_ns(), stop = start + (int64_t)(opt.seconds * 1e9), limit = start + (int64_t)(opt.limit_s * 1e9);
    while (now_ns() < stop && (!opt.count || sent < opt.count)) {
        int idle = 1;
        for (int i = 0; i < opt.producers; i++) {
            if (rd_kafka_outq_len(rk[i]) + chunk > opt.window) continue;
            memset(batch, 0, chunk * sizeof *batch);
            for (int m = 0; m < chunk; m++) batch[m].payload = payload, batch[m].len = opt.size;
            /* No F_COPY, no F_FREE: the payload is static and outlives every request. */
            int queued = rd_kafka_produce_batch(topic[i], (int32_t)(turn++ % opt.partitions), 0, batch, chunk);
            sent += queued;
            if (queued > 0) idle = 0;
        }
        if (idle) usleep(200);
        if (delivery_errors + client_errors > 1000) break;
        for (int i = 0; i < opt.producers; i++)
            if (turn % 64 == 0 || idle) rd_kafka_poll(rk[i], 0);
    }
    flush_all(rk, limit);
    double elapsed = (now_ns() - start) / 1e9;
    print_result("produce", sent - delivery_errors, elapsed, cpu_seconds() - cpu_start, "");
}

void run_consume(void) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_topic_t *topic;
    /* Prefetch as librdkafka does by default: smaller queues were seen to stall the client at 100 partitions. */
    set(conf, "fetch.wait.max.ms", "100");
    if (opt.fetch_bytes) {
        set(conf, "message.max.bytes", "%d", opt.fetch_bytes); /* the client wants it below fetch.max.bytes */
        set(conf, "fetch.max.bytes", "%d", opt.fetch_bytes);
    }
    rd_kafka_t *rk = open_handle(RD_KAFKA_CONSUMER, conf, &topic);
    rd_kafka_queue_t *queue = rd_kafka_queue_new(rk);
    rd_kafka_message_t **batch = calloc(CONSUME_BATCH, sizeof *batch);
    int64_t *expected = calloc(opt.partitions, sizeof *expected);
    long long received = 0, first_ms = -1;

    double cpu_start = cpu_seconds();
    int64_t start = now_ns(), limit = start + (int64_t)(opt.limit_s * 1e9), last = start;
    for (int p = 0; p < opt.partitions; p++)
        if (rd_kafka_consume_start_queue(topic, p, 0, queue)) die("partition %d: cannot start", p);
    while (received < opt.count && now_ns() < limit && delivery_errors < 1000) {
        ssize_t n = rd_kafka_consume_batch_queue(queue, 100, batch, CONSUME_BATCH);
        if (n > 0) last = now_ns();
        if (n > 0 && first_ms < 0) first_ms = (last - start) / 1000000;
        for (ssize_t i = 0; i < n; i++) {
            rd_kafka_message_t *m = batch[i];
            if (m->err) {
                if (m->err != RD_KAFKA_RESP_ERR__PARTITION_EOF) count_errors(1, rd_kafka_message_errstr(m));
            } else {
                /* Every record, once, in order, whole: a fast broker that loses records is not fast. */
                int64_t due = expected[m->partition];
                if (opt.markers ? m->offset < due : m->offset != due) count_errors(1, "offset out of order");
                if ((int)m->len != opt.size) count_errors(1, "record of another size");
                expected[m->partition] = m->offset + 1;
                received++;
            }
            rd_kafka_message_destroy(m);
        }
        rd_kafka_poll(rk, 0);
    }
    if (received < opt.count) count_errors(opt.count - received, "records missing at the time limit");
    char more[64];
    snprintf(more, sizeof more, ",\"first_record_ms\":%lld", first_ms);
    print_result("consume", received, (last > start ? last - start : 1) / 1e9, cpu_seconds() - cpu_start, more);
}
