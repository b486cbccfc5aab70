/* The benchmark's load generator, on librdkafka: one run, one line of JSON on standard output.
 *
 *   loadgen produce key=value ...   as fast as possible, or until `seconds` or `count`, then wait for every ack
 *   loadgen consume key=value ...   read `count` records from offset 0 of every partition, without a group
 *   loadgen latency key=value ...   open loop: `rate` records a second, latency from the *intended* send time
 *
 * The same binary and the same settings drive every broker, so that a ratio says something about the brokers.
 * Every run is bounded: loops end at `limit_s`, and an alarm ends the process 5 s after that, whatever happens.
 * Not here: starting brokers, creating topics, statistics over runs. That is Python's part (bench/client.py).
 */
#include <errno.h>
#include <librdkafka/rdkafka.h>
#include <pthread.h>
#include <signal.h>
#include <stdarg.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/prctl.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { PARTITIONS_MAX = 10000, CHUNK_MAX = 1000, CONSUME_BATCH = 10000 };

static struct {
    const char *brokers, *topic, *acks;
    int size, partitions, producers, batch_messages, batch_bytes, max_in_flight;
    long long count, rate, window;
    double seconds, limit_s, warmup_s, linger_ms;
} opt = {.brokers = "127.0.0.1:9092", .topic = "bench", .acks = "1", .size = 1000, .partitions = 1, .producers = 1,
         .batch_messages = 10000, .batch_bytes = 1000000, .max_in_flight = 1000000, .count = 0, .rate = 1000,
         .window = 0, .seconds = 3, .limit_s = 60, .warmup_s = 1, .linger_ms = 5};

static long long delivery_errors, client_errors;
static char first_error[256];

static int64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

static double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

static void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("loadgen: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static void remember_error(const char *text) {
    if (first_error[0]) return;
    snprintf(first_error, sizeof first_error, "%s", text);
    for (char *c = first_error; *c; c++) /* it is printed inside a JSON string */
        if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ') *c = ' ';
}

static void on_error(rd_kafka_t *rk, int err, const char *reason, void *opaque) {
    (void)rk, (void)err, (void)opaque;
    client_errors++;
    remember_error(reason);
}

static void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *m, void *opaque) {
    (void)rk, (void)opaque;
    if (!m->err) return;
    delivery_errors++;
    remember_error(rd_kafka_err2str(m->err));
}

static void set(rd_kafka_conf_t *conf, const char *key, const char *format, ...) {
    char value[256], why[512];
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof value, format, args);
    va_end(args);
    if (rd_kafka_conf_set(conf, key, value, why, sizeof why) != RD_KAFKA_CONF_OK) die("%s=%s: %s", key, value, why);
}

static rd_kafka_t *open_handle(rd_kafka_type_t type, rd_kafka_conf_t *conf, rd_kafka_topic_t **topic) {
    char why[512];
    set(conf, "bootstrap.servers", "%s", opt.brokers);
    set(conf, "broker.address.family", "v4");
    set(conf, "socket.nagle.disable", "true");
    set(conf, "log_level", "2");
    rd_kafka_conf_set_error_cb(conf, on_error);
    rd_kafka_t *rk = rd_kafka_new(type, conf, why, sizeof why);
    if (!rk) die("%s", why);
    rd_kafka_topic_conf_t *tc = rd_kafka_topic_conf_new();
    if (type == RD_KAFKA_PRODUCER && rd_kafka_topic_conf_set(tc, "acks", opt.acks, why, sizeof why) != RD_KAFKA_CONF_OK)
        die("acks=%s: %s", opt.acks, why);
    *topic = rd_kafka_topic_new(rk, opt.topic, tc);
    if (!*topic) die("topic %s: %s", opt.topic, rd_kafka_err2str(rd_kafka_last_error()));

    /* Connected and the topic known before the clock starts. */
    const struct rd_kafka_metadata *metadata;
    rd_kafka_resp_err_t err = rd_kafka_metadata(rk, 0, *topic, &metadata, 15000);
    if (err) die("metadata: %s", rd_kafka_err2str(err));
    if (metadata->topic_cnt != 1 || metadata->topics[0].partition_cnt != opt.partitions)
        die("topic %s has %d partitions, %d were expected", opt.topic,
            metadata->topic_cnt ? metadata->topics[0].partition_cnt : 0, opt.partitions);
    rd_kafka_metadata_destroy(metadata);
    return rk;
}

typedef void (*report_cb)(rd_kafka_t *, const rd_kafka_message_t *, void *);

