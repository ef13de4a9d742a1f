/* Latencies in nanoseconds, kept to within 1.6 %: 64 buckets per power of two. */
#ifndef BENCHMARKS_HISTOGRAM_H
#define BENCHMARKS_HISTOGRAM_H

#include <stdint.h>

enum { SUB_BITS = 6, SUB_BUCKETS = 1 << SUB_BITS };

struct histogram {
    uint64_t count, max;
    uint64_t buckets[(64 - SUB_BITS) * SUB_BUCKETS];
};

static inline unsigned bucket_of(uint64_t value)
{
    if (value < SUB_BUCKETS)
        return (unsigned)value;
    unsigned shift = 63u - (unsigned)__builtin_clzll(value) - SUB_BITS;
    return (shift + 1) * SUB_BUCKETS + (unsigned)((value >> shift) - SUB_BUCKETS);
}

static inline void histogram_add(struct histogram *h, uint64_t value)
{
    h->count++;
    if (value > h->max)
        h->max = value;
    h->buckets[bucket_of(value)]++;
}

/* The least value of the bucket that holds the given share of all values; 0 if there are none. */
static inline uint64_t histogram_quantile(const struct histogram *h, double share)
{
    uint64_t seen = 0;
    unsigned last = sizeof h->buckets / sizeof *h->buckets;
    for (unsigned i = 0; i < last; i++) {
        seen += h->buckets[i];
        if (h->count && (double)seen >= share * (double)h->count)
            return i < SUB_BUCKETS ? i : (uint64_t)(i % SUB_BUCKETS + SUB_BUCKETS) << (i / SUB_BUCKETS - 1);
    }
    return 0;
}

#endif
