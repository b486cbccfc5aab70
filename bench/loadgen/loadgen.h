/* What the modes of the load generator share: options, error counts, handles, the clock and the result. */
#ifndef LOADGEN_H
#define LOADGEN_H

#include <librdkafka/rdkafka.h>
#include <stdatomic.h>
#include <stdint.h>
#include <stdio.h>

struct options {
    const char *brokers, *topic, *acks;
    const char *ca;          /* the authority to trust; with it the client speaks TLS */
    const char *user;        /* logs in by SCRAM-SHA-256, with the password in LOADGEN_PASSWORD */
    int size, partitions, producers, connections, batch_messages, batch_bytes, max_in_flight;
    int fetch_bytes;         /* fetch.max.bytes of a consumer; 0 is the client's default */
    int idempotent;          /* sequences, so that the broker stores every record once */
    int transaction_records; /* of one transaction */
    int plain;               /* the shape of transactions without any */
    int markers;             /* offsets may be missing: the ends of transactions and what was aborted have some */
    long long count, rate, window;
    double seconds, limit_s, warmup_s, linger_ms;
};

typedef void (*report_cb)(rd_kafka_t *, const rd_kafka_message_t *, void *);

extern struct options opt;
extern _Atomic long long delivery_errors, client_errors; /* transactions count from several threads */

int64_t now_ns(void);
double cpu_seconds(void);
void die(const char *format, ...);
void count_errors(long long n, const char *text);
void sort_ns(int64_t *values, long long n);
double percentile_ms(const int64_t *sorted, long long n, double q);
void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *m, void *opaque);

void set(rd_kafka_conf_t *conf, const char *key, const char *format, ...);
rd_kafka_t *open_handle(rd_kafka_type_t type, rd_kafka_conf_t *conf, rd_kafka_topic_t **topic);
rd_kafka_t *open_producer(rd_kafka_topic_t **topic, report_cb on_each, const char *transactional_id);
char *make_payload(void);
void flush_all(rd_kafka_t **rk, int64_t limit_ns);
void print_result(const char *mode, long long messages, double seconds, double cpu_s, const char *more);

void run_produce(void);
void run_consume(void);
void run_latency(void);
void run_transactions(void);
void run_commits(void);

#endif
