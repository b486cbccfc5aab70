/* The benchmark's load generator, on librdkafka: one run, one line of JSON on standard output.
 *
 *   loadgen produce key=value ...   as fast as possible, or until `seconds` or `count`, then wait for every ack
 *   loadgen consume key=value ...   read `count` records from offset 0 of every partition, without a group
 *   loadgen latency key=value ...   open loop: `rate` records a second, latency from the *intended* send time
 *   loadgen transactions key=value ...   one transaction after the other, by each of `producers`
 *   loadgen commits key=value ...   offset commits, one after the other on each of `connections`
 *
 * The same binary and the same settings drive every broker, so that a ratio says something about the brokers.
 * Every run is bounded: loops end at `limit_s`, and an alarm ends the process 5 s after that, whatever happens.
 * Each mode has a file of its own, or half of throughput.c; this file has the options, the handles and the result.
 * Not here: starting brokers, creating topics, statistics over runs. That is Python's part (bench/client.py).
 */
#include "loadgen.h"

#include <signal.h>
#include <stdarg.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>
#include <time.h>
#include <unistd.h>

enum { PARTITIONS_MAX = 10000 };

struct options opt = {.brokers = "127.0.0.1:9092", .topic = "bench", .acks = "1", .size = 1000, .partitions = 1, .producers = 1,
         .connections = 1, .transaction_records = 1000, .batch_messages = 10000, .batch_bytes = 1000000, .max_in_flight = 1000000, .count = 0, .rate = 1000,
         .window = 0, .seconds = 3, .limit_s = 60, .warmup_s = 1, .linger_ms = 5};

_Atomic long long delivery_errors, client_errors;
static char first_error[256];
static atomic_flag has_error = ATOMIC_FLAG_INIT;

int64_t now_ns(void) {
    struct timespec ts;
    clock_gettime(CLOCK_MONOTONIC, &ts);
    return (int64_t)ts.tv_sec * 1000000000 + ts.tv_nsec;
}

double cpu_seconds(void) {
    struct rusage u;
    getrusage(RUSAGE_SELF, &u);
    return u.ru_utime.tv_sec + u.ru_stime.tv_sec + (u.ru_utime.tv_usec + u.ru_stime.tv_usec) / 1e6;
}

void die(const char *format, ...) {
    va_list args;
    va_start(args, format);
    fputs("loadgen: ", stderr);
    vfprintf(stderr, format, args);
    fputc('\n', stderr);
    va_end(args);
    exit(1);
}

static void remember_error(const char *text) {
    if (atomic_flag_test_and_set(&has_error)) return;
    snprintf(first_error, sizeof first_error, "%s", text);
    for (char *c = first_error; *c; c++) /* it is printed inside a JSON string */
        if (*c == '"' || *c == '\\' || (unsigned char)*c < ' ') *c = ' ';
}

void count_errors(long long n, const char *text) {
    delivery_errors += n;
    remember_error(text);
}

static int by_value(const void *a, const void *b) {
    int64_t x = *(const int64_t *)a, y = *(const int64_t *)b;
    return (x > y) - (x < y);
}

void sort_ns(int64_t *values, long long n) { qsort(values, n, sizeof *values, by_value); }

double percentile_ms(const int64_t *sorted, long long n, double q) {
    long long rank = (long long)(q * n + 0.9999999); /* nearest rank: the smallest value with q of all at or below it */
    return sorted[rank < 1 ? 0 : rank > n ? n - 1 : rank - 1] / 1e6;
}

static void on_error(rd_kafka_t *rk, int err, const char *reason, void *opaque) {
    (void)rk, (void)err, (void)opaque;
    client_errors++;
    remember_error(reason);
}

void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *m, void *opaque) {
    (void)rk, (void)opaque;
    if (m->err) count_errors(1, rd_kafka_err2str(m->err));
}

void set(rd_kafka_conf_t *conf, const char *key, const char *format, ...) {
    char value[256], why[512];
    va_list args;
    va_start(args, format);
    vsnprintf(value, sizeof value, format, args);
    va_end(args);
    if (rd_kafka_conf_set(conf, key, value, why, sizeof why) != RD_KAFKA_CONF_OK) die("%s=%s: %s", key, value, why);
}

