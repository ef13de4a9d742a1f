/* What fake_broker.c and load.c share: big-endian fields, a growing buffer, Kafka's header sizes.
 *
 * Field encodings are those of Kafka's protocol guide: STRING and ARRAY carry their length in two
 * or four bytes, COMPACT_STRING and COMPACT_ARRAY carry length + 1 as an unsigned varint.
 */
#ifndef BENCHMARKS_WIRE_H
#define BENCHMARKS_WIRE_H

#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/resource.h>

enum {
    API_PRODUCE = 0,
    API_FETCH = 1,
    API_METADATA = 3,
    API_OFFSET_COMMIT = 8,
    API_HEARTBEAT = 12,
    API_SASL_HANDSHAKE = 17,
    API_VERSIONS = 18,
    API_SASL_AUTHENTICATE = 36,
};

enum {
    PRODUCE_FIRST_FLEXIBLE = 9,
    PRODUCE_FIRST_WITH_TOPIC_IDS = 13,
    METADATA_FIRST_FLEXIBLE = 9,
    API_VERSIONS_FIRST_FLEXIBLE = 3,
    UNSUPPORTED_VERSION = 35,
    MAX_TOPICS = 32, /* in one request */
};

/* Fetch sessions (KIP-227). */
static const uint32_t INITIAL_EPOCH = 0, FINAL_EPOCH = UINT32_MAX;

static inline void die(const char *what)
{
    perror(what);
    exit(1);
}

/* --- reading --------------------------------------------------------------------------------- */

static inline uint16_t get16(const uint8_t *p)
{
    return (uint16_t)(p[0] << 8 | p[1]);
}

static inline uint32_t get32(const uint8_t *p)
{
    return (uint32_t)p[0] << 24 | (uint32_t)p[1] << 16 | (uint32_t)p[2] << 8 | p[3];
}

static inline uint64_t get64(const uint8_t *p)
{
    return (uint64_t)get32(p) << 32 | get32(p + 4);
}

/* --- writing --------------------------------------------------------------------------------- */

struct buffer {
    uint8_t *data;
    size_t size, capacity;
};

static inline uint8_t *buffer_room(struct buffer *b, size_t n)
{
    if (b->size + n > b->capacity) {
        b->capacity = (b->size + n) * 2 + 256;
        b->data = realloc(b->data, b->capacity);
        if (!b->data)
            die("realloc");
    }
    b->size += n;
    return b->data + b->size - n;
}

static inline void put_bytes(struct buffer *b, const void *data, size_t n)
{
    memcpy(buffer_room(b, n), data, n);
}

static inline void put8(struct buffer *b, unsigned v)
{
    *buffer_room(b, 1) = (uint8_t)v;
}

static inline void set32(uint8_t *p, uint32_t v)
{
    p[0] = (uint8_t)(v >> 24), p[1] = (uint8_t)(v >> 16), p[2] = (uint8_t)(v >> 8), p[3] = (uint8_t)v;
}

static inline void set64(uint8_t *p, uint64_t v)
{
    set32(p, (uint32_t)(v >> 32)), set32(p + 4, (uint32_t)v);
}

static inline void put16(struct buffer *b, unsigned v)
{
    put8(b, v >> 8), put8(b, v & 0xff);
}

static inline void put32(struct buffer *b, uint32_t v)
{
    set32(buffer_room(b, 4), v);
}

static inline void put64(struct buffer *b, uint64_t v)
{
    set64(buffer_room(b, 8), v);
}

static inline void put_varint(struct buffer *b, uint32_t v)
{
    for (; v >= 0x80; v >>= 7)
        put8(b, (v & 0x7f) | 0x80);
    put8(b, v);
}

static inline void put_array(struct buffer *b, int flexible, uint32_t n)
{
    if (flexible)
        put_varint(b, n + 1);
    else
        put32(b, n);
}

static inline void put_string(struct buffer *b, int flexible, const char *s)
{
    size_t n = strlen(s);
    if (flexible)
        put_varint(b, (uint32_t)n + 1);
    else
        put16(b, (unsigned)n);
    put_bytes(b, s, n);
}

static inline void put_null_string(struct buffer *b, int flexible)
{
    if (flexible)
        put8(b, 0);
    else
        put16(b, 0xffff);
}

static inline void put_tags(struct buffer *b, int flexible)
{
    if (flexible)
        put8(b, 0);
}

/* Topic 0 is "bench", topic 1 "bench-00001". */
static inline void put_topic_name(struct buffer *b, int flexible, uint32_t number)
{
    char name[32];
    snprintf(name, sizeof name, number ? "bench-%05u" : "bench", number);
    put_string(b, flexible, name);
}

static inline void put_topic_id(struct buffer *b, uint32_t number)
{
    put64(b, 0), put64(b, number + 1);
}

/* Reserves the size field of a frame; frame_end fills it in. */
static inline size_t frame_begin(struct buffer *b)
{
    buffer_room(b, 4);
    return b->size;
}

static inline void frame_end(struct buffer *b, size_t start)
{
    set32(b->data + start - 4, (uint32_t)(b->size - start));
}

/* --- the process ----------------------------------------------------------------------------- */

/* Thousands of connections need as many descriptors as the hard limit allows. */
static inline void raise_descriptor_limit(void)
{
    struct rlimit limit;
    if (getrlimit(RLIMIT_NOFILE, &limit) == 0) {
        limit.rlim_cur = limit.rlim_max;
        setrlimit(RLIMIT_NOFILE, &limit);
    }
}

#endif
