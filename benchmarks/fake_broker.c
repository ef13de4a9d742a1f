/* A Kafka broker that costs next to nothing: one thread, epoll, every body thrown away unread.
 *
 *     cc -std=c11 -O2 -o fake_broker fake_broker.c
 *     ./fake_broker [--port N] [--topics N] [--partitions N]
 *
 * Prints "listening 127.0.0.1:PORT" when it accepts connections and runs until SIGTERM, at which it
 * prints "at most N connections", the largest number that were open at once.
 * It lets in whoever logs in by OAUTHBEARER (SaslHandshake v1, SaslAuthenticate v0-v1, without an
 * announced lifetime), whatever the token, and who does not log in. As a broker without lifetimes it
 * closes a connection on which there is a second login. It answers ApiVersions v0-v4, Metadata v0-v13 (itself as the only broker, the configured topics
 * when all or some are asked for), Produce v3-v13 (success for one partition of as many topics as it
 * names, which it takes for the first ones; silence at acks=0), Fetch v12 (no topics, no session) and
 * v15-v18 (at once max_bytes of records for one partition of topic "bench"; a session for who asks for
 * one), Heartbeat v4 and
 * OffsetCommit v8-v9 (success for one partition of topic "bench"). Anything else closes the
 * connection, as does a Fetch that is not the next one of its session.
 */
#define _GNU_SOURCE
#include "wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <signal.h>
#include <stdbool.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <unistd.h>

enum {
    PREFIX_BYTES = 512,          /* of a frame are kept; enough for every field that is looked at */
    READ_BYTES = 256 * 1024,
    MAX_FRAME_BYTES = 104857600, /* socket.request.max.bytes */
    PRODUCE_VERSIONS = 14,
    FETCH_FIRST = 15, /* without replica_id */
    FETCH_LAST = 18,
    METADATA_LAST = 13,
    FETCH_BY_NAME = 12,
    API_VERSIONS_LAST = 4,
};

struct range {
    uint16_t key, min, max;
};

/* What a Kafka 4.1.0 broker listener advertises (ApiMessageType, listener BROKER, stable versions).
 * Produce says 0 although versions below 3 are refused: Kafka does so for old librdkafka
 * (KAFKA-18659). */
static const struct range API_RANGES[] = {
    {0, 0, 13},  {1, 4, 18}, {2, 1, 10}, {3, 0, 13}, {8, 2, 9},  {9, 1, 9},  {10, 0, 6}, {11, 0, 9},
    {12, 0, 4},  {13, 0, 5}, {14, 0, 5}, {15, 0, 6}, {16, 0, 5}, {17, 0, 1}, {18, 0, 4}, {19, 2, 7},
    {20, 1, 6},  {21, 0, 2}, {22, 0, 5}, {23, 2, 4}, {24, 0, 5}, {25, 0, 4}, {26, 0, 5}, {27, 1, 1},
    {28, 0, 5},  {29, 1, 3}, {30, 1, 3}, {31, 1, 3}, {32, 1, 4}, {33, 0, 2}, {34, 1, 2}, {35, 1, 4},
    {36, 0, 2},  {37, 0, 3}, {38, 1, 3}, {39, 1, 2}, {40, 1, 2}, {41, 1, 3}, {42, 0, 2}, {43, 0, 2},
    {44, 0, 1},  {45, 0, 1}, {46, 0, 0}, {47, 0, 0}, {48, 0, 1}, {49, 0, 1}, {50, 0, 0}, {51, 0, 0},
    {55, 0, 2},  {57, 0, 2}, {60, 0, 2}, {61, 0, 0}, {64, 0, 0}, {65, 0, 0}, {66, 0, 2}, {68, 0, 1},
    {69, 0, 1},  {71, 0, 0}, {72, 0, 0}, {74, 0, 1}, {75, 0, 0}, {76, 1, 1}, {77, 1, 1}, {78, 1, 1},
    {79, 1, 1},  {80, 0, 0}, {81, 0, 0}, {83, 0, 0}, {84, 0, 0}, {85, 0, 0}, {86, 0, 0}, {87, 0, 0},
    {90, 0, 0},  {91, 0, 0}, {92, 0, 0},
};
enum { API_COUNT = sizeof API_RANGES / sizeof *API_RANGES };

