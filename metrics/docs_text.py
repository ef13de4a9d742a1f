"""The words around the generated tables of docs/metrics.md and docs/events.md."""

METRICS_TEXT = """\
# Metrics

Written by `python -m metrics.docs` from `metrics/registry.py`; change it there.

`GET /metrics` answers in Prometheus' text format, or OpenMetrics if the `Accept` header asks for
it. The workers are asked at each scrape and their values merged. A worker that does not answer
within five seconds has `kafka_reauth_proxy_worker_up` 0; its counters keep their last values, so
that no sum ever falls, and its gauges are left out. After a worker has been replaced, the sums go
on from where it ended.

Labels are bounded: a metric takes a limited number of label sets from each worker, and what comes
later is counted with the label value `other`. Metrics by listener and mechanism are 0 from the
start for what is configured.

## The metrics of KIP-368

Kafka measures its rates over 30 seconds by default and its latencies in milliseconds; the queries
give the same units. Add `by (listener, mechanism)` to see them apart. The maximum of a histogram is
the upper bound of the highest bucket in use.

{kip_table}

## All metrics

{table}

## Buckets

{buckets}
"""

EVENTS_TEXT = """\
# The session event log

Written by `python -m metrics.docs` from `metrics/events.py`; change it there.

Each worker writes the history of its connections as JSON lines, schema version {version}, into the
directory `events.directory`. It is what the readiness report reads.

## Files

`events-<proxy>-<worker>-<utc time>-<sequence>.jsonl`. While a file grows its name ends in `.open`;
it is closed by size or age, synchronised to the disk and renamed in one step, and never changes
afterwards. Read the `.jsonl` files for whole lines; follow the `.open` one for what happened a
second ago. What a crash leaves open is cut after its last whole line and closed at the next start.
If the disk refuses, events are dropped and counted
(`kafka_reauth_proxy_events_dropped_total`), never the connection held up. If the directory, or the
file that grows, is removed, moved or replaced, that is noticed within about a second: a new file is
begun, in a new directory if need be, and the events of the old one are counted as lost
(`file_removed`), also where it was only moved and still has them. Closed files may be moved and
removed as you like.

## Lines

- One JSON object in ASCII per line; a field that is null is left out.
- Whole numbers within a signed 64-bit integer. Times are epoch milliseconds (UTC), durations carry
  their unit in the name.
- Text is at most {max_text} characters; longer text is cut and ends in `…`.
- `connection_id` and `sequence` together name an event. The same pair twice is a duplicate; a gap
  in `sequence` is a dropped event.
- Ignore kinds and fields that you do not know. A new kind or field does not raise
  `schema_version`; another meaning of an old one does.
- Times are taken from a monotonic clock and placed on the wall clock; a wall clock that is set
  moves what is written afterwards, and differences within one connection stay right.

## Kinds

{kinds}

Two views of the same history, to be read one at a time: the **events** proper (all kinds but
`summary`), and the **summary** rows, which alone answer all questions of the report at a fraction
of the volume. `requests` and bytes add up over either. Connections that never sent a SaslHandshake
(port scans, health checks) are in neither; those that never authenticated have no summary row. Of
connections to listeners without SASL nothing but denials is told.

Connections that never authenticated have {strangers_per_second} bytes of the log in a second, all
workers together, and what was not used before: {strangers_burst} at most, of each worker. Failed
logins by the thousand push no client's history out of `events.retention.bytes`. Such a connection
is told of whole or not at all, so no number is missing of it; what is left out is counted
(`kafka_reauth_proxy_events_dropped_total`, reason `strangers`). Failed logins counted from the log
are so many at least; `kafka_reauth_proxy_authentication_failures_total` has all of them.

## Fields

{fields}

## Intervals of a summary row

An interval is the time from one successful authentication to the next, or to the end of the
connection. The rows of a connection hold each of its intervals; one that spans rows stands in each
of them, told further. Keep, by (`connection_id`, `number`), the one of the row with the greatest
`sequence`.

{intervals}

{ends}

## What would a lifetime of L have done?

KIP-368 closes a connection that is used, for anything but a SaslHandshake, more than L after its
last successful authentication. From the intervals, for **any** L:

- **Killed?** Exactly if `last_request_since_auth_ms > L` in one of its intervals. The age at the
  last request is the largest age at which the session was used, so no other request matters. An
  idle session is not killed, and one that re-authenticated before its next request is not either.
- **How late?** `last_request_since_auth_ms - L` is how long the session was used past its end. If
  the interval ended by `reauthenticated`, `ended_since_auth_ms - L` is by how much that
  re-authentication came too late.
- **How often?** A killed client connects and authenticates anew, and its next session expires L
  later. Walk through the active minutes of the interval in order, the session beginning at
  `authenticated_ms`: an active minute that **begins** more than L after the session began is
  surely a kill, and the next session begins at the latest at its end; count these for the least
  number. A minute that **ends** more than L after may be one, and the next session begins at the
  earliest at its begin; count these for the greatest. The truth lies between, and the two rarely
  differ for an L of several minutes. Bit i of `active_minutes` is the minute that begins at
  `active_from_ms` + 60000 · i.
- **Who is concerned?** A client with `authenticate_version` 1 or more re-authenticates by itself
  once a lifetime is announced (at 85 to 95 % of it), so its intervals under
  `announced_lifetime_ms` 0 or above L say nothing against it. The question is for those to which no
  lifetime can be announced (`authenticate_version` 0 or null), and for those that were told one
  and did not keep it.
- **Until when?** What `ended_by` `expired-killed` or `failed` ended at an age of L or less was cut
  short by the proxy: it does not say that L would have killed nothing.

A row has room for {max_intervals} intervals; beyond them the least used are left out and counted in
`intervals_omitted`, and the row is exact for every L from `intervals_omitted_used_ms` on. As a row
covers about an hour, that is about a minute at most.

## Latencies of a summary row

A histogram with buckets that grow by a factor of {gamma}: add the counts of equal buckets over
rows, and take the middle of a bucket, `2 * {gamma}^bucket / ({gamma} + 1)` microseconds, as its
value: it is within 1 % of every latency in it.

{latencies}
"""
