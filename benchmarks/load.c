/* A load generator for Kafka listeners: one thread, epoll, no decoding but what it must check.
 *
 *     cc -std=c11 -O2 -o load load.c -lssl -lcrypto
 *     ./load MODE --target HOST:PORT [options]
 *
 * Every connection begins with ApiVersions v3 and, unless --mechanism is none, SaslHandshake v1 and
 * SaslAuthenticate v1; with --tls-ca all of it is in TLS, with --tls-resume yes every connection
 * but the first ones resumes an earlier session. Modes:
 *
 *     relay   keeps --in-flight requests under way on each of --connections, for --seconds;
 *             --requests says which (see requests.h), --payload how many bytes of records each
 *             sends or is answered
 *     auth    connect, authenticate, close, over and over, --connections at a time, for --seconds
 *     idle    opens and authenticates --connections and holds them until stdin is closed
 *     reauth  opens --connections evenly over --seconds; each re-authenticates at 90 % of the
 *             lifetime it was told (as librdkafka does), so these are spread like the logins, and
 *             then must get a request answered
 *
 * Prints one line of JSON when what is to be measured begins ("start"; in mode idle: "ready") and
 * one when it has ended ("end"). Exit status: 0 done, 1 it could not be done, 2 usage.
 */
#define _GNU_SOURCE
#include "histogram.h"
#include "requests.h"
#include "scram.h"
#include "tls.h"
#include "wire.h"

#include <arpa/inet.h>
#include <errno.h>
#include <netinet/in.h>
#include <netinet/tcp.h>
#include <sys/epoll.h>
#include <sys/socket.h>
#include <time.h>
#include <unistd.h>

enum {
    KEPT_BYTES = 2048, /* of each response: more than any that is read to its end */
    READ_BYTES = 256 * 1024,
    LOGINS_AT_ONCE = 64,
};

enum state {
    CLOSED,
    CONNECTING,
    SHAKING_HANDS, /* of TLS */
    API_VERSIONS_SENT,
    HANDSHAKE_SENT,
    FIRST_SENT,
    FINAL_SENT,
    SESSION_ASKED, /* a fetch session */
    READY,
};
enum mode { RELAY, AUTH, IDLE, REAUTH };

static const char *const MODES[] = {"relay", "auth", "idle", "reauth"};
static const uint64_t SECOND = 1000000000ULL;

struct connection {
    int fd;
    SSL *ssl; /* NULL: without TLS */
    enum state state;
    bool reauthenticating, waiting_to_write;
    uint32_t kept, skip;             /* of the current response */
    uint32_t next_id, expected_id;   /* correlation ids: to send, to receive */
    uint32_t session, epoch;         /* of its Fetches: id, and the next one's epoch */
    uint64_t offset;                 /* of the next request that has one */
    uint32_t to_send;                /* requests not yet wholly written */
    size_t sent_of_current;          /* bytes of the first of them; with TLS 0 until it is sent */
    uint64_t began, expires, reauth_at; /* ns */
    uint64_t *sent_at;               /* ns, by correlation id modulo in_flight */
    struct scram scram;
    uint8_t response[KEPT_BYTES + 1];
};

static struct {
    enum mode mode;
    struct sockaddr_in target;
    char host[64];
    const char *mechanism, *user, *ca_file, *requests;
    char *password, *token;
    uint32_t connections, in_flight, payload, topics, produce_version;
    double seconds, warm_up, timeout;
} options = {.mechanism = "none", .user = "bench", .requests = "produce", .connections = 1,
             .in_flight = 1, .payload = 100, .topics = 1, .produce_version = 9, .seconds = 5,
             .warm_up = 0.2, .timeout = 120};

static int epoll_fd;
static uint64_t now, started, measure_from, measure_until, last_at;
static struct connection *connections;
static uint32_t opened, opening, ready, done, errors, reauthenticated, late, answered, resumed;
static uint32_t *reauth_order; /* connections in the order of their logins */
static uint32_t reauth_head, reauth_tail;
static bool measuring, finished;
static uint64_t session_lifetime_ms;
static struct histogram latencies;
static struct scram_keys keys;
static struct buffer request;
static uint8_t read_buffer[READ_BYTES];