struct connection {
    int fd;
    uint32_t prefix_size; /* bytes of the current frame, its size field included, kept so far */
    uint32_t skip;        /* bytes of the current frame's body still to be thrown away */
    uint32_t session;     /* of its Fetches; 0: none yet */
    uint32_t next_epoch;  /* that this session expects */
    bool chose_mechanism; /* by a SaslHandshake */
    struct buffer unsent; /* what the socket did not take; normally never allocated */
    size_t unsent_offset;
    uint8_t prefix[PREFIX_BYTES];
};

static int epoll_fd;
static uint16_t port;
static uint32_t topic_count = 8, partition_count = 6;
static uint8_t read_buffer[READ_BYTES];
static struct buffer answers; /* to the frames of one read; they leave in one write */
static struct buffer produce_answers[PRODUCE_VERSIONS][MAX_TOPICS + 1]; /* made at first use */
static struct buffer heartbeat_answer, commit_answer;
static struct {
    struct buffer frame;
    size_t session_at;
    uint32_t version, max_bytes; /* that it answers: all Fetches of a run are the same in these */
} fetch_answer;
static uint32_t last_session, open_connections, most_connections;
static volatile sig_atomic_t stopped;
static struct buffer metadata_answers[METADATA_LAST + 1][2]; /* [version][with topics] */

/* --- answers --------------------------------------------------------------------------------- */

static void put_api_versions(struct buffer *b, uint32_t correlation_id, unsigned version)
{
    bool known = version <= API_VERSIONS_LAST;
    bool flexible = known && version >= API_VERSIONS_FIRST_FLEXIBLE;
    size_t start = frame_begin(b);
    put32(b, correlation_id); /* response header v0, whatever the version */
    put16(b, known ? 0 : UNSUPPORTED_VERSION);
    put_array(b, flexible, known ? API_COUNT : 1);
    for (size_t i = 0; i < API_COUNT; i++) {
        if (!known && API_RANGES[i].key != API_VERSIONS)
            continue;
        put16(b, API_RANGES[i].key), put16(b, API_RANGES[i].min), put16(b, API_RANGES[i].max);
        put_tags(b, flexible);
    }
    if (known && version >= 1)
        put32(b, 0); /* throttle_time_ms */
    put_tags(b, flexible);
    frame_end(b, start);
}

static void put_produced_topic(struct buffer *b, unsigned version, uint32_t number)
{
    bool flexible = version >= PRODUCE_FIRST_FLEXIBLE;
    if (version >= PRODUCE_FIRST_WITH_TOPIC_IDS)
        put_topic_id(b, number);
    else
        put_topic_name(b, flexible, number);
    put_array(b, flexible, 1);
    put32(b, 0), put16(b, 0);             /* index, error_code */
    put64(b, 0), put64(b, UINT64_MAX);    /* base_offset, log_append_time_ms */
    if (version >= 5)
        put64(b, 0); /* log_start_offset */
    if (version >= 8)
        put_array(b, flexible, 0), put_null_string(b, flexible); /* record_errors, error_message */
    put_tags(b, flexible), put_tags(b, flexible);
}

static void put_produce(struct buffer *b, unsigned version, uint32_t topics)
{
    bool flexible = version >= PRODUCE_FIRST_FLEXIBLE;
    size_t start = frame_begin(b);
    put32(b, 0);
    put_tags(b, flexible);
    put_array(b, flexible, topics);
    for (uint32_t i = 0; i < topics; i++)
        put_produced_topic(b, version, i);
    put32(b, 0); /* throttle_time_ms */
    put_tags(b, flexible);
    frame_end(b, start);
}

static void put_empty_fetch(struct buffer *b, uint32_t correlation_id)
{
    size_t start = frame_begin(b);
    put32(b, correlation_id), put_tags(b, true);
    put32(b, 0), put16(b, 0), put32(b, 0); /* throttle_time_ms, error_code, session_id */
    put_array(b, true, 0), put_tags(b, true);
    frame_end(b, start);
}

