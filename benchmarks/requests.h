/* The requests of a relay run, built once; each sending sets in place what differs from the last.
 *
 *     produce        Produce v9 of --topics topics, or v13 (with topic ids) if --produce-version
 *                    says so; --payload bytes to one partition of each
 *     fetch          Fetch v17 of one partition, without a session: librdkafka's
 *     fetch-session  the same, incremental, in a fetch session (KIP-227): the Java consumer's, which
 *                    names the partition again because its offset has moved on
 *     group          a member of a classic consumer group: of every eight requests six are a
 *                    fetch-session, one is a Heartbeat v4 and one an OffsetCommit v9
 *
 * Offsets and epochs grow with each request, so none has the bytes of the one before.
 */
#ifndef BENCHMARKS_REQUESTS_H
#define BENCHMARKS_REQUESTS_H

#include "wire.h"

#include <stdbool.h>

enum {
    FETCH_VERSION = 17,
    HEARTBEAT_VERSION = 4,
    OFFSET_COMMIT_VERSION = 9,
    CORRELATION_ID = 8, /* its place in a request: behind size, api key and version */
    CYCLE = 8,
};

struct template {
    struct buffer frame;
    unsigned api_key, version;
    uint32_t topics;   /* that are answered */
    size_t session_at; /* session id and epoch; 0: in no session */
    size_t offset_at;  /* an offset that moves on; 0: it has none */
};

static struct template produce, fetch, heartbeat, offset_commit;
static const struct template *cycle[CYCLE]; /* sent in this order, over and over */

static inline size_t template_begin(struct template *t, unsigned api_key, unsigned version)
{
    t->api_key = api_key, t->version = version;
    size_t start = frame_begin(&t->frame);
    put16(&t->frame, api_key), put16(&t->frame, version), put32(&t->frame, 0);
    put_string(&t->frame, false, "bench"), put_tags(&t->frame, true); /* client_id */
    return start;
}

static inline void build_produce(unsigned version, uint32_t topics, uint32_t payload)
{
    struct buffer *b = &produce.frame;
    size_t start = template_begin(&produce, API_PRODUCE, version);
    put_null_string(b, true);     /* transactional_id */
    put16(b, 1), put32(b, 30000); /* acks, timeout_ms */
    put_array(b, true, produce.topics = topics);
    for (uint32_t i = 0; i < topics; i++) {
        if (version >= PRODUCE_FIRST_WITH_TOPIC_IDS)
            put_topic_id(b, i);
        else
            put_topic_name(b, true, i);
        put_array(b, true, 1), put32(b, 0); /* partition index */
        put_varint(b, payload + 1);
        memset(buffer_room(b, payload), 'x', payload);
        put_tags(b, true), put_tags(b, true);
    }
    put_tags(b, true);
    frame_end(b, start);
}

static inline void build_fetch(bool in_session, uint32_t max_bytes)
{
    struct buffer *b = &fetch.frame;
    size_t start = template_begin(&fetch, API_FETCH, FETCH_VERSION);
    put32(b, 500), put32(b, 1), put32(b, max_bytes); /* max_wait_ms, min_bytes */
    put8(b, 0);                                      /* isolation_level */
    fetch.session_at = in_session ? b->size : 0;
    put32(b, 0), put32(b, FINAL_EPOCH); /* session_id, session_epoch */
    put_array(b, true, 1), put_topic_id(b, 0);
    put_array(b, true, 1), put32(b, 0), put32(b, 0); /* partition, current_leader_epoch */
    fetch.offset_at = b->size;
    put64(b, 0);                                    /* fetch_offset */
    put32(b, UINT32_MAX), put64(b, UINT64_MAX);     /* last_fetched_epoch, log_start_offset */
    put32(b, max_bytes);                            /* partition_max_bytes */
    put_tags(b, true), put_tags(b, true);
    put_array(b, true, 0), put_string(b, true, ""); /* forgotten_topics_data, rack_id */
    put_tags(b, true);
    frame_end(b, start);
}

static inline void put_member(struct buffer *b)
{
    put_string(b, true, "bench"), put32(b, 1); /* group_id, generation_id */
    put_string(b, true, "bench-5b0d1f3e-6a51-4f4e-9d57-6f2c4a1f7c11");
    put_null_string(b, true); /* group_instance_id */
}

