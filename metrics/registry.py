"""Every metric of the proxy, declared once.

The laws of the table:

- Names begin with `kafka_reauth_proxy_`, units are base units, counters end in `_total`.
- The help says what is left out.
- Labels are bounded: never a topic, and a client id or a principal only where the operator made
  an entry for it. What comes from outside (a
  mechanism, a reason) is held to `max_label_sets` by `metrics.tally`.

What is not declared here cannot be counted, and what is declared appears in docs/metrics.md.
"""

from metrics.metric import DEFAULT_MAX_LABEL_SETS, KipMetric, Merge, Metric, MetricType

PREFIX = "kafka_reauth_proxy_"

LISTENER = ("listener",)
SESSION_LABELS = ("listener", "mechanism")
"""Their values are known from the configuration, so such metrics are 0 from the start."""

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
LIFETIME_BUCKETS = (0.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 14400.0, 43200.0, 86400.0)
"""Below or at 0 are the sessions past their end: idle, or in `probe`."""


def _counter(
    name: str,
    help: str,  # noqa: A002 - the word that Prometheus has for it
    labels: tuple[str, ...],
    *,
    unit: str = "",
    kip: str = "",
    max_label_sets: int = DEFAULT_MAX_LABEL_SETS,
) -> Metric:
    """Declare a counter; `kip` is a metric that KIP-368 gives a `-rate` and a `-total`."""
    full = f"{PREFIX}{name}"
    rate = KipMetric(name=f"{kip}-rate", query=f"sum(rate({full}[1m]))")
    total = KipMetric(name=f"{kip}-total", query=f"sum({full})")
    return Metric(
        name=full,
        type=MetricType.COUNTER,
        help=help,
        labels=labels,
        unit=unit,
        kip=(rate, total) if kip else (),
        max_label_sets=max_label_sets,
    )


def _gauge(
    name: str,
    help: str,  # noqa: A002
    labels: tuple[str, ...] = (),
    *,
    unit: str = "",
    merge: Merge = Merge.SUM,
) -> Metric:
    return Metric(
        name=f"{PREFIX}{name}",
        type=MetricType.GAUGE,
        help=help,
        labels=labels,
        unit=unit,
        merge=merge,
    )


SUCCESSFUL_AUTHENTICATION = _counter(
    "successful_authentication_total",
    "First authentications of a connection that succeeded; re-authentications are not counted.",
    SESSION_LABELS,
    kip="successful-authentication",
)
FAILED_AUTHENTICATION = _counter(
    "failed_authentication_total",
    "First authentications of a connection that failed; neither re-authentications nor connections"
    " that went away before their SaslHandshake are counted.",
    SESSION_LABELS,
    kip="failed-authentication",
)
SUCCESSFUL_REAUTHENTICATION = _counter(
    "successful_reauthentication_total",
    "Re-authentications that succeeded.",
    SESSION_LABELS,
    kip="successful-reauthentication",
)
FAILED_REAUTHENTICATION = _counter(
    "failed_reauthentication_total",
    "Re-authentications that failed, each of which closed its connection; a SaslHandshake that was"
    " refused for coming too early is not counted.",
    SESSION_LABELS,
    kip="failed-reauthentication",
)
SUCCESSFUL_AUTHENTICATION_NO_REAUTH = _counter(
    "successful_authentication_no_reauth_total",
    "The part of successful_authentication_total that used SaslAuthenticate v0 or raw tokens:"
    " clients to which no session lifetime can be announced.",
    SESSION_LABELS,
    kip="successful-authentication-no-reauth",
)
_LATENCY = f"{PREFIX}reauthentication_latency_seconds"
REAUTHENTICATION_LATENCY = Metric(
    name=_LATENCY,
    type=MetricType.HISTOGRAM,
    help="From the arrival of a re-authentication's SaslHandshake to its success; first and failed"
    " authentications are not counted.",
    labels=SESSION_LABELS,
    unit="seconds",
    buckets=LATENCY_BUCKETS,
    kip=(
        KipMetric(
            name="reauthentication-latency-avg",
            query=f"1000 * sum(rate({_LATENCY}_sum[5m])) / sum(rate({_LATENCY}_count[5m]))",
        ),
        KipMetric(
            name="reauthentication-latency-max",
            query=f"1000 * histogram_quantile(1, sum by (le) (rate({_LATENCY}_bucket[5m])))",
        ),
    ),
)
EXPIRED_CONNECTIONS_KILLED = Metric(
    name=f"{PREFIX}expired_connections_killed_total",
    type=MetricType.COUNTER,
    help="Connections closed because they were used past the end of their session (`enforce`);"
    " idle ones live on and are not counted.",
    labels=SESSION_LABELS,
    kip=(
        KipMetric(
            name="ExpiredConnectionsKilledCount",
            query=f"sum({PREFIX}expired_connections_killed_total)",
        ),
    ),
)
EXPIRED_CONNECTIONS_WOULD_BE_KILLED = _counter(
    "expired_connections_would_be_killed_total",
    "Sessions that were used past their end in `probe`: each is counted once, at the first such"
    " request, and nobody is killed.",
    SESSION_LABELS,
)
AUTHENTICATION_FAILURES = _counter(
    "authentication_failures_total",
    "Failed authentications and failed re-authentications together, by reason.",
    ("listener", "mechanism", "reason"),
    max_label_sets=500,
)
SESSION_LIFETIME_LEFT = Metric(
    name=f"{PREFIX}session_lifetime_left_seconds",
    type=MetricType.GAUGE_HISTOGRAM,
    help="Lifetime left of the sessions that are open now; le=0 holds those past their end."
    " Sessions without an expiry are not counted.",
    labels=SESSION_LABELS,
    unit="seconds",
    buckets=LIFETIME_BUCKETS,
)