static void build_fetch(unsigned version, uint32_t max_bytes)
{
    struct buffer *b = &fetch_answer.frame;
    fetch_answer.version = version, fetch_answer.max_bytes = max_bytes;
    b->size = 0;
    size_t start = frame_begin(b);
    put32(b, 0), put_tags(b, true);
    put32(b, 0), put16(b, 0); /* throttle_time_ms, error_code */
    fetch_answer.session_at = b->size;
    put32(b, 0);
    put_array(b, true, 1), put_topic_id(b, 0);
    put_array(b, true, 1), put32(b, 0), put16(b, 0);      /* index, error_code */
    put64(b, INT64_MAX), put64(b, INT64_MAX), put64(b, 0); /* high watermark, last stable, start */
    put_varint(b, 0), put32(b, UINT32_MAX);               /* nothing aborted, no preferred replica */
    put_varint(b, max_bytes + 1);
    memset(buffer_room(b, max_bytes), 'x', max_bytes);
    put_tags(b, true), put_tags(b, true), put_tags(b, true);
    frame_end(b, start);
}

static void put_heartbeat(struct buffer *b)
{
    size_t start = frame_begin(b);
    put32(b, 0), put_tags(b, true);
    put32(b, 0), put16(b, 0), put_tags(b, true); /* throttle_time_ms, error_code */
    frame_end(b, start);
}

static void put_commit(struct buffer *b)
{
    size_t start = frame_begin(b);
    put32(b, 0), put_tags(b, true);
    put32(b, 0); /* throttle_time_ms */
    put_array(b, true, 1), put_topic_name(b, true, 0);
    put_array(b, true, 1), put32(b, 0), put16(b, 0); /* index, error_code */
    put_tags(b, true), put_tags(b, true), put_tags(b, true);
    frame_end(b, start);
}

static void put_partition(struct buffer *b, unsigned version, uint32_t index)
{
    bool flexible = version >= METADATA_FIRST_FLEXIBLE;
    put16(b, 0), put32(b, index), put32(b, 1); /* error_code, partition_index, leader_id */
    if (version >= 7)
        put32(b, 0); /* leader_epoch */
    put_array(b, flexible, 1), put32(b, 1); /* replica_nodes */
    put_array(b, flexible, 1), put32(b, 1); /* isr_nodes */
    if (version >= 5)
        put_array(b, flexible, 0); /* offline_replicas */
    put_tags(b, flexible);
}

static void put_topic(struct buffer *b, unsigned version, uint32_t number)
{
    bool flexible = version >= METADATA_FIRST_FLEXIBLE;
    put16(b, 0); /* error_code */
    put_topic_name(b, flexible, number);
    if (version >= 10)
        put_topic_id(b, number);
    if (version >= 1)
        put8(b, 0); /* is_internal */
    put_array(b, flexible, partition_count);
    for (uint32_t i = 0; i < partition_count; i++)
        put_partition(b, version, i);
    if (version >= 8)
        put32(b, 0x80000000); /* topic_authorized_operations: not asked for */
    put_tags(b, flexible);
}

static void put_metadata(struct buffer *b, unsigned version, bool with_topics)
{
    bool flexible = version >= METADATA_FIRST_FLEXIBLE;
    size_t start = frame_begin(b);
    put32(b, 0);
    put_tags(b, flexible);
    if (version >= 3)
        put32(b, 0); /* throttle_time_ms */
    put_array(b, flexible, 1);
    put32(b, 1), put_string(b, flexible, "127.0.0.1"), put32(b, port);
    if (version >= 1)
        put_null_string(b, flexible); /* rack */
    put_tags(b, flexible);
    if (version >= 2)
        put_string(b, flexible, "fake-broker-cluster-id"); /* 22 characters, as Kafka's */
    if (version >= 1)
        put32(b, 1); /* controller_id */
    uint32_t topics = with_topics ? topic_count : 0;
    put_array(b, flexible, topics);
    for (uint32_t i = 0; i < topics; i++)
        put_topic(b, version, i);
    if (version >= 8 && version <= 10)
        put32(b, 0x80000000); /* cluster_authorized_operations: not asked for */
    if (version >= 13)
        put16(b, 0); /* error_code */
    put_tags(b, flexible);
    frame_end(b, start);
}

