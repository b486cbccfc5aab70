/* What the modes of the load generator share: options, error counts, handles, the clock and the result. */
#ifndef LOADGEN_H
#define LOADGEN_H

#include <librdkafka/rdkafka.h>
#include <stdint.h>
#include <stdio.h>

struct options {
    const char *brokers, *topic, *acks;
    int size, partitions, producers, batch_messages, batch_bytes, max_in_flight;
    long long count, rate, window;
    double seconds, limit_s, warmup_s, linger_ms;
};

typedef void (*report_cb)(rd_kafka_t *, const rd_kafka_message_t *, void *);

extern struct options opt;
extern long long delivery_errors, client_errors;

int64_t now_ns(void);
double cpu_seconds(void);
void die(const char *format, ...);
void remember_error(const char *text);
void on_delivery(rd_kafka_t *rk, const rd_kafka_message_t *m, void *opaque);

void set(rd_kafka_conf_t *conf, const char *key, const char *format, ...);
rd_kafka_t *open_handle(rd_kafka_type_t type, rd_kafka_conf_t *conf, rd_kafka_topic_t **topic);
rd_kafka_t *open_producer(rd_kafka_topic_t **topic, report_cb on_each);
char *make_payload(void);
void flush_all(rd_kafka_t **rk, int64_t limit_ns);
void print_result(const char *mode, long long messages, double seconds, double cpu_s, const char *more);

void run_produce(void);
void run_consume(void);
void run_latency(void);

#endif
