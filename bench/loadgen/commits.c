/* Offset commits: each connection is a group of its own and commits one offset after the other, as a consumer does.
 *
 * No client library: requests are encoded once and only offset and correlation id change, so that the broker's limit is
 * found before the generator's. Commits come from outside a membership (no member id, generation -1), which brokers
 * accept for groups that have no members. A commit counts when its answer is here. At the end every group's offset is
 * fetched: it must be the last one that was acknowledged.
 */
#include "loadgen.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/tcp.h>
#include <stdlib.h>
#include <string.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum { FIND_COORDINATOR = 10, OFFSET_COMMIT = 8, OFFSET_FETCH = 9, FRAME_MAX = 1024, NAME_MAX_BYTES = 100 };
enum { COORDINATOR_LOADING = 14, COORDINATOR_ABSENT = 15, NOT_COORDINATOR = 16 }; /* all of which pass */

struct frame {
    unsigned char data[FRAME_MAX];
    size_t size;
};

struct connection {
    int fd, partition;
    char group[2 * NAME_MAX_BYTES];
    struct frame request, response;
    size_t offset_at; /* where in the request the offset is */
    int32_t correlation;
    int64_t sent_ns, committed;
    int is_waiting;
};

static int port_number;

/* -- encoding ------------------------------------------------------------------------------------------------------ */

static void put(struct frame *f, int64_t value, int bytes) {
    for (int i = bytes - 1; i >= 0; i--) f->data[f->size++] = (unsigned char)(value >> (8 * i));
}

static int64_t get(const struct frame *f, size_t at, int bytes) {
    if (at + bytes > f->size) die("the broker's answer is cut short");
    int64_t value = (signed char)f->data[at];
    for (int i = 1; i < bytes; i++) value = value << 8 | f->data[at + i];
    return value;
}

static void put_text(struct frame *f, const char *text) {
    size_t n = strlen(text);
    put(f, n, 2);
    memcpy(f->data + f->size, text, n), f->size += n;
}

static void put_compact(struct frame *f, const char *text) { /* texts here are below 127 bytes: one byte of length */
    size_t n = strlen(text);
    put(f, n + 1, 1);
    memcpy(f->data + f->size, text, n), f->size += n;
}

static void begin(struct frame *f, int key, int version) {
    f->size = 4;
    put(f, key, 2), put(f, version, 2), put(f, 0, 4);
    put_text(f, "bench");
}

static void patch(struct frame *f, size_t at, int64_t value, int bytes) {
    size_t size = f->size;
    f->size = at;
    put(f, value, bytes);
    f->size = size;
}

static void end(struct frame *f) { patch(f, 0, f->size - 4, 4); }

/* -- one request at a time, for what is not measured --------------------------------------------------------------- */

static void send_frame(struct connection *c, struct frame *f) {
    patch(f, 8, ++c->correlation, 4);
    if (send(c->fd, f->data, f->size, MSG_NOSIGNAL) != (ssize_t)f->size) die("sending failed: %s", strerror(errno));
    c->response.size = 0;
}

/* Takes what has come; whether the answer is whole. */
static int receive(struct connection *c, int flags) {
    struct frame *r = &c->response;
    size_t wanted = r->size < 4 ? 4 : 4 + (size_t)get(r, 0, 4);
    if (r->size < 4) wanted = FRAME_MAX;
    if (wanted > FRAME_MAX) die("an answer of %zu bytes", wanted);
    ssize_t n = recv(c->fd, r->data + r->size, wanted - r->size, flags);
    if (n == 0) die("the broker closed the connection");
    if (n < 0 && errno != EAGAIN && errno != EINTR) die("receiving failed: %s", strerror(errno));
    if (n > 0) r->size += n;
    if (r->size < 4 || r->size < 4 + (size_t)get(r, 0, 4)) return 0;
    if (r->size > 4 + (size_t)get(r, 0, 4)) die("an answer to nothing");
    if (get(r, 4, 4) != c->correlation) die("an answer to another request");
    return 1;
}

static void exchange(struct connection *c, struct frame *f) {
    send_frame(c, f);
    while (!receive(c, 0)) {}
}

static void open_connection(struct connection *c, int number, const struct sockaddr_in *address) {
    int on = 1;
    c->fd = socket(AF_INET, SOCK_STREAM, 0);
    if (c->fd < 0 || connect(c->fd, (const struct sockaddr *)address, sizeof *address)) die("connect: %s", strerror(errno));
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &on, sizeof on);
    struct timeval limit = {.tv_sec = (time_t)opt.limit_s + 1};
    setsockopt(c->fd, SOL_SOCKET, SO_RCVTIMEO, &limit, sizeof limit);
    c->partition = number % opt.partitions;
    snprintf(c->group, sizeof c->group, "%s-%d", opt.topic, number);

    struct frame *f = &c->request; /* OffsetCommit version 8: one partition of one topic */
    begin(f, OFFSET_COMMIT, 8);
    put(f, 0, 1);
    put_compact(f, c->group), put(f, -1, 4), put_compact(f, ""), put(f, 0, 1);
    put(f, 2, 1), put_compact(f, opt.topic);
    put(f, 2, 1), put(f, c->partition, 4);
    c->offset_at = f->size;
    put(f, 0, 8), put(f, -1, 4), put_compact(f, "");
    put(f, 0, 3); /* no tags of partition, topic and request */
    end(f);
}