static uint64_t read_clock(void)
{
    struct timespec t;
    clock_gettime(CLOCK_MONOTONIC, &t);
    return now = (uint64_t)t.tv_sec * SECOND + (uint64_t)t.tv_nsec;
}

static uint64_t after(uint64_t from, double seconds)
{
    return from + (uint64_t)(seconds * (double)SECOND);
}

/* --- one connection's socket ----------------------------------------------------------------- */

static void watch(struct connection *c, int operation, uint32_t events)
{
    struct epoll_event event = {.events = events, .data.ptr = c};
    if (epoll_ctl(epoll_fd, operation, c->fd, &event) < 0)
        die("epoll_ctl");
}

static ssize_t transmit(struct connection *c, const void *data, size_t size)
{
    return c->ssl ? tls_send(c->ssl, data, size) : send(c->fd, data, size, MSG_NOSIGNAL);
}

static ssize_t receive(struct connection *c)
{
    return c->ssl ? tls_receive(c->ssl, read_buffer, sizeof read_buffer)
                  : recv(c->fd, read_buffer, sizeof read_buffer, 0);
}

static void close_connection(struct connection *c)
{
    if (c->ssl)
        tls_close(c->ssl);
    close(c->fd);
    if (c->state < READY && !c->reauthenticating)
        opening--;
    c->state = CLOSED;
}

static void fail(struct connection *c, const char *why)
{
    if (errors++ == 0)
        fprintf(stderr, "load: first failed connection: %s\n", why);
    close_connection(c);
    done++;
}

static void open_connection(struct connection *c)
{
    int one = 1;
    uint64_t *sent_at = c->sent_at;
    memset(c, 0, offsetof(struct connection, response));
    c->sent_at = sent_at;
    c->fd = socket(AF_INET, SOCK_STREAM | SOCK_NONBLOCK | SOCK_CLOEXEC, 0);
    if (c->fd < 0)
        die("socket");
    setsockopt(c->fd, IPPROTO_TCP, TCP_NODELAY, &one, sizeof one);
    c->state = CONNECTING;
    c->began = now;
    opening++;
    if (connect(c->fd, (struct sockaddr *)&options.target, sizeof options.target) < 0 &&
        errno != EINPROGRESS)
        return fail(c, strerror(errno));
    watch(c, EPOLL_CTL_ADD, EPOLLOUT);
}

static bool is_connected(const struct connection *c)
{
    int error = 0;
    socklen_t size = sizeof error;
    getsockopt(c->fd, SOL_SOCKET, SO_ERROR, &error, &size);
    errno = error;
    return error == 0;
}

/* --- requests -------------------------------------------------------------------------------- */

static size_t request_begin(struct connection *c, unsigned api_key, unsigned version, bool flexible)
{
    request.size = 0;
    size_t start = frame_begin(&request);
    put16(&request, api_key), put16(&request, version), put32(&request, c->next_id++);
    put_string(&request, false, "bench"); /* client_id, never compact */
    put_tags(&request, flexible);
    return start;
}

/* Only while nothing else is under way, so the socket has room for it. */
static void request_send(struct connection *c, size_t start, enum state next)
{
    frame_end(&request, start);
    if (transmit(c, request.data, request.size) != (ssize_t)request.size)
        return fail(c, strerror(errno));
    c->state = next;
}

static void send_api_versions(struct connection *c)
{
    size_t start = request_begin(c, API_VERSIONS, 3, true);
    put_string(&request, true, "benchmark-load"), put_string(&request, true, "1");
    put_tags(&request, true);
    request_send(c, start, API_VERSIONS_SENT);
}

static void send_handshake(struct connection *c)
{
    size_t start = request_begin(c, API_SASL_HANDSHAKE, 1, false);
    put_string(&request, false, options.mechanism);
    request_send(c, start, HANDSHAKE_SENT);
}

