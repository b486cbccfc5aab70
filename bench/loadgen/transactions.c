/* One transaction after the other, by several producers at once: what exactly-once costs.
 *
 * Each producer has a thread, because the calls of a transaction block. With plain=1 the same threads send the same
 * batches without transactions and without waiting, idempotent all the same: the two rates differ by the transactions.
 * A commit is timed from when all records of the transaction are acknowledged.
 * The first transaction of each producer is aborted, before the clock starts, and its records are one byte short:
 * whoever reads the topic as committed and sees such a record has found a broker that does not do transactions.
 */
#include "loadgen.h"

#include <pthread.h>
#include <stdlib.h>
#include <unistd.h>

enum { TRANSACTIONS_MAX = 1000000 };

struct writer {
    pthread_t thread;
    rd_kafka_t *rk;
    rd_kafka_topic_t *topic;
    rd_kafka_message_t *batch;
    int64_t *records_ns, *commit_ns; /* of each transaction: until its records were acknowledged, and its commit */
    long long transactions;
};

static struct {
    pthread_barrier_t ready;
    char *payload;
    int64_t stop_ns, limit_ns;
} run;

static int remaining_ms(void) {
    int64_t left = (run.limit_ns - now_ns()) / 1000000;
    return left < 1 ? 1 : (int)left;
}

/* Whether a step of a transaction succeeded; if not, its records are counted as lost. */
static int succeeded(rd_kafka_error_t *error) {
    if (!error) return 1;
    count_errors(opt.transaction_records, rd_kafka_error_string(error));
    rd_kafka_error_destroy(error);
    return 0;
}

/* The records of one transaction, the same number to each partition. */
static int send_records(struct writer *w, int size) {
    int sent = 0;
    for (int p = 0; p < opt.partitions; p++) {
        int n = opt.transaction_records / opt.partitions + (p < opt.transaction_records % opt.partitions);
        for (int m = 0; m < n; m++) w->batch[m] = (rd_kafka_message_t){.payload = run.payload, .len = size};
        sent += rd_kafka_produce_batch(w->topic, p, 0, w->batch, n);
    }
    return sent;
}

static int send_transaction(struct writer *w) {
    int64_t began = now_ns();
    if (!succeeded(rd_kafka_begin_transaction(w->rk))) return 0;
    if (send_records(w, opt.size) != opt.transaction_records) return succeeded(rd_kafka_error_new(-1, "the queue is full"));
    rd_kafka_flush(w->rk, remaining_ms());
    int64_t flushed = now_ns();
    if (!succeeded(rd_kafka_commit_transaction(w->rk, remaining_ms()))) return 0;
    w->records_ns[w->transactions] = flushed - began;
    w->commit_ns[w->transactions++] = now_ns() - flushed;
    return 1;
}

static void open_transactions(struct writer *w) {
    rd_kafka_error_t *error = rd_kafka_init_transactions(w->rk, 20000);
    if (error) die("init_transactions: %s", rd_kafka_error_string(error));
    if (opt.size < 2) return;
    if ((error = rd_kafka_begin_transaction(w->rk))) die("begin_transaction: %s", rd_kafka_error_string(error));
    send_records(w, opt.size - 1);
    rd_kafka_flush(w->rk, remaining_ms());
    if ((error = rd_kafka_abort_transaction(w->rk, remaining_ms()))) die("abort: %s", rd_kafka_error_string(error));
}

static void send_plainly(struct writer *w) {
    while (now_ns() < run.stop_ns && delivery_errors + client_errors <= 1000) {
        if (rd_kafka_outq_len(w->rk) + opt.transaction_records > opt.window) {
            rd_kafka_poll(w->rk, 0);
            usleep(200);
        } else if (send_records(w, opt.size) == opt.transaction_records) {
            w->transactions++;
        } else {
            succeeded(rd_kafka_error_new(-1, "the queue is full"));
            break;
        }
    }
    while (rd_kafka_outq_len(w->rk) > 0 && now_ns() < run.limit_ns) rd_kafka_flush(w->rk, 50);
    int left = rd_kafka_outq_len(w->rk);
    if (left) count_errors(left, "not acknowledged within the time limit");
}

static void *write_all(void *opaque) {
    struct writer *w = opaque;
    if (!opt.plain) open_transactions(w);
    pthread_barrier_wait(&run.ready);
    pthread_barrier_wait(&run.ready); /* between the two the clock is set */
    if (opt.plain) send_plainly(w);
    else
        while (now_ns() < run.stop_ns && w->transactions < TRANSACTIONS_MAX && send_transaction(w)) {}
    return NULL;
}

static void open_writer(struct writer *w, int number) {
    char id[300];
    snprintf(id, sizeof id, "%s-%d", opt.topic, number);
    opt.idempotent = 1;
    w->rk = open_producer(&w->topic, NULL, opt.plain ? NULL : id);
    w->batch = calloc(opt.transaction_records, sizeof *w->batch);
    w->records_ns = malloc(TRANSACTIONS_MAX * sizeof *w->records_ns);
    w->commit_ns = malloc(TRANSACTIONS_MAX * sizeof *w->commit_ns);
    pthread_create(&w->thread, NULL, write_all, w);
}

void run_transactions(void) {
    struct writer *writers = calloc(opt.producers, sizeof *writers);
    run.payload = make_payload();
    if (!opt.window) opt.window = 100000000LL / opt.size / opt.producers;
    if (opt.window < 2 * opt.transaction_records) opt.window = 2 * opt.transaction_records;
    run.limit_ns = now_ns() + (int64_t)(opt.limit_s * 1e9); /* for the preparations; it is set anew for what is timed */
    pthread_barrier_init(&run.ready, NULL, opt.producers + 1);
    for (int i = 0; i < opt.producers; i++) open_writer(&writers[i], i);
    pthread_barrier_wait(&run.ready);
    double cpu_start = cpu_seconds();
    int64_t start = now_ns();
    run.stop_ns = start + (int64_t)(opt.seconds * 1e9), run.limit_ns = start + (int64_t)(opt.limit_s * 1e9);
    pthread_barrier_wait(&run.ready);
    for (int i = 0; i < opt.producers; i++) pthread_join(writers[i].thread, NULL);
    double elapsed = (now_ns() - start) / 1e9;

    long long total = 0, timed = 0;
    for (int i = 0; i < opt.producers; i++) total += writers[i].transactions;
    char more[256] = "";
    if (!opt.plain && total) {
        int64_t *commits = malloc(total * sizeof *commits), *records = malloc(total * sizeof *records);
        for (int i = 0; i < opt.producers; i++)
            for (long long t = 0; t < writers[i].transactions; t++, timed++)
                commits[timed] = writers[i].commit_ns[t], records[timed] = writers[i].records_ns[t];
        sort_ns(commits, total), sort_ns(records, total);
        snprintf(more, sizeof more,
                 ",\"transactions\":%lld,\"p50_ms\":%.4f,\"p99_ms\":%.4f,\"max_ms\":%.4f,\"records_p50_ms\":%.4f", total,
                 percentile_ms(commits, total, 0.50), percentile_ms(commits, total, 0.99), commits[total - 1] / 1e6,
                 percentile_ms(records, total, 0.50));
    }
    print_result(opt.plain ? "plain" : "transactions", total * opt.transaction_records, elapsed,
                 cpu_seconds() - cpu_start, more);
}