rd_kafka_t *open_handle(rd_kafka_type_t type, rd_kafka_conf_t *conf, rd_kafka_topic_t **topic) {
    char why[512];
    set(conf, "bootstrap.servers", "%s", opt.brokers);
    set(conf, "broker.address.family", "v4");
    set(conf, "socket.nagle.disable", "true");
    set(conf, "log_level", "2");
    if (opt.ca) set(conf, "security.protocol", "ssl"), set(conf, "ssl.ca.location", "%s", opt.ca);
    if (opt.user) {
        const char *password = getenv("LOADGEN_PASSWORD");
        set(conf, "security.protocol", opt.ca ? "sasl_ssl" : "sasl_plaintext");
        set(conf, "sasl.mechanism", "SCRAM-SHA-256");
        set(conf, "sasl.username", "%s", opt.user), set(conf, "sasl.password", "%s", password ? password : "");
    }
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

/* on_each: told of every record's fate; NULL counts failures only, which spares the generator a report a record. */
rd_kafka_t *open_producer(rd_kafka_topic_t **topic, report_cb on_each, const char *transactional_id) {
    enum { IN_FLIGHT_MAX_IDEMPOTENT = 5 }; /* as many batches as brokers remember of each producer */
    int is_idempotent = opt.idempotent || transactional_id, in_flight = opt.max_in_flight;
    if (is_idempotent && in_flight > IN_FLIGHT_MAX_IDEMPOTENT) in_flight = IN_FLIGHT_MAX_IDEMPOTENT;
    rd_kafka_conf_t *conf = rd_kafka_conf_new();
    rd_kafka_conf_set_dr_msg_cb(conf, on_each ? on_each : on_delivery);
    set(conf, "delivery.report.only.error", on_each ? "false" : "true");
    set(conf, "queue.buffering.max.messages", "10000000");
    set(conf, "queue.buffering.max.kbytes", "2097151");
    set(conf, "linger.ms", "%g", opt.linger_ms);
    set(conf, "batch.num.messages", "%d", opt.batch_messages);
    set(conf, "batch.size", "%d", opt.batch_bytes);
    set(conf, "max.in.flight.requests.per.connection", "%d", in_flight);
    if (is_idempotent) set(conf, "enable.idempotence", "true");
    if (transactional_id) set(conf, "transactional.id", "%s", transactional_id);
    set(conf, "compression.codec", "none");
    set(conf, "message.timeout.ms", "%d", (int)(opt.limit_s * 1000));
    return open_handle(RD_KAFKA_PRODUCER, conf, topic);
}

char *make_payload(void) {
    char *payload = malloc(opt.size);
    uint64_t x = 88172645463325252ull; /* xorshift: the same bytes in every run */
    for (int i = 0; i < opt.size; i++) {
        x ^= x << 13, x ^= x >> 7, x ^= x << 17;
        payload[i] = (char)x;
    }
    return payload;
}

void print_result(const char *mode, long long messages, double seconds, double cpu_s, const char *more) {
    printf("{\"mode\":\"%s\",\"messages\":%lld,\"bytes\":%lld,\"seconds\":%.6f,\"msgs_per_s\":%.1f,\"mb_per_s\":%.3f,"
           "\"errors\":%lld,\"client_errors\":%lld,\"first_error\":\"%s\",\"client_cpu_s\":%.3f,"
           "\"librdkafka\":\"%s\"%s}\n",
           mode, messages, messages * opt.size, seconds, messages / seconds, messages * (double)opt.size / seconds / 1e6,
           (long long)delivery_errors, (long long)client_errors, first_error, cpu_s, rd_kafka_version_str(), more);
    fflush(stdout);
}

/* Wait for the acks of everything sent; what is still without one at the limit counts as an error. */
void flush_all(rd_kafka_t **rk, int64_t limit_ns) {
    for (int i = 0; i < opt.producers; i++) {
        while (rd_kafka_outq_len(rk[i]) > 0 && now_ns() < limit_ns) rd_kafka_flush(rk[i], 50);
        int left = rd_kafka_outq_len(rk[i]);
        if (left) count_errors(left, "not acknowledged within the time limit");
    }
}

static void parse(const char *arg) {
    const char *v = strchr(arg, '=');
    if (!v) die("%s: expected key=value", arg);
    size_t n = v++ - arg;
#define KEY(name) (n == sizeof #name - 1 && !strncmp(arg, #name, n))
    if (KEY(brokers)) opt.brokers = v;
    else if (KEY(topic)) opt.topic = v;
    else if (KEY(acks)) opt.acks = v;
    else if (KEY(ca)) opt.ca = v;
    else if (KEY(user)) opt.user = v;
    else if (KEY(size)) opt.size = atoi(v);
    else if (KEY(partitions)) opt.partitions = atoi(v);
    else if (KEY(producers)) opt.producers = atoi(v);
    else if (KEY(connections)) opt.connections = atoi(v);
    else if (KEY(idempotent)) opt.idempotent = atoi(v);
    else if (KEY(transaction_records)) opt.transaction_records = atoi(v);
    else if (KEY(plain)) opt.plain = atoi(v);
    else if (KEY(markers)) opt.markers = atoi(v);
    else if (KEY(batch_messages)) opt.batch_messages = atoi(v);
    else if (KEY(batch_bytes)) opt.batch_bytes = atoi(v);
    else if (KEY(fetch_bytes)) opt.fetch_bytes = atoi(v);
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
    if (argc < 2) die("usage: loadgen produce|consume|latency|transactions|commits [key=value ...]");
    for (int i = 2; i < argc; i++) parse(argv[i]);
    if (opt.size < 1 || opt.partitions < 1 || opt.partitions > PARTITIONS_MAX || opt.producers < 1 || opt.rate < 1
        || opt.connections < 1 || opt.transaction_records < 1)
        die("size, partitions, producers, connections, transaction_records and rate must be positive");
    signal(SIGPIPE, SIG_IGN);
    alarm((unsigned)opt.limit_s + 5 + 15); /* connecting has 15 s of its own */
    if (!strcmp(argv[1], "produce")) run_produce();
    else if (!strcmp(argv[1], "consume")) run_consume();
    else if (!strcmp(argv[1], "latency")) run_latency();
    else if (!strcmp(argv[1], "transactions")) run_transactions();
    else if (!strcmp(argv[1], "commits")) run_commits();
    else die("%s: unknown mode", argv[1]);
    _exit(0); /* closing 200 handles politely takes seconds and measures nothing */
}
