"""Metrics of quotas; `metrics/registry.py` has the laws, and the other metrics."""

from metrics.metric import PREFIX, KipMetric, Merge, Metric, MetricType, counter, gauge

QUOTA_LABELS = ("quota", "entry")
_QUOTA_ENTRIES = 2_000
"""Those that the operator made, and one for the rest: see
`proxy.quota.worker_quotas.MAX_COUNTS`."""
QUOTA_LIMIT = gauge(
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
QUOTA_CONNECTIONS = counter(
    "quota_connections_total",
    "Connections that count towards a connection_creation_rate, by the entry it comes from; refused"
    " ones are not counted.",
    ("entry",),
    max_label_sets=_QUOTA_ENTRIES,
)
QUOTA_MUTATIONS = counter(
    "quota_mutations_total",
    "Partitions created or deleted that count towards a controller_mutation_rate, by the entry it"
    " comes from; refused ones are not counted.",
    ("entry",),
    max_label_sets=_QUOTA_ENTRIES,
)
QUOTA_THROTTLES = counter(
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
QUOTA_CALLBACK_FAULTS = counter(
    "quota_callback_faults_total",
    "How often the quota callback raised, stalled or answered with nonsense, by kind.",
    ("kind",),
)