static void send_authenticate(struct connection *c, const char *token, int size, enum state next)
{
    size_t start = request_begin(c, API_SASL_AUTHENTICATE, 1, false);
    put32(&request, (uint32_t)size), put_bytes(&request, token, (size_t)size);
    request_send(c, start, next);
}

/* The connections begin at different places of the cycle. */
static const struct template *template_of(const struct connection *c, uint32_t correlation_id)
{
    return cycle[(correlation_id + (uint32_t)(c - connections)) % CYCLE];
}

static void open_session(struct connection *c)
{
    set_in_place(&fetch, c->next_id++, 0, INITIAL_EPOCH, c->offset++);
    if (transmit(c, fetch.frame.data, fetch.frame.size) != (ssize_t)fetch.frame.size)
        return fail(c, strerror(errno));
    c->state = SESSION_ASKED;
}

/* One write per request, as Kafka's clients do: what a relay may then read at once is up to it. */
static void send_requests(struct connection *c)
{
    while (c->to_send) {
        const struct template *t = template_of(c, c->next_id);
        set_in_place(t, c->next_id, c->session, c->epoch, c->offset);
        const struct buffer *frame = &t->frame;
        ssize_t sent = transmit(c, frame->data + c->sent_of_current,
                                frame->size - c->sent_of_current);
        if (sent < 0 && errno != EAGAIN)
            return fail(c, strerror(errno));
        c->sent_of_current += sent < 0 ? 0 : (size_t)sent;
        if (c->sent_of_current < frame->size)
            break;
        c->sent_of_current = 0;
        c->next_id++, c->to_send--;
        c->epoch += t->session_at != 0;
        c->offset += t->offset_at != 0;
    }
    if (c->waiting_to_write != (c->to_send > 0)) {
        c->waiting_to_write = c->to_send > 0;
        watch(c, EPOLL_CTL_MOD, c->waiting_to_write ? EPOLLIN | EPOLLOUT : EPOLLIN);
    }
}

static void owe_requests(struct connection *c, uint32_t n)
{
    for (uint32_t i = 0; i < n; i++)
        c->sent_at[(c->next_id + c->to_send + i) % options.in_flight] = now;
    c->to_send += n;
    send_requests(c);
}

/* --- what happens to connections, by mode ---------------------------------------------------- */

static void print_event(const char *event)
{
    printf("{\"event\": \"%s\", \"connections\": %u, \"errors\": %u}\n", event, ready, errors);
    fflush(stdout);
}

static void begin_measuring(void)
{
    measuring = true;
    memset(&latencies, 0, sizeof latencies);
    measure_from = read_clock();
    measure_until = after(now, options.seconds);
    print_event("start");
}

static void on_ready(struct connection *c)
{
    c->state = READY;
    opening--;
    ready++;
    if (options.mode == AUTH) {
        if (measuring) {
            histogram_add(&latencies, now - c->began);
            resumed += c->ssl && SSL_session_reused(c->ssl);
        }
        close_connection(c);
    } else if (options.mode == REAUTH) {
        if (session_lifetime_ms == 0)
            return fail(c, "no session lifetime was announced");
        c->expires = now + session_lifetime_ms * 1000000;
        c->reauth_at = now + session_lifetime_ms * 900000;
        reauth_order[reauth_tail++] = (uint32_t)(c - connections);
    }
}

static void on_authenticated(struct connection *c)
{
    if (options.mode == RELAY && fetch.session_at)
        return open_session(c);
    on_ready(c);
}

static void on_reauthenticated(struct connection *c)
{
    c->reauthenticating = false;
    c->state = READY;
    reauthenticated++;
    late += now > c->expires;
    histogram_add(&latencies, now - c->began);
    last_at = now;
    owe_requests(c, 1);
}

static void on_answered(struct connection *c)
{
    if (measuring && options.mode == RELAY)
        histogram_add(&latencies, now - c->sent_at[(c->expected_id - 1) % options.in_flight]);
    if (options.mode == REAUTH)
        answered++, done++;
}