static inline void build_heartbeat(void)
{
    struct buffer *b = &heartbeat.frame;
    size_t start = template_begin(&heartbeat, API_HEARTBEAT, HEARTBEAT_VERSION);
    put_member(b), put_tags(b, true);
    frame_end(b, start);
}

static inline void build_offset_commit(void)
{
    struct buffer *b = &offset_commit.frame;
    size_t start = template_begin(&offset_commit, API_OFFSET_COMMIT, OFFSET_COMMIT_VERSION);
    put_member(b);
    put_array(b, true, 1), put_topic_name(b, true, 0);
    put_array(b, true, 1), put32(b, 0); /* partition_index */
    offset_commit.offset_at = b->size;
    put64(b, 0), put32(b, 0);                                /* offset, its leader's epoch */
    put_string(b, true, "");                                 /* committed_metadata */
    put_tags(b, true), put_tags(b, true), put_tags(b, true); /* partition, topic, request */
    frame_end(b, start);
}

/* Returns false if there are no requests of this name. */
static inline bool build_requests(const char *name, unsigned produce_version, uint32_t topics,
                                  uint32_t payload)
{
    bool group = !strcmp(name, "group"), in_session = group || !strcmp(name, "fetch-session");
    bool fetches = in_session || !strcmp(name, "fetch");
    if (!fetches && strcmp(name, "produce"))
        return false;
    build_produce(produce_version, topics, payload);
    build_fetch(in_session, payload);
    build_heartbeat();
    build_offset_commit();
    for (unsigned i = 0; i < CYCLE; i++)
        cycle[i] = fetches ? &fetch : &produce;
    if (group)
        cycle[CYCLE / 2 - 1] = &heartbeat, cycle[CYCLE - 1] = &offset_commit;
    return true;
}

static inline void set_in_place(const struct template *t, uint32_t correlation_id,
                                uint32_t session, uint32_t epoch, uint64_t offset)
{
    uint8_t *p = t->frame.data;
    set32(p + CORRELATION_ID, correlation_id);
    if (t->session_at)
        set32(p + t->session_at, session), set32(p + t->session_at + 4, epoch);
    if (t->offset_at)
        set64(p + t->offset_at, offset);
}

/* --- responses: from behind the correlation id; all of flexible versions ---------------------- */

enum {
    FETCH_SESSION = 7, /* behind tags, throttle_time_ms and error_code */
    FETCH_PARTITION_ERROR = FETCH_SESSION + 4 + 1 + 16 + 1 + 4,
    COMMIT_PARTITION_ERROR = 1 + 4 + 1 + 6 + 1 + 4, /* behind topics, name, partitions, index */
};

static inline bool no_error(const uint8_t *body, uint32_t n, uint32_t at)
{
    return n >= at + 2 && get16(body + at) == 0;
}

/* Every topic's only partition: behind tags and topics, and in each behind name or id. */
static inline bool produce_succeeded(const struct template *t, const uint8_t *body, uint32_t n)
{
    uint32_t at = 2;
    for (uint32_t i = 0; i < t->topics; i++) {
        if (at >= n)
            return false;
        at += t->version >= PRODUCE_FIRST_WITH_TOPIC_IDS ? 16 : body[at];
        if (!no_error(body, n, at + 1 + 4))
            return false;
        at += 1 + 4 + 2 + 8 + 8 + 8 + 1 + 1 + 1 + 1;
    }
    return n >= at + 4 && get32(body + at) == 0;
}

static inline bool not_throttled(const uint8_t *body, uint32_t n)
{
    return n >= 5 && get32(body + 1) == 0;
}

/* Whether there is neither an error nor a throttle time in a response; `size` is that of its body,
 * of which `n` bytes are here. */
static inline bool succeeded(const struct template *t, const uint8_t *body, uint32_t n,
                             uint32_t size, uint32_t payload, uint32_t session)
{
    switch (t->api_key) {
    case API_PRODUCE:
        return produce_succeeded(t, body, n);
    case API_FETCH:
        return not_throttled(body, n) && no_error(body, n, 5) && size > payload &&
               no_error(body, n, FETCH_PARTITION_ERROR) && get32(body + FETCH_SESSION) == session;
    case API_HEARTBEAT:
        return not_throttled(body, n) && no_error(body, n, 5);
    default:
        return not_throttled(body, n) && no_error(body, n, COMMIT_PARTITION_ERROR);
    }
}

#endif