/* Length, correlation id, tags, throttle time, one topic, its name, one partition, its index: then the error. */
static int commit_error(const struct connection *c) {
    size_t at = 4 + 4 + 1 + 4 + 1 + 1 + strlen(opt.topic) + 1 + 4;
    if (c->response.size != at + 2 + 3) die("a commit's answer has %zu bytes, not %zu", c->response.size, at + 5);
    return (int)get(&c->response, at, 2);
}

static void send_commit(struct connection *c) {
    patch(&c->request, c->offset_at, c->committed + 1, 8);
    c->is_waiting = 1;
    c->sent_ns = now_ns();
    send_frame(c, &c->request);
}

static int is_passing(int error) {
    return error == COORDINATOR_LOADING || error == COORDINATOR_ABSENT || error == NOT_COORDINATOR;
}

/* The group's coordinator is there, it is this node, and it takes a commit. */
static void await_coordinator(struct connection *c, int64_t limit_ns) {
    struct frame find = {.size = 0};
    begin(&find, FIND_COORDINATOR, 1);
    put_text(&find, c->group), put(&find, 0, 1);
    end(&find);
    int error = 0;
    do {
        if (error) usleep(50000);
        exchange(c, &find);
        if (!(error = (int)get(&c->response, 12, 2))) {
            size_t at = 14, message = (size_t)get(&c->response, at, 2) & 0xffff;
            at += 2 + (message == 0xffff ? 0 : message) + 4;
            at += 2 + (size_t)get(&c->response, at, 2);
            if (get(&c->response, at, 4) != port_number) die("the coordinator is another node");
            send_commit(c);
            while (!receive(c, 0)) {}
            if (!(error = commit_error(c))) c->committed++;
        }
    } while (is_passing(error) && now_ns() < limit_ns);
    if (error) die("the first commit of %s failed with error %d", c->group, error);
    c->is_waiting = 0;
}

/* Whether the broker knows the offset that it acknowledged last. OffsetFetch version 5. */
static int is_kept(struct connection *c) {
    struct frame fetch = {.size = 0};
    begin(&fetch, OFFSET_FETCH, 5);
    put_text(&fetch, c->group), put(&fetch, 1, 4), put_text(&fetch, opt.topic), put(&fetch, 1, 4), put(&fetch, c->partition, 4);
    end(&fetch);
    exchange(c, &fetch);
    size_t at = 4 + 4 + 4 + 4 + 2 + strlen(opt.topic) + 4 + 4;
    return get(&c->response, at, 8) == c->committed;
}

/* -- the measurement ----------------------------------------------------------------------------------------------- */

static void on_answer(struct connection *c) {
    c->is_waiting = 0;
    int error = commit_error(c);
    if (!error) c->committed++;
    else {
        char text[64];
        snprintf(text, sizeof text, "a commit failed with error %d", error);
        count_errors(1, text);
    }
}

void run_commits(void) {
    char host[64];
    if (strlen(opt.topic) > NAME_MAX_BYTES) die("the topic's name is too long");
    if (sscanf(opt.brokers, "%63[^:]:%d", host, &port_number) != 2) die("%s: expected host:port", opt.brokers);
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port_number)};
    if (inet_pton(AF_INET, host, &address.sin_addr) != 1) die("%s: expected an IPv4 address", host);
    struct connection *all = calloc(opt.connections, sizeof *all);
    int poll_fd = epoll_create1(0), waiting = 0;
    int64_t limit = now_ns() + (int64_t)(opt.limit_s * 1e9);
    for (int i = 0; i < opt.connections; i++) {
        open_connection(&all[i], i, &address);
        await_coordinator(&all[i], limit);
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = &all[i]};
        epoll_ctl(poll_fd, EPOLL_CTL_ADD, all[i].fd, &event);
    }
    long long room = 4000000, answered = 0;
    int64_t *latency_ns = malloc(room * sizeof *latency_ns);
    struct epoll_event events[256];

    int64_t start = now_ns() + (int64_t)(opt.warmup_s * 1e9), stop = start + (int64_t)(opt.seconds * 1e9);
    double cpu_start = cpu_seconds();
    limit = stop + (int64_t)(opt.limit_s * 1e9);
    for (int i = 0; i < opt.connections; i++) send_commit(&all[i]), waiting++;
    while (waiting && now_ns() < limit && delivery_errors < 1000) {
        int n = epoll_wait(poll_fd, events, 256, 100);
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (!receive(c, MSG_DONTWAIT)) continue;
            int64_t now = now_ns();
            on_answer(c);
            if (now >= start && now < stop && answered < room) latency_ns[answered++] = now - c->sent_ns;
            if (now < stop) send_commit(c);
            else waiting--;
        }
    }
    double cpu_s = cpu_seconds() - cpu_start; /* with those of the warm-up */
    if (waiting) count_errors(waiting, "commits without an answer");
    for (int i = 0; i < opt.connections; i++)
        if (!all[i].is_waiting && !is_kept(&all[i])) count_errors(1, "an acknowledged commit is lost");
    sort_ns(latency_ns, answered);
    char more[256] = "";
    if (answered)
        snprintf(more, sizeof more, ",\"connections\":%d,\"p50_ms\":%.4f,\"p99_ms\":%.4f,\"max_ms\":%.4f", opt.connections,
                 percentile_ms(latency_ns, answered, 0.50), percentile_ms(latency_ns, answered, 0.99),
                 latency_ns[answered - 1] / 1e6);
    opt.size = (int)all[0].request.size;
    print_result("commits", answered, opt.seconds, cpu_s, more);
}