static void begin_reauthentication(struct connection *c)
{
    if (!measuring)
        begin_measuring();
    c->reauthenticating = true;
    c->began = now;
    send_handshake(c);
}

/* --- responses ------------------------------------------------------------------------------- */

/* Whether the server offers what will be sent. */
static bool offers(const struct template *t, const uint8_t *body, uint32_t n)
{
    uint32_t at = 2;
    if (n < 10 || get16(body) != 0)
        return false;
    while (body[at++] & 0x80)
        ; /* the array's length */
    for (; at + 7 <= n; at += 7)
        if (get16(body + at) == t->api_key)
            return t->version >= get16(body + at + 2) && t->version <= get16(body + at + 4);
    return false;
}

static bool offers_all(const uint8_t *body, uint32_t n)
{
    for (unsigned i = 0; i < CYCLE; i++)
        if (!offers(cycle[i], body, n))
            return false;
    return true;
}

/* SaslAuthenticate v1: error_code, error_message, auth_bytes, session_lifetime_ms. Returns the
 * auth bytes as text, or NULL if the server refused. */
static const char *authenticate_bytes(uint8_t *body, uint32_t n)
{
    if (n < 4 || get16(body) != 0)
        return NULL;
    uint32_t at = 4 + (get16(body + 2) == 0xffff ? 0 : get16(body + 2));
    if (at + 4 > n || get32(body + at) > n - at - 4)
        return NULL;
    uint32_t size = get32(body + at), end = at + 4 + size;
    if (end + 8 > n)
        return NULL;
    session_lifetime_ms = get64(body + end);
    body[end] = '\0'; /* the lifetime has been read */
    return (const char *)body + at + 4;
}

static void on_handshake_response(struct connection *c, const uint8_t *body, uint32_t n)
{
    if (n < 2 || get16(body) != 0)
        return fail(c, "handshake refused");
    if (options.token)
        return send_authenticate(c, options.token, (int)strlen(options.token), FINAL_SENT);
    char first[SCRAM_TEXT];
    send_authenticate(c, first, scram_first(&c->scram, options.user, first), FIRST_SENT);
}

static void on_authenticate_response(struct connection *c, uint8_t *body, uint32_t n)
{
    const char *text = authenticate_bytes(body, n);
    if (!text)
        return fail(c, "authentication refused");
    if (c->state == FIRST_SENT) {
        char final[SCRAM_AUTH_MESSAGE];
        int size = scram_final(&c->scram, &keys, options.password, text, final);
        if (size < 0)
            return fail(c, "bad SCRAM challenge");
        return send_authenticate(c, final, size, FINAL_SENT);
    }
    /* A refused token is answered without an error code, by a JSON text (RFC 7628). */
    if (options.token ? *text != '\0' : !scram_verify(&c->scram, text))
        return fail(c, "authentication refused");
    if (c->reauthenticating)
        on_reauthenticated(c);
    else
        on_authenticated(c);
}

/* Of a response of `size` bytes, `kept` are here. */
static void on_response(struct connection *c, uint8_t *frame, uint32_t kept, uint32_t size)
{
    if (kept < 6 || get32(frame) != c->expected_id++)
        return fail(c, "a response out of order");
    uint8_t *body = frame + 4;
    uint32_t n = kept - 4;
    switch (c->state) {
    case API_VERSIONS_SENT:
        if (!offers_all(body, n))
            return fail(c, "ApiVersions without an API or version that is to be sent");
        if (strcmp(options.mechanism, "none"))
            return send_handshake(c);
        return on_authenticated(c);
    case HANDSHAKE_SENT:
        return on_handshake_response(c, body, n);
    case FIRST_SENT:
    case FINAL_SENT:
        return on_authenticate_response(c, body, n);
    case SESSION_ASKED:
        c->session = n >= FETCH_SESSION + 4 ? get32(body + FETCH_SESSION) : 0;
        c->epoch = 1;
        if (!c->session || !succeeded(&fetch, body, n, size - 4, options.payload, c->session))
            return fail(c, "no fetch session was opened");
        return on_ready(c);
    case READY:
        /* After a re-authentication any answer will do: a real broker does not have the topic. */
        if (options.mode != REAUTH &&
            !succeeded(template_of(c, c->expected_id - 1), body, n, size - 4, options.payload,
                       c->session))
            return fail(c, "a request was answered with an error or a throttle time");
        return on_answered(c);
    default:
        return fail(c, "a response to nothing");
    }
}