CONNECTIONS = _gauge("connections", "Client connections open now.", LISTENER)
CONNECTIONS_OPENED = _counter("connections_opened_total", "Client connections accepted.", LISTENER)
CONNECTIONS_CLOSED = _counter(
    "connections_closed_total",
    "Client connections that ended, by reason, whichever side ended them.",
    ("listener", "reason"),
)
REQUESTS = _counter(
    "requests_total",
    "Requests of authenticated clients, by API; those of SASL are not counted.",
    ("listener", "api"),
    max_label_sets=2000,
)
REQUEST_BYTES = _counter(
    "request_bytes_total",
    "Bytes of those requests, with their length prefix.",
    ("listener", "api"),
    unit="bytes",
    max_label_sets=2000,
)
RESPONSE_BYTES = _counter(
    "response_bytes_total",
    "Bytes of the responses to those requests, with their length prefix.",
    ("listener", "api"),
    unit="bytes",
    max_label_sets=2000,
)
UPSTREAM_CONNECT_FAILURES = _counter(
    "upstream_connect_failures_total",
    "Connections to a broker that could not be opened; those that broke later are not counted.",
    LISTENER,
)
BROKERS_NOT_SHOWN = _gauge(
    "brokers_not_shown",
    "Brokers of the cluster that clients of a gateway are not shown: broker.ports is too short.",
    LISTENER,
    merge=Merge.MAX,
)

JWKS_AGE = _gauge(
    "jwks_age_seconds",
    "Time since the signing keys were last loaded, of the worker whose keys are the oldest."
    " Absent until they were loaded once.",
    LISTENER,
    unit="seconds",
    merge=Merge.MAX,
)
JWKS_REFRESH_FAILURES = _counter(
    "jwks_refresh_failures_total",
    "Attempts to load the signing keys that failed, added up over workers.",
    LISTENER,
)
CONFIGURATION_STALE = _gauge(
    "configuration_stale",
    "1 if the configuration file was none at the last SIGHUP: the one before applies. The log says"
    " what is wrong with it.",
    merge=Merge.MAX,
)

AUTHORIZER_DECISIONS = _counter(
    "authorizer_decisions_total",
    "Decisions of the authorizer by operation and result (allowed, denied, would_be_denied); those"
    " that only cut a list to what may be seen are counted if they allow. Super users and answers"
    " that a connection remembers are not counted.",
    ("operation", "result"),
)
AUTHORIZER_CACHE_HITS = _counter(
    "authorizer_cache_hits_total",
    "The part of authorizer_decisions_total that was remembered from the same principal and host.",
    (),
)
ACLS = _gauge("acls", "ACLs that apply.", merge=Merge.MAX)
STORE_VERSION = _gauge(
    "store_version",
    "Number of the last change of the store that a worker has taken up; the oldest of all workers.",
    merge=Merge.MIN,
)
STORE_AGE = _gauge(
    "store_age_seconds",
    "Time since the store was last read successfully, of the worker for which it is the longest.",
    unit="seconds",
    merge=Merge.MAX,
)