static void build_answers(void)
{
    put_heartbeat(&heartbeat_answer);
    put_commit(&commit_answer);
    for (unsigned v = 0; v <= METADATA_LAST; v++)
        for (int with_topics = 0; with_topics < 2; with_topics++)
            put_metadata(&metadata_answers[v][with_topics], v, with_topics);
}

/* --- requests -------------------------------------------------------------------------------- */

static void answer_with(const struct buffer *prepared, uint32_t correlation_id)
{
    size_t start = answers.size;
    put_bytes(&answers, prepared->data, prepared->size);
    set32(answers.data + start + 4, correlation_id);
}

/* Length of the fields between correlation id and body: client id and, if flexible, the tags. */
static size_t skip_client_id(const uint8_t *p, bool flexible)
{
    uint16_t n = get16(p);
    return 2 + (n == 0xffff ? 0 : n) + (flexible ? 1 : 0);
}

static bool answer_produce(const uint8_t *p, size_t n, unsigned version, uint32_t correlation_id)
{
    if (version < 3 || version >= PRODUCE_VERSIONS)
        return false;
    bool flexible = version >= PRODUCE_FIRST_FLEXIBLE;
    size_t at = skip_client_id(p, flexible);
    if (at + 4 > n)
        return false;
    if (flexible)
        at += p[at] ? p[at] : 1; /* transactional_id: short, so its varint is one byte */
    else
        at += 2 + (get16(p + at) == 0xffff ? 0 : get16(p + at));
    if (at + 10 > n)
        return false;
    uint32_t acks = get16(p + at), topics = flexible ? p[at + 6] - 1u : get32(p + at + 6);
    if (topics > MAX_TOPICS)
        return false;
    struct buffer *prepared = &produce_answers[version][topics];
    if (!prepared->size)
        put_produce(prepared, version, topics);
    if (acks != 0)
        answer_with(prepared, correlation_id);
    return true;
}

/* Whether a Fetch is one without a session, the first of one, or the next of the connection's. */
static bool in_session(struct connection *c, uint32_t session, uint32_t epoch)
{
    if (epoch == FINAL_EPOCH) {
        c->session = 0;
    } else if (epoch == INITIAL_EPOCH) {
        c->session = ++last_session;
        c->next_epoch = 1;
    } else {
        return session == c->session && epoch == c->next_epoch++;
    }
    return true;
}

static bool answer_fetch(struct connection *c, const uint8_t *p, size_t n, unsigned version,
                         uint32_t correlation_id)
{
    size_t at = skip_client_id(p, true) + 8; /* max_wait_ms, min_bytes */
    if (version < FETCH_FIRST || version > FETCH_LAST || at + 13 > n)
        return false;
    uint32_t max_bytes = get32(p + at);
    at += 4 + 1; /* isolation_level */
    if (max_bytes > MAX_FRAME_BYTES || !in_session(c, get32(p + at), get32(p + at + 4)))
        return false;
    if (fetch_answer.version != version || fetch_answer.max_bytes != max_bytes)
        build_fetch(version, max_bytes);
    set32(fetch_answer.frame.data + fetch_answer.session_at, c->session);
    answer_with(&fetch_answer.frame, correlation_id);
    return true;
}

static bool answer_metadata(const uint8_t *p, size_t n, unsigned version, uint32_t correlation_id)
{
    if (version > METADATA_LAST)
        return false;
    bool flexible = version >= METADATA_FIRST_FLEXIBLE;
    size_t at = skip_client_id(p, flexible);
    if (at + (flexible ? 1 : 4) > n)
        return false;
    /* All topics are null since v1, and were an empty array in v0. */
    bool none = flexible ? p[at] == 1 : version > 0 && get32(p + at) == 0;
    answer_with(&metadata_answers[version][!none], correlation_id);
    return true;
}

static bool answer_handshake(struct connection *c, unsigned version, uint32_t correlation_id)
{
    if (version != 1 || c->chose_mechanism)
        return false;
    c->chose_mechanism = true;
    size_t start = frame_begin(&answers);
    put32(&answers, correlation_id);
    put16(&answers, 0), put_array(&answers, false, 1), put_string(&answers, false, "OAUTHBEARER");
    frame_end(&answers, start);
    return true;
}