/* Splits what was read into responses; of a long one only the first bytes are kept. Returns how
 * many were complete. */
static uint32_t consume(struct connection *c, const uint8_t *p, uint32_t n)
{
    uint32_t complete = 0;
    while (n && c->state != CLOSED) {
        uint32_t size = c->kept < 4 ? 0 : get32(c->response);
        uint32_t wanted = 4 + (size < KEPT_BYTES - 4 ? size : KEPT_BYTES - 4);
        uint32_t left = c->skip ? c->skip : wanted - c->kept;
        uint32_t taken = left < n ? left : n;
        if (c->skip) {
            c->skip -= taken;
        } else {
            memcpy(c->response + c->kept, p, taken);
            c->kept += taken;
            if (c->kept == wanted && size)
                c->skip = 4 + size - wanted;
        }
        p += taken, n -= taken;
        if (size && c->kept == wanted && !c->skip) {
            c->kept = 0;
            complete++;
            on_response(c, c->response + 4, wanted - 4, size);
        }
    }
    return complete;
}

static void shake_hands(struct connection *c)
{
    ssize_t outcome = tls_shake_hands(c->ssl);
    if (outcome < 0 && errno == EAGAIN)
        return;
    if (outcome <= 0)
        return fail(c, "the TLS handshake failed");
    send_api_versions(c);
}

static void on_connected(struct connection *c)
{
    watch(c, EPOLL_CTL_MOD, EPOLLIN);
    if (!tls.context)
        return send_api_versions(c);
    if (!(c->ssl = tls_open(c->fd)))
        die("SSL_new");
    c->state = SHAKING_HANDS;
    shake_hands(c);
}

static void on_readable(struct connection *c)
{
    if (c->state == SHAKING_HANDS)
        return shake_hands(c);
    do {
        ssize_t n = receive(c);
        if (n < 0 && errno == EAGAIN)
            return;
        if (n <= 0)
            return fail(c, n ? strerror(errno) : "closed by the server");
        read_clock();
        uint32_t complete = consume(c, read_buffer, (uint32_t)n);
        if (complete && c->state == READY && options.mode == RELAY && started)
            owe_requests(c, complete);
    } while (c->state != CLOSED && c->ssl && SSL_has_pending(c->ssl));
}

static void on_writable(struct connection *c)
{
    if (c->state != CONNECTING)
        return send_requests(c);
    if (!is_connected(c))
        return fail(c, strerror(errno));
    on_connected(c);
}

/* --- the run --------------------------------------------------------------------------------- */

static void open_more(void)
{
    uint32_t at_once = options.mode == REAUTH ? options.connections : LOGINS_AT_ONCE;
    while (opened < options.connections && opening < at_once) {
        if (options.mode == REAUTH &&
            now < after(started, options.seconds * opened / options.connections))
            return;
        open_connection(&connections[opened++]);
    }
}

static void step_relay(void)
{
    if (!started && ready == options.connections) {
        started = now;
        for (uint32_t i = 0; i < options.connections; i++)
            owe_requests(&connections[i], options.in_flight);
    }
    if (started && !measuring && now >= after(started, options.warm_up))
        begin_measuring();
    finished = errors > 0 || (measuring && now >= measure_until);
}

static void step_auth(void)
{
    if (!started)
        started = now;
    if (!measuring && now >= after(started, options.warm_up))
        begin_measuring();
    finished = errors > options.connections || (measuring && now >= measure_until);
    for (uint32_t i = 0; i < opened && !finished; i++)
        if (connections[i].state == CLOSED)
            open_connection(&connections[i]);
}

