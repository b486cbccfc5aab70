/* Open loop: records leave at a fixed rate whatever the broker does, and each is timed from when it was due. */
#include "loadgen.h"

#include <errno.h>
#include <pthread.h>
#include <stdlib.h>
#include <sys/prctl.h>
#include <time.h>
#include <unistd.h>

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

void run_latency(void) {
    rd_kafka_topic_t *topic;
    rd_kafka_t *rk = loop.rk = open_producer(&topic, on_timed_delivery, NULL);
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
    sort_ns(steady, n);
    char more[512];
    snprintf(more, sizeof more,
             ",\"rate\":%lld,\"samples\":%lld,\"late_sends\":%lld,\"mean_ms\":%.4f,\"p50_ms\":%.4f,\"p90_ms\":%.4f,"
             "\"p99_ms\":%.4f,\"p999_ms\":%.4f,\"max_ms\":%.4f",
             opt.rate, n, late, sum / n, percentile_ms(steady, n, 0.50), percentile_ms(steady, n, 0.90),
             percentile_ms(steady, n, 0.99), percentile_ms(steady, n, 0.999), steady[n - 1] / 1e6);
    print_result("latency", sent - delivery_errors, elapsed, cpu_seconds() - cpu_start, more);
}