static bool answer_authenticate(struct connection *c, unsigned version, uint32_t correlation_id)
{
    if (version > 1 || !c->chose_mechanism)
        return false;
    size_t start = frame_begin(&answers);
    put32(&answers, correlation_id);
    put16(&answers, 0), put_null_string(&answers, false); /* error_code, error_message */
    put32(&answers, 0);                                   /* auth_bytes */
    if (version == 1)
        put64(&answers, 0); /* session_lifetime_ms */
    frame_end(&answers, start);
    return true;
}

/* One request: `p` is what was kept of it, without the size field. */
static bool answer(struct connection *c, const uint8_t *p, size_t n)
{
    if (n < 10)
        return false;
    unsigned api_key = get16(p), version = get16(p + 2);
    uint32_t correlation_id = get32(p + 4);
    p += 8, n -= 8;
    switch (api_key) {
    case API_PRODUCE:
        return answer_produce(p, n, version, correlation_id);
    case API_FETCH:
        if (version == FETCH_BY_NAME) {
            put_empty_fetch(&answers, correlation_id);
            return true;
        }
        return answer_fetch(c, p, n, version, correlation_id);
    case API_HEARTBEAT:
        answer_with(&heartbeat_answer, correlation_id);
        return version == 4;
    case API_OFFSET_COMMIT:
        answer_with(&commit_answer, correlation_id);
        return version == 8 || version == 9;
    case API_METADATA:
        return answer_metadata(p, n, version, correlation_id);
    case API_VERSIONS:
        put_api_versions(&answers, correlation_id, version);
        return true;
    case API_SASL_HANDSHAKE:
        return answer_handshake(c, version, correlation_id);
    case API_SASL_AUTHENTICATE:
        return answer_authenticate(c, version, correlation_id);
    default:
        return false;
    }
}

static uint32_t min_size(uint32_t a, uint32_t b)
{
    return a < b ? a : b;
}

/* Keeps the next bytes of the current frame's first `wanted`; returns how many were taken. */
static uint32_t keep(struct connection *c, uint32_t wanted, const uint8_t *p, uint32_t n)
{
    uint32_t taken = min_size(wanted - c->prefix_size, n);
    memcpy(c->prefix + c->prefix_size, p, taken);
    c->prefix_size += taken;
    return taken;
}

/* A request is answered when its last byte has arrived, as a broker would. */
static bool consume(struct connection *c, const uint8_t *p, uint32_t n)
{
    while (n) {
        uint32_t taken;
        if (c->skip) {
            taken = min_size(c->skip, n);
            c->skip -= taken;
        } else if (c->prefix_size < 4) {
            taken = keep(c, 4, p, n);
        } else {
            uint32_t kept = min_size(4 + get32(c->prefix), PREFIX_BYTES);
            taken = keep(c, kept, p, n);
            if (c->prefix_size == kept)
                c->skip = 4 + get32(c->prefix) - kept;
        }
        p += taken, n -= taken;
        if (c->prefix_size < 4)
            continue;
        uint32_t size = get32(c->prefix);
        if (size < 10 || size > MAX_FRAME_BYTES)
            return false;
        if (c->skip == 0 && c->prefix_size == min_size(4 + size, PREFIX_BYTES)) {
            if (!answer(c, c->prefix + 4, c->prefix_size - 4))
                return false;
            c->prefix_size = 0;
        }
    }
    return true;
}

/* --- sockets --------------------------------------------------------------------------------- */

static void watch(struct connection *c, int operation, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = c};
    if (epoll_ctl(epoll_fd, operation, c->fd, &event) < 0)
        die("epoll_ctl");
}

static void close_connection(struct connection *c)
{
    open_connections--;
    close(c->fd);
    free(c->unsent.data);
    free(c);
}