static void step_idle(void)
{
    if (!started && ready + errors == options.connections) {
        struct epoll_event event = {.events = EPOLLIN, .data.ptr = NULL};
        started = now;
        print_event("ready");
        if (epoll_ctl(epoll_fd, EPOLL_CTL_ADD, STDIN_FILENO, &event) < 0)
            die("stdin must be a pipe or a terminal");
    }
}

static void step_reauth(void)
{
    if (!started)
        started = now;
    for (; reauth_head < reauth_tail; reauth_head++) {
        struct connection *c = &connections[reauth_order[reauth_head]];
        if (c->state == READY && now < c->reauth_at)
            break;
        if (c->state == READY)
            begin_reauthentication(c);
    }
    finished = done == options.connections;
}

static void on_stdin(void)
{
    char byte;
    finished = read(STDIN_FILENO, &byte, 1) <= 0;
}

static void run(void)
{
    static void (*const steps[])(void) = {step_relay, step_auth, step_idle, step_reauth};
    struct epoll_event events[256];
    uint64_t give_up = after(read_clock(), options.timeout);
    for (;;) {
        steps[options.mode]();
        if (finished || (now > give_up && !(options.mode == IDLE && started)))
            return;
        open_more();
        /* Held idle connections must not cost the machine a thousand wake-ups a second. */
        int n = epoll_wait(epoll_fd, events, 256, options.mode == IDLE && started ? 1000 : 1);
        read_clock();
        for (int i = 0; i < n; i++) {
            struct connection *c = events[i].data.ptr;
            if (!c)
                on_stdin();
            else if (c->state != CLOSED && events[i].events & (EPOLLIN | EPOLLHUP | EPOLLERR))
                on_readable(c);
            if (c && c->state != CLOSED && events[i].events & EPOLLOUT)
                on_writable(c);
        }
    }
}

static void report(void)
{
    uint64_t end = options.mode == REAUTH ? last_at : now;
    printf("{\"event\": \"end\", \"finished\": %s, \"count\": %llu, \"seconds\": %.6f, "
           "\"p50_us\": %.1f, \"p99_us\": %.1f, \"max_us\": %.1f, \"errors\": %u, "
           "\"resumed\": %u",
           finished ? "true" : "false", (unsigned long long)latencies.count,
           measuring ? (double)(end - measure_from) / (double)SECOND : 0.0,
           (double)histogram_quantile(&latencies, 0.50) / 1000,
           (double)histogram_quantile(&latencies, 0.99) / 1000, (double)latencies.max / 1000, errors,
           resumed);
    if (options.mode == REAUTH)
        printf(", \"reauthenticated\": %u, \"late\": %u, \"answered_after\": %u, "
               "\"session_lifetime_ms\": %llu",
               reauthenticated, late, answered, (unsigned long long)session_lifetime_ms);
    printf("}\n");
}

/* --- arguments ------------------------------------------------------------------------------- */

static void usage(const char *why)
{
    fprintf(stderr,
            "load: %s\nusage: load relay|auth|idle|reauth --target HOST:PORT [--connections N] "
            "[--in-flight N] [--requests produce|fetch|fetch-session|group] [--payload BYTES] "
            "[--topics N] [--produce-version 9|13] [--seconds S] [--warm-up S] [--timeout S] "
            "[--mechanism none|SCRAM-SHA-256|OAUTHBEARER] [--user NAME] [--password-file FILE] "
            "[--token-file FILE] [--tls-ca FILE] [--tls-resume no|yes]\n",
            why);
    exit(2);
}

/* The first line of a file, without its end. */
static char *read_line(const char *path)
{
    static char line[16384];
    FILE *file = fopen(path, "r");
    if (!file || !fgets(line, sizeof line, file))
        usage("cannot read the password or token file");
    fclose(file);
    line[strcspn(line, "\r\n")] = '\0';
    return strdup(line);
}

static void parse_target(const char *text)
{
    unsigned port;
    options.target.sin_family = AF_INET;
    if (sscanf(text, "%63[^:]:%u", options.host, &port) != 2 ||
        inet_pton(AF_INET, options.host, &options.target.sin_addr) != 1)
        usage("--target must be an IPv4 address and a port");
    options.target.sin_port = htons((uint16_t)port);
}