/* on_each: told of every record's fate; NULL counts failures only, which spares the generator a report a record. */
static rd_kafka_t *open_producer(rd_kafka_topic_t **topic, report_cb on_each) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set_dr_msg_cb(conf, on_each ? on_each : on_delivery);
    set(conf, "delivery.report.only.error", on_each ? "false" : "true");
    set(conf, "queue.buffering.max.messages", "10000000");
    set(conf, "queue.buffering.max.kbytes", "2097151");
    set(conf, "linger.ms", "%g", opt.linger_ms);
    set(conf, "batch.num.messages", "%d", opt.batch_messages);
    set(conf, "batch.size", "%d", opt.batch_bytes);
    set(conf, "max.in.flight.requests.per.connection", "%d", opt.max_in_flight);
    set(conf, "compression.codec", "none");
    set(conf, "message.timeout.ms", "%d", (int)(opt.limit_s * 1000));
    return open_handle(RD_KAFKA_PRODUCER, conf, topic);
}

static char *make_payload(void) {
    char *payload = malloc(opt.size);
    uint64_t x = 88172645463325252ull; /* xorshift: the same bytes in every run */
    for (int i = 0; i < opt.size; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        payload[i] = (char)x;
    }
    return payload;
}

static void print_result(const char *mode, long long messages, double seconds, double cpu_s, const char *more) {
    printf("{\"mode\":\"%s\",\"messages\":%lld,\"bytes\":%lld,\"seconds\":%.6f,\"msgs_per_s\":%.1f,\"mb_per_s\":%.3f,"
           "\"errors\":%lld,\"client_errors\":%lld,\"first_error\":\"%s\",\"client_cpu_s\":%.3f,"
           "\"librdkafka\":\"%s\"%s}\n",
           mode, messages, messages * opt.size, seconds, messages / seconds, messages * (double)opt.size / seconds / 1e6,
           delivery_errors, client_errors, first_error, cpu_s, rd_kafka_version_str(), more);
    fflush(stdout);
}

/* Wait for the acks of everything sent; what is still without one at the limit counts as an error. */
static void flush_all(rd_kafka_t **rk, int64_t limit_ns) {
    for (int i = 0; i < opt.producers; i++) {
        while (rd_kafka_outq_len(rk[i]) > 0 && now_ns() < limit_ns) rd_kafka_flush(rk[i], 50);
        int left = rd_kafka_outq_len(rk[i]);
        if (left) remember_error("not acknowledged within the time limit");
        delivery_errors += left;
    }
}

static void run_produce(void) {
    rd_kafka_t **rk = calloc(opt.producers, sizeof *rk);
    rd_kafka_topic_t **topic = calloc(opt.producers, sizeof *topic);
    for (int i = 0; i < opt.producers; i++) {
        rk[i] = open_producer(&topic[i], NULL);
    }
    char *payload = make_payload();
    if (!opt.window) opt.window = 200000000LL / opt.size < 200000 ? 200000000LL / opt.size : 200000;
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

static void run_consume(void) {
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_topic_t *topic;
    set(conf, "queued.min.messages", "1000000");
    set(conf, "fetch.wait.max.ms", "100");
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
                if (m->err != RD_KAFKA_RESP_ERR__PARTITION_EOF) delivery_errors++, remember_error(rd_kafka_message_errstr(m));
            } else {
                /* Every record, once, in order, whole: a fast broker that loses records is not fast. */
                if (m->offset != expected[m->partition]) delivery_errors++, remember_error("offset out of order");
                if ((int)m->len != opt.size) delivery_errors++, remember_error("record of another size");
                expected[m->partition] = m->offset + 1;
                received++;
            }
            rd_kafka_message_destroy(m);
        }
        rd_kafka_poll(rk, 0);
    }
    if (received < opt.count) delivery_errors += opt.count - received, remember_error("records missing at the time limit");
    char more[64];
    snprintf(more, sizeof more, ",\"first_record_ms\":%lld", first_ms);
    print_result("consume", received, (last > start ? last - start : 1) / 1e9, cpu_seconds() - cpu_start, more);
}

static struct {
    rd_kafka_t *rk;
    int64_t start_ns, *latency_ns;
    volatile int done;
} loop;

static int64_t intended_ns(long long i) { return loop.start_ns + (int64_t)(i * 1e9 / opt.rate); }

static void on_timed_delivery(rd_kafka_t *rk, const rd_kafka_message_t *m, void *opaque) {
    long long i = (long long)(intptr_t)m->_private;
    loop.latency_ns[i] = now_ns() - intended_ns(i);
    on_delivery(rk, m, opaque);
}