QUOTA_LABELS = ("quota", "entry")
_QUOTA_ENTRIES = 2_000
"""Those that the operator made, and one for the rest: see `proxy.quota.quotas.MOST_COUNTS`."""
QUOTA_LIMIT = _gauge(
    "quota_limit",
    "Limit of a quota that is in use: bytes, percent of a thread's time, partitions or connections,"
    " per second and for each who has the entry's quota for itself.",
    QUOTA_LABELS,
    merge=Merge.MAX,
)
_QUOTA_BYTES = f"{PREFIX}quota_bytes_total"
QUOTA_BYTES = Metric(
    name=_QUOTA_BYTES,
    type=MetricType.COUNTER,
    help="Bytes of Produce requests and Fetch responses that count towards a quota, by the entry it"
    " comes from; all who fall under one entry are added up, without a quota nothing is counted.",
    labels=QUOTA_LABELS,
    unit="bytes",
    max_label_sets=_QUOTA_ENTRIES,
    kip=(KipMetric(name="byte-rate", query=f"sum by (quota, entry) (rate({_QUOTA_BYTES}[30s]))"),),
)
_QUOTA_REQUEST_TIME = f"{PREFIX}quota_request_seconds_total"
QUOTA_REQUEST_TIME = Metric(
    name=_QUOTA_REQUEST_TIME,
    type=MetricType.COUNTER,
    help="Time that workers spent on clients with a request_percentage, by the entry it comes from;"
    " that of others is not measured.",
    labels=("entry",),
    unit="seconds",
    max_label_sets=_QUOTA_ENTRIES,
    kip=(
        KipMetric(
            name="request-time", query=f"100 * sum by (entry) (rate({_QUOTA_REQUEST_TIME}[30s]))"
        ),
    ),
)
QUOTA_CONNECTIONS = _counter(
    "quota_connections_total",
    "Connections that count towards a connection_creation_rate, by the entry it comes from; refused"
    " ones are not counted.",
    ("entry",),
    max_label_sets=_QUOTA_ENTRIES,
)
QUOTA_MUTATIONS = _counter(
    "quota_mutations_total",
    "Partitions created or deleted that count towards a controller_mutation_rate, by the entry it"
    " comes from; refused ones are not counted.",
    ("entry",),
    max_label_sets=_QUOTA_ENTRIES,
)
QUOTA_THROTTLES = _counter(
    "quota_throttles_total",
    "How often a quota was exceeded and somebody throttled, or in audit would have been.",
    QUOTA_LABELS,
    max_label_sets=_QUOTA_ENTRIES,
)
_THROTTLES = f"{PREFIX}quota_throttles_total"
_THROTTLE_TIME = f"{PREFIX}quota_throttle_time_seconds_total"
QUOTA_THROTTLE_TIME = Metric(
    name=_THROTTLE_TIME,
    type=MetricType.COUNTER,
    help="For how long, all times together.",
    labels=QUOTA_LABELS,
    unit="seconds",
    max_label_sets=_QUOTA_ENTRIES,
    kip=(
        KipMetric(
            name="throttle-time",
            query=f"1000 * sum by (quota, entry) (rate({_THROTTLE_TIME}[30s]))"
            f" / sum by (quota, entry) (rate({_THROTTLES}[30s]))",
        ),
    ),
)
THROTTLED_CONNECTIONS = _gauge(
    "throttled_connections", "Connections that are not read now because of a quota.", LISTENER
)
QUOTA_CALLBACK_FAULTS = _counter(
    "quota_callback_faults_total",
    "How often the quota callback raised, stalled or answered with nonsense, by kind.",
    ("kind",),
)

CERTIFICATE_EXPIRY = _gauge(
    "certificate_expiry_timestamp_seconds",
    "When the certificate that clients are shown ends, Unix time, of the worker whose ends first;"
    " the certificates behind it in its chain are not looked at.",
    LISTENER,
    unit="seconds",
    merge=Merge.MIN,
)
UPSTREAM_CERTIFICATE_EXPIRY = _gauge(
    "upstream_certificate_expiry_timestamp_seconds",
    "When the certificate that brokers are shown ends, Unix time, of the worker whose ends first."
    " Absent without one.",
    unit="seconds",
    merge=Merge.MIN,
)

EVENTS_WRITTEN = _counter("events_written_total", "Session events written to the log.", ())
EVENTS_DROPPED = _counter(
    "events_dropped_total",
    "Session events lost: the queue was full (queue_full), or the disk refused (write_error); or"
    " left out: of connections that never authenticated, beyond what the log has for them"
    " (strangers).",
    ("reason",),
)
EVENT_LOG_BYTES = _counter(
    "event_log_bytes_total", "Bytes written to the session event log.", (), unit="bytes"
)

EVENT_LOOP_LAG = Metric(
    name=f"{PREFIX}event_loop_lag_seconds",
    type=MetricType.HISTOGRAM,
    help="How much later than asked for a timer of a worker's event loop ran.",
    unit="seconds",
    buckets=LAG_BUCKETS,
)
BUILD_INFO = _gauge(
    "build_info",
    "Always 1; the labels say what is running.",
    ("version", "python"),
    merge=Merge.MAX,
)
START_TIME = _gauge(
    "start_time_seconds",
    "When the first of the workers started, Unix time.",
    unit="seconds",
    merge=Merge.MIN,
)
WORKER_UP = _gauge(
    "worker_up",
    "1 if the worker answered this scrape in time; if 0, its counters are those of its last answer"
    " and its gauges are left out.",
    ("worker",),
)
WORKER_CPU = _counter(
    "worker_cpu_seconds_total",
    "User and system CPU time of a worker process; the parent's and the HTTP process's are left"
    " out.",
    ("worker",),
    unit="seconds",
)
WORKER_MEMORY = _gauge(
    "worker_resident_memory_bytes",
    "Resident memory of a worker process; what workers share is in each of them.",
    ("worker",),
    unit="bytes",
)
WORKER_OPEN_FDS = _gauge("worker_open_fds", "Open file descriptors of a worker.", ("worker",))

METRICS: tuple[Metric, ...] = tuple(
    value for value in list(globals().values()) if isinstance(value, Metric)
)
"""The table, in the order of this file."""

BY_NAME = {metric.name: metric for metric in METRICS}