static char *bearer_message(const char *token)
{
    char *message;
    if (asprintf(&message, "n,,\x01" "auth=Bearer %s\x01\x01", token) < 0)
        die("asprintf");
    return message;
}

static void parse_option(const char *name, const char *value)
{
    if (!strcmp(name, "--target"))
        parse_target(value);
    else if (!strcmp(name, "--connections"))
        options.connections = (uint32_t)strtoul(value, NULL, 10);
    else if (!strcmp(name, "--in-flight"))
        options.in_flight = (uint32_t)strtoul(value, NULL, 10);
    else if (!strcmp(name, "--requests"))
        options.requests = value;
    else if (!strcmp(name, "--topics"))
        options.topics = (uint32_t)strtoul(value, NULL, 10);
    else if (!strcmp(name, "--produce-version"))
        options.produce_version = (uint32_t)strtoul(value, NULL, 10);
    else if (!strcmp(name, "--payload"))
        options.payload = (uint32_t)strtoul(value, NULL, 10);
    else if (!strcmp(name, "--seconds"))
        options.seconds = strtod(value, NULL);
    else if (!strcmp(name, "--warm-up"))
        options.warm_up = strtod(value, NULL);
    else if (!strcmp(name, "--timeout"))
        options.timeout = strtod(value, NULL);
    else if (!strcmp(name, "--mechanism"))
        options.mechanism = value;
    else if (!strcmp(name, "--user"))
        options.user = value;
    else if (!strcmp(name, "--password-file"))
        options.password = read_line(value);
    else if (!strcmp(name, "--token-file"))
        options.token = bearer_message(read_line(value));
    else if (!strcmp(name, "--tls-ca"))
        options.ca_file = value;
    else if (!strcmp(name, "--tls-resume"))
        tls.resume = !strcmp(value, "yes");
    else
        usage("unknown option");
}

static void parse_arguments(int argc, char **argv)
{
    unsigned mode = 0;
    if (argc < 2 || argc % 2)
        usage("a mode, then options with values");
    while (mode < 4 && strcmp(argv[1], MODES[mode]))
        mode++;
    if (mode == 4)
        usage("unknown mode");
    options.mode = (enum mode)mode;
    for (int i = 2; i < argc; i += 2)
        parse_option(argv[i], argv[i + 1]);
    if (!options.target.sin_port || !options.connections || !options.in_flight)
        usage("--target, and at least one connection and request in flight");
    if (options.topics < 1 || options.topics > MAX_TOPICS || options.produce_version < 9 ||
        options.produce_version > 13 ||
        !build_requests(options.requests, options.produce_version, options.topics, options.payload))
        usage("the requests, topics or Produce version are unknown");
    if (!strcmp(options.mechanism, "SCRAM-SHA-256") ? !options.password
        : !strcmp(options.mechanism, "OAUTHBEARER") ? !options.token
                                                    : strcmp(options.mechanism, "none") != 0)
        usage("the mechanism is unknown, or its password or token file is missing");
    if (!strcmp(options.mechanism, "SCRAM-SHA-256"))
        options.token = NULL;
    if (options.ca_file && !tls_begin(options.ca_file, options.host))
        usage("cannot read the certificates of --tls-ca");
}

int main(int argc, char **argv)
{
    parse_arguments(argc, argv);
    raise_descriptor_limit();
    connections = calloc(options.connections, sizeof *connections);
    reauth_order = calloc(options.connections, sizeof *reauth_order);
    if (!connections || !reauth_order || (epoll_fd = epoll_create1(EPOLL_CLOEXEC)) < 0)
        die("start");
    for (uint32_t i = 0; i < options.connections; i++)
        if (!(connections[i].sent_at = calloc(options.in_flight, sizeof(uint64_t))))
            die("calloc");
    run();
    report();
    return finished && (errors == 0 || options.mode != RELAY) ? 0 : 1;
}