static bool send_answers(struct connection *c)
{
    ssize_t sent = send(c->fd, answers.data, answers.size, MSG_NOSIGNAL);
    if (sent < 0 && errno != EAGAIN)
        return false;
    size_t done = sent < 0 ? 0 : (size_t)sent;
    if (done < answers.size) {
        /* Stop reading until the client takes its answers: nothing grows without bound. */
        c->unsent.size = c->unsent_offset = 0;
        put_bytes(&c->unsent, answers.data + done, answers.size - done);
        watch(c, EPOLL_CTL_MOD, EPOLLOUT);
    }
    return true;
}

static bool on_readable(struct connection *c)
{
    ssize_t n = recv(c->fd, read_buffer, sizeof read_buffer, 0);
    if (n < 0)
        return errno == EAGAIN;
    answers.size = 0;
    if (n == 0 || !consume(c, read_buffer, (uint32_t)n))
        return false;
    return answers.size == 0 || send_answers(c);
}

static bool on_writable(struct connection *c)
{
    ssize_t n = send(c->fd, c->unsent.data + c->unsent_offset, c->unsent.size - c->unsent_offset,
                     MSG_NOSIGNAL);
    if (n < 0)
        return errno == EAGAIN;
    c->unsent_offset += (size_t)n;
    if (c->unsent_offset == c->unsent.size)
        watch(c, EPOLL_CTL_MOD, EPOLLIN);
    return true;
}

static void accept_all(int listener)
{
    int fd, one = 1;
    while ((fd = accept4(listener, NULL, NULL, SOCK_NONBLOCK | SOCK_CLOEXEC)) >= 0) {
        struct connection *c = calloc(1, sizeof *c);
        if (!c)
            die("calloc");
        setsockopt(fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
        c->fd = fd;
        watch(c, EPOLL_CTL_ADD, EPOLLIN);
        if (++open_connections > most_connections)
            most_connections = open_connections;
    }
    if (errno != EAGAIN && errno != ECONNABORTED)
        die("accept");
}

static int listen_on_loopback(void)
{
    int fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0), one = 1;
    struct sockaddr_in address = {.sin_family = AF_INET, .sin_port = htons(port),
                                  .sin_addr.s_addr = htonl(INADDR_LOOPBACK)};
    socklen_t size = sizeof address;
    setsockopt(fd, SOL_SOCKET, SO_REUSEADDR, &one, sizeof one);
    if (bind(fd, (struct sockaddr *)&address, size) < 0 || listen(fd, 4096) < 0 ||
        getsockname(fd, (struct sockaddr *)&address, &size) < 0)
        die("listen");
    port = ntohs(address.sin_port);
    return fd;
}

static void parse_arguments(int argc, char **argv)
{
    for (int i = 1; i + 1 < argc; i += 2) {
        uint32_t value = (uint32_t)strtoul(argv[i + 1], NULL, 10);
        if (!strcmp(argv[i], "--port"))
            port = (uint16_t)value;
        else if (!strcmp(argv[i], "--topics"))
            topic_count = value;
        else if (!strcmp(argv[i], "--partitions"))
            partition_count = value;
        else
            argc = 0;
    }
    if (argc % 2 == 0) {
        fprintf(stderr, "usage: fake_broker [--port N] [--topics N] [--partitions N]\n");
        exit(2);
    }
}

static void stop(int signal_number)
{
    (void)signal_number;
    stopped = 1;
}

int main(int argc, char **argv)
{
    parse_arguments(argc, argv);
    struct sigaction action = {.sa_handler = stop};
    sigaction(SIGTERM, &action, NULL);
    raise_descriptor_limit();
    int listener = listen_on_loopback();
    build_answers();
    if ((epoll_fd = epoll_create1(EPOLL_CLOEXEC)) < 0)
        die("epoll_create1");
    struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL}, events[256];
    if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, listener, &event) < 0)
        die("epoll_ctl");
    printf("listening 127.0.0.1:%u\n", port);
    fflush(stdout);
    while (!stopped) {
        int n = epoll_wait(epoll_fd, events, 256, -1);
        if (n < 0 && errno != EINTR)
            die("epoll_wait");
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (!c)
                accept_all(listener);
            else if (!(events[i].events & EPOLLOUT ? on_writable(c) : on_readable(c)))
                close_connection(c);
        }
    }
    printf("at most %u connections\n", most_connections);
    return 0;
}