static void *poll_reports(void *unused) {
    while (!loop.done) rd_kafka_poll(loop.rk, 20);
    return unused;
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

static double percentile_ms(const int64_t *sorted, long long n, double q) {
    long long rank = (long long)(q * n + 0.9999999); /* nearest rank: the smallest value with q of all at or below it */
    return sorted[rank < 1 ? 0 : rank > n ? n - 1 : rank - 1] / 1e6;
}

static void run_latency(void) {
    rd_kafka_topic_t *topic;
    rd_kafka_t *rk = loop.rk = open_producer(&topic, on_timed_delivery);
    char *payload = make_payload();
    long long n = (long long)(opt.rate * opt.seconds), skip = (long long)(opt.rate * opt.warmup_s), sent = 0, late = 0;
    if (skip >= n) die("warmup_s must be shorter than seconds");
    loop.latency_ns = malloc(n * sizeof *loop.latency_ns);
    for (long long i = 0; i < n; i++) loop.latency_ns[i] = -1;
    pthread_t poller;
    prctl(PR_SET_TIMERSLACK, 1);

    double cpu_start = cpu_seconds();
    loop.start_ns = now_ns() + 1000000;
    int64_t limit = loop.start_ns + (int64_t)(opt.limit_s * 1e9);
    pthread_create(&poller, NULL, poll_reports, NULL);
    for (; sent < n && now_ns() < limit; sent++) {
        int64_t due = intended_ns(sent);
        struct timespec ts = {.tv_sec = due / 1000000000, .tv_nsec = due % 1000000000};
        while (clock_nanosleep(CLOCK_MONOTONIC, TIMER_ABSTIME, &ts, NULL) == EINTR) {}
        if (now_ns() - due > 1000000) late++; /* the generator itself was not on time: it counts against the result */
        while (rd_kafka_produce(topic, (int32_t)(sent % opt.partitions), 0, payload, opt.size, NULL, 0,
                                (void *)(intptr_t)sent) == -1 && now_ns() < limit)
            usleep(100);
    }
    flush_all(&rk, limit);
    double elapsed = (now_ns() - loop.start_ns) / 1e9;
    loop.done = 1;
    pthread_join(poller, NULL);

    /* A record never acknowledged is as late as the run was long: leaving it out would flatter the broker. */
    for (long long i = 0; i < n; i++)
        if (loop.latency_ns[i] < 0) loop.latency_ns[i] = (int64_t)(opt.limit_s * 1e9);
    int64_t *steady = loop.latency_ns + skip;
    n -= skip;
    double sum = 0;
    for (long long i = 0; i < n; i++) sum += steady[i] / 1e6;
    qsort(steady, n, sizeof *steady, by_value);
    char more[512];
    snprintf(more, sizeof more,
             ",\"rate\":%lld,\"samples\":%lld,\"late_sends\":%lld,\"mean_ms\":%.4f,\"p50_ms\":%.4f,\"p90_ms\":%.4f,"
             "\"p99_ms\":%.4f,\"p999_ms\":%.4f,\"max_ms\":%.4f",
             opt.rate, n, late, sum / n, percentile_ms(steady, n, 0.50), percentile_ms(steady, n, 0.90),
             percentile_ms(steady, n, 0.99), percentile_ms(steady, n, 0.999), steady[n - 1] / 1e6);
    print_result("latency", sent - delivery_errors, elapsed, cpu_seconds() - cpu_start, more);
}

static void parse(const char *arg) {
    const char *v = strchr(arg, '=');
    if (!v) die("%s: expected key=value", arg);
    size_t n = v++ - arg;
#define KEY(name) (n == sizeof #name - 1 && !strncmp(arg, #name, n))
    if (KEY(brokers)) opt.brokers = v;
    else if (KEY(topic)) opt.topic = v;
    else if (KEY(acks)) opt.acks = v;
    else if (KEY(size)) opt.size = atoi(v);
    else if (KEY(partitions)) opt.partitions = atoi(v);
    else if (KEY(producers)) opt.producers = atoi(v);
    else if (KEY(batch_messages)) opt.batch_messages = atoi(v);
    else if (KEY(batch_bytes)) opt.batch_bytes = atoi(v);
    else if (KEY(max_in_flight)) opt.max_in_flight = atoi(v);
    else if (KEY(count)) opt.count = atoll(v);
    else if (KEY(rate)) opt.rate = atoll(v);
    else if (KEY(window)) opt.window = atoll(v);
    else if (KEY(seconds)) opt.seconds = atof(v);
    else if (KEY(limit_s)) opt.limit_s = atof(v);
    else if (KEY(warmup_s)) opt.warmup_s = atof(v);
    else if (KEY(linger_ms)) opt.linger_ms = atof(v);
    else die("%s: unknown key", arg);
#undef KEY
}

int main(int argc, char **argv) {
    if (argc < 2) die("usage: loadgen produce|consume|latency [key=value ...]");
    for (int i = 2; i < argc; i++) parse(argv[i]);
    if (opt.size < 1 || opt.partitions < 1 || opt.partitions > PARTITIONS_MAX || opt.producers < 1 || opt.rate < 1)
        die("size, partitions, producers and rate must be positive");
    signal(SIGPIPE, SIG_IGN);
    alarm((unsigned)opt.limit_s + 5 + 15); /* connecting has 15 s of its own */
    if (!strcmp(argv[1], "produce")) run_produce();
    else if (!strcmp(argv[1], "consume")) run_consume();
    else if (!strcmp(argv[1], "latency")) run_latency();
    else die("%s: unknown mode", argv[1]);
    _exit(0); /* closing 200 handles politely takes seconds and measures nothing */
}
