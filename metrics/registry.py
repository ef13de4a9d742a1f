"""Declarations of all metrics of the proxy.

Rules of the table:

- Names begin with `kafka_reauth_proxy_`, units are base units, counters end with `_total`.
- The help states what is not counted.
- Labels are bounded: never a topic, and a client id or a principal only if the operator has
  configured an entry for it. Values from outside (a mechanism, a reason) are limited by
  `max_label_sets`.

A metric that is not declared here cannot be used, and all of them appear in docs/metrics.md.
"""

from collections.abc import Mapping

from metrics.metric import Merge, Metric, MetricType, counter, gauge, histogram

LISTENER = ("listener",)
ISSUER = ("listener", "issuer")
SESSION_LABELS = ("listener", "mechanism")
"""Labels of metrics per session. Such metrics are 0 from the start for mechanisms in the
configuration, and from the first login with a mechanism that the brokers offer."""

LATENCY_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
ADDED_BUCKETS = (0.00005, 0.0001, 0.00025, 0.0005, *LATENCY_BUCKETS)
LAG_BUCKETS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0)
LIFETIME_BUCKETS = (0.0, 60.0, 300.0, 900.0, 1800.0, 3600.0, 14400.0, 43200.0, 86400.0)
"""Bounds of the remaining lifetime in seconds; that of sessions past their end is 0 or less."""


def _rate_and_total(metric: str) -> Mapping[str, str]:
    """Return the queries for the `-rate` and `-total` that KIP-368 has of a metric."""
    return {f"{metric}-rate": "sum(rate({0}[1m]))", f"{metric}-total": "sum({0})"}


SUCCESSFUL_AUTHENTICATION = counter(
    "successful_authentication_total",
    "First authentications of a connection that succeeded; re-authentications are not counted.",
    SESSION_LABELS,
    kip=_rate_and_total("successful-authentication"),
)
FAILED_AUTHENTICATION = counter(
    "failed_authentication_total",
    "First authentications of a connection that failed; neither re-authentications nor connections"
    " that were closed before their SaslHandshake are counted.",
    SESSION_LABELS,
    kip=_rate_and_total("failed-authentication"),
)
SUCCESSFUL_REAUTHENTICATION = counter(
    "successful_reauthentication_total",
    "Re-authentications that succeeded.",
    SESSION_LABELS,
    kip=_rate_and_total("successful-reauthentication"),
)
FAILED_REAUTHENTICATION = counter(
    "failed_reauthentication_total",
    "Re-authentications that failed, each of which closed its connection; a SaslHandshake that was"
    " refused because it came too early is not counted.",
    SESSION_LABELS,
    kip=_rate_and_total("failed-reauthentication"),
)
SUCCESSFUL_AUTHENTICATION_NO_REAUTH = counter(
    "successful_authentication_no_reauth_total",
    "The part of successful_authentication_total that used SaslAuthenticate v0 or raw tokens:"
    " clients to which no session lifetime can be announced.",
    SESSION_LABELS,
    kip=_rate_and_total("successful-authentication-no-reauth"),
)
OPAQUE_AUTHENTICATION = counter(
    "opaque_authentication_total",
    "The part of successful_authentication_total with an opaque principal: the broker accepted a"
    " login that does not show who the client is (`sasl.termination: broker`). Logins"
    " that a rule maps to a user are not counted.",
    SESSION_LABELS,
)
REAUTHENTICATION_LATENCY = histogram(
    "reauthentication_latency_seconds",
    "From the arrival of a re-authentication's SaslHandshake to its success; first and failed"
    " authentications are not counted.",
    SESSION_LABELS,
    buckets=LATENCY_BUCKETS,
    kip={
        "reauthentication-latency-avg": "1000 * sum(rate({0}_sum[5m])) / sum(rate({0}_count[5m]))",
        "reauthentication-latency-max": "1000 * histogram_quantile(1,"
        " sum by (le) (rate({0}_bucket[5m])))",
    },
)
AUTHENTICATION_LATENCY = histogram(
    "authentication_latency_seconds",
    "From the arrival of a connection's first SaslHandshake to the success of its login;"
    " re-authentications and failed logins are not counted.",
    SESSION_LABELS,
    buckets=LATENCY_BUCKETS,
)
EXPIRED_CONNECTIONS_KILLED = counter(
    "expired_connections_killed_total",
    "Connections closed because they were used past the end of their session (`enforce`), or"
    " of their token; idle ones stay open and are not counted.",
    SESSION_LABELS,
    kip={"ExpiredConnectionsKilledCount": "sum({0})"},
)
EXPIRED_CONNECTIONS_WOULD_BE_KILLED = counter(
    "expired_connections_would_be_killed_total",
    "Sessions that were used past their end in `probe`: each is counted once, at the first such"
    " request, and stays open.",
    SESSION_LABELS,
)
AUTO_PRINCIPALS = gauge(
    "auto_principals",
    "Principals in each stage of `reauth.enforcement: auto`; those with an override are not"
    " counted.",
    ("stage",),
    merge=Merge.MAX,
)
AUTO_DECISIONS = counter(
    "auto_decisions_total",
    "Decisions of `reauth.enforcement: auto` by this proxy: promoted, shortened (the next of"
    " `auto.lifetimes.ms`), demoted or frozen; those of operators are not counted.",
    ("decision",),
)
AUTHENTICATION_FAILURES = counter(
    "authentication_failures_total",
    "Failed authentications and failed re-authentications together, by reason.",
    ("listener", "mechanism", "reason"),
    max_label_sets=500,
)
SESSION_LIFETIME_LEFT = Metric(
    MetricType.GAUGE_HISTOGRAM,
    "session_lifetime_left_seconds",
    "Remaining lifetime of the sessions that are open now; le=0 counts those past their end."
    " Sessions without an expiry are not counted.",
    SESSION_LABELS,
    buckets=LIFETIME_BUCKETS,
)

CONNECTIONS = gauge("connections", "Client connections open now.", LISTENER)
THROTTLED_CONNECTIONS = gauge(
    "throttled_connections", "Connections that are not read now because of a quota.", LISTENER
)
CONNECTIONS_OPENED = counter("connections_opened_total", "Client connections accepted.", LISTENER)
CONNECTIONS_CLOSED = counter(
    "connections_closed_total",
    "Client connections that ended, by reason, whichever side ended them.",
    ("listener", "reason"),
)
MISROUTED = counter(
    "misrouted_total",
    "Clients that meant another broker or cluster than they reached, and were answered"
    " REBOOTSTRAP_REQUIRED (KIP-1242); of clients before ApiVersions v5 it is not known whom they"
    " mean.",
    LISTENER,
)
REQUESTS = counter(
    "requests_total",
    "Requests of authenticated clients, by API; those of SASL are not counted.",
    ("listener", "api"),
    max_label_sets=2000,
)
REQUEST_BYTES = counter(
    "request_bytes_total",
    "Bytes of those requests, with their length prefix.",
    ("listener", "api"),
    max_label_sets=2000,
)
RESPONSE_BYTES = counter(
    "response_bytes_total",
    "Bytes of the responses to those requests, with their length prefix.",
    ("listener", "api"),
    max_label_sets=2000,
)
UPSTREAM_CONNECT_FAILURES = counter(
    "upstream_connect_failures_total",
    "Connections to a broker that could not be opened, for a client or to probe a broker that is"
    " down; those that broke later are not counted.",
    LISTENER,
)
UPSTREAM_CONNECT_TIME = histogram(
    "upstream_connect_seconds",
    "Time that it took to open a connection to a broker for a client, with the TLS handshake and"
    " without a login of the proxy; connections that could not be opened are not counted.",
    LISTENER,
    buckets=LATENCY_BUCKETS,
)
BROKER_LATENCY = histogram(
    "broker_latency_seconds",
    "From when a request was written to the broker to the first bytes of the response, by API; with"
    " the network between them, and a Fetch's wait for records. A sample: a listener of a worker"
    " times 100 requests a second at most, so that the count is not the number of requests.",
    ("listener", "api"),
    buckets=LATENCY_BUCKETS,
    max_label_sets=500,
)
PROXY_LATENCY = histogram(
    "proxy_latency_seconds",
    "What the proxy added to the requests of broker_latency_seconds: from reading a request to"
    " writing it, waits for quotas, ACLs, memory or a connection included, and the same for the"
    " response. Bytes that were not read yet are not counted; event_loop_lag_seconds shows that.",
    LISTENER,
    buckets=ADDED_BUCKETS,
)
UPSTREAM_SUCCESSFUL_AUTHENTICATION = counter(
    "upstream_successful_authentication_total",
    "First logins of the proxy on a connection to a broker that succeeded.",
    LISTENER,
)
UPSTREAM_FAILED_AUTHENTICATION = counter(
    "upstream_failed_authentication_total",
    "First logins of the proxy on a connection to a broker that failed, which closed the client's.",
    LISTENER,
)
UPSTREAM_SUCCESSFUL_REAUTHENTICATION = counter(
    "upstream_successful_reauthentication_total",
    "Logins of the proxy that renewed its session on an open connection to a broker.",
    LISTENER,
)
UPSTREAM_FAILED_REAUTHENTICATION = counter(
    "upstream_failed_reauthentication_total",
    "Logins of the proxy that did not renew its session on an open connection to a broker, which"
    " closed the client's.",
    LISTENER,
)
IDENTITY_REFUSED = counter(
    "identity_refused_total",
    "Logins to brokers as a client (`upstream.identity`) that the proxy did not try: its rules do"
    " not allow the principal (not_allowed), too many principals need a token (limit), or it has no"
    " credentials or token for the principal (no_login); logins that brokers refused are not"
    " counted.",
    ("listener", "reason"),
)
DELEGATION_TOKENS_CREATED = counter(
    "delegation_tokens_created_total",
    "Delegation tokens created for clients: the first of a principal in this worker (first), or one"
    " that replaces another (renewal).",
    ("listener", "kind"),
)
DELEGATION_TOKEN_WAITING = gauge(
    "delegation_token_waiting",
    "Principals that wait for a delegation token now, once for each broker.",
    LISTENER,
)
DELEGATION_TOKEN_PROPAGATION = histogram(
    "delegation_token_propagation_seconds",
    "From the creation of a delegation token until the broker of the first login knew it; tokens"
    " that it did not know within 30 seconds are not counted.",
    LISTENER,
    buckets=LATENCY_BUCKETS,
)
UPSTREAM_UNREACHABLE = gauge(
    "upstream_unreachable",
    "1 if no broker answered a worker's last request: sent when a connection for a client fails and"
    " then every second, otherwise once a minute or, by a gateway, once in"
    " upstream.metadata.max.age.ms. A refused login counts as an answer (upstream_login_refused),"
    " and one broker of a cluster suffices.",
    merge=Merge.MAX,
)
BROKERS_NOT_SHOWN = gauge(
    "brokers_not_shown",
    "Brokers that are hidden from clients of a gateway, because broker.ports has no port for them,"
    " or another program has their port; the maximum of all workers.",
    LISTENER,
    merge=Merge.MAX,
)

JWKS_AGE = gauge(
    "jwks_age_seconds",
    "Time since the signing keys were last loaded, of the worker whose keys are the oldest."
    " Absent until they were loaded once, which `ready` shows. `issuer` is empty where the listener"
    " has one issuer.",
    ISSUER,
    merge=Merge.MAX,
)
JWKS_REFRESH_FAILURES = counter(
    "jwks_refresh_failures_total",
    "Attempts to load the signing keys that failed, added up over workers.",
    ISSUER,
)
CONFIGURATION_STALE = gauge(
    "configuration_stale",
    "1 if the configuration file was invalid at the last SIGHUP, so that the previous one is still"
    " in use. The log has the error.",
    merge=Merge.MAX,
)
CONFIGURATION_LOADED = gauge(
    "configuration_loaded_timestamp_seconds",
    "Time at which a worker last took over a valid configuration, by its start or a reload, in Unix"
    " time.",
    merge=Merge.MAX,
)

AUTHORIZER_DECISIONS = counter(
    "authorizer_decisions_total",
    "Decisions of the authorizer by operation and result (allowed, denied, would_be_denied); those"
    " that only filter a list are counted if they allow. Decisions about super users, and those"
    " that connections of a principal have cached, are not counted.",
    ("operation", "result"),
)
AUTHORIZER_CACHE_HITS = counter(
    "authorizer_cache_hits_total",
    "The part of authorizer_decisions_total that was cached for the same principal and host.",
)
ACLS = gauge("acls", "ACLs that apply.", merge=Merge.MAX)
STORE_VERSION = gauge(
    "store_version",
    "Version of the ACLs that a worker applies, which increases with each change by a random step;"
    " the minimum of all workers.",
    merge=Merge.MIN,
)
STORE_AGE = gauge(
    "store_age_seconds",
    "Time since the store was last read successfully, or with broker: since the brokers were asked"
    " for what it has, of the worker for which it is the longest.",
    merge=Merge.MAX,
)

BLOCKS = gauge("blocks", "Entries of the block list.", merge=Merge.MAX)
BLOCKS_AGE = gauge(
    "blocks_age_seconds",
    "Time since the block list was last read successfully, or found unchanged, of the worker for"
    " which it is the longest.",
    merge=Merge.MAX,
)
BLOCKS_MAX_AGE = gauge(
    "blocks_max_age_seconds",
    "`block.max.age.ms`: the time within which a change of the block list is enforced.",
    merge=Merge.MAX,
)
BLOCKS_MAX_STALE = gauge(
    "blocks_max_stale_seconds",
    "`block.max.stale.ms`: the age of the block list from which the proxy is not ready.",
    merge=Merge.MAX,
)

BLOCK_SIGNALS = counter(
    "block_signals_total",
    "Signals of the identity provider, by result: blocked, ignored (of another type, or too old to"
    " block a token) or refused (reported to the identity provider).",
    ("result",),
)
BLOCK_SIGNALS_AGE = gauge(
    "block_signals_age_seconds",
    "Time since the identity provider was last polled for signals successfully, or since the start;"
    " absent without block.signals.",
    merge=Merge.MAX,
)

QUOTA_LABELS = ("quota", "entry")
_QUOTA_ENTRIES = 2_000
"""Maximum number of label sets of quota metrics: the operator's entries, and one for the rest
(`MAX_COUNTS` in `proxy.quota`)."""
QUOTA_LIMIT = gauge(
    "quota_limit",
    "Limit of a quota that is in use: bytes, percent of a thread's time, partitions or connections"
    " per second, for each client or group of clients that the entry limits separately.",
    QUOTA_LABELS,
    merge=Merge.MAX,
)
QUOTA_BYTES = counter(
    "quota_bytes_total",
    "Bytes of Produce requests and Fetch responses that count towards a quota, by the entry"
    " that sets it, for all clients of an entry together; without a quota nothing is counted.",
    QUOTA_LABELS,
    max_label_sets=_QUOTA_ENTRIES,
    kip={"byte-rate": "sum by (quota, entry) (rate({0}[30s]))"},
)
QUOTA_REQUEST_TIME = counter(
    "quota_request_seconds_total",
    "Time that workers spent on clients with a request_percentage, by the entry that sets it;"
    " that of other clients is not measured.",
    ("entry",),
    max_label_sets=_QUOTA_ENTRIES,
    kip={"request-time": "100 * sum by (entry) (rate({0}[30s]))"},
)
QUOTA_CONNECTIONS = counter(
    "quota_connections_total",
    "Connections that count towards a connection_creation_rate, by the entry that sets it; refused"
    " ones are not counted.",
    ("entry",),
    max_label_sets=_QUOTA_ENTRIES,
)
QUOTA_MUTATIONS = counter(
    "quota_mutations_total",
    "Partitions created or deleted that count towards a controller_mutation_rate, by the entry that"
    " sets it; refused ones are not counted.",
    ("entry",),
    max_label_sets=_QUOTA_ENTRIES,
)
QUOTA_THROTTLES = counter(
    "quota_throttles_total",
    "Number of times that a quota was exceeded and a client throttled, or in audit would have"
    " been.",
    QUOTA_LABELS,
    max_label_sets=_QUOTA_ENTRIES,
)
QUOTA_THROTTLE_TIME = counter(
    "quota_throttle_time_seconds_total",
    "Sum of the throttle times of quota_throttles_total.",
    QUOTA_LABELS,
    max_label_sets=_QUOTA_ENTRIES,
    kip={
        "throttle-time": "1000 * sum by (quota, entry) (rate({0}[30s]))"
        f" / sum by (quota, entry) (rate({QUOTA_THROTTLES.name}[30s]))",
    },
)
QUOTA_CALLBACK_FAULTS = counter(
    "quota_callback_faults_total",
    "Number of times that the quota callback raised, stalled or returned an invalid answer, by"
    " kind.",
    ("kind",),
)

CERTIFICATE_EXPIRY = gauge(
    "certificate_expiry_timestamp_seconds",
    "Expiry of the certificate for clients in Unix time, of the worker for which it is the"
    " earliest; other certificates of its chain are not considered.",
    LISTENER,
    merge=Merge.MIN,
)
UPSTREAM_CERTIFICATE_EXPIRY = gauge(
    "upstream_certificate_expiry_timestamp_seconds",
    "Expiry of the certificate for brokers in Unix time, of the worker for which it is the"
    " earliest. Absent without one.",
    merge=Merge.MIN,
)
UPSTREAM_LOGIN_REFUSED = gauge(
    "upstream_login_refused",
    "1 if all brokers refuse the login of the proxy's own connections; /readyz has the reason."
    " Absent where it does not log in.",
    merge=Merge.MAX,
)
UPSTREAM_TOKEN_EXPIRY = gauge(
    "upstream_token_expiry_timestamp_seconds",
    "Expiry of the token with which the proxy logs in to brokers in Unix time, of the worker for"
    " which it is the earliest. Absent without one, and if its expiry is unknown.",
    merge=Merge.MIN,
)
UPSTREAM_TOKEN_REFRESH_FAILURES = counter(
    "upstream_token_refresh_failures_total",
    "Failed attempts to load that token from its source, added up over workers.",
)

EVENTS_WRITTEN = counter("events_written_total", "Session events written to the log.")
EVENTS_DROPPED = counter(
    "events_dropped_total",
    "Session events lost because the queue was full (queue_full), a write failed (write_error), or"
    " their file was removed or moved before it was closed (file_removed), or by"
    " events.retention.bytes before it was delivered (undelivered; events_written_total counts"
    " both, too); or left out, because connections that never authenticated exceeded the"
    " rate of their events (`strangers`).",
    ("reason",),
)
EVENT_LOG_BYTES = counter("event_log_bytes_total", "Bytes written to the session event log.")

LOG_LINES_DROPPED = counter(
    "log_lines_dropped_total",
    "Lines of the log that were lost because its reader stalled or was gone, by process; lines that"
    " log.level leaves out are not counted.",
    ("process",),
)

DELIVERY_EVENTS = counter(
    "delivery_events_total",
    "Session events delivered to events.deliver.to; one that is delivered again after an error is"
    " counted once more.",
)
DELIVERY_BYTES = counter("delivery_bytes_total", "Bytes of those events, uncompressed.")
DELIVERY_SET_ASIDE = counter(
    "delivery_set_aside_total",
    "Lines of event files that cannot be delivered: too long for the topic, cut off, or no JSON"
    " where fields are hidden.",
)
DELIVERY_FAILURES = counter(
    "delivery_failures_total",
    "Attempts to deliver that failed; what they were about is tried again.",
)
DELIVERY_GONE_FILES = counter(
    "delivery_gone_files_total",
    "Event files that somebody removed before they were delivered, as far as the deliverer knew"
    " them; the events that events.retention.bytes removed are counted in events_dropped_total"
    " (undelivered).",
)
DELIVERY_WAITING_BYTES = gauge(
    "delivery_waiting_bytes",
    "Bytes in event files that are not delivered yet.",
)
DELIVERY_OLDEST = gauge(
    "delivery_oldest_waiting_seconds",
    "Age at most of the oldest event that is not delivered yet; 0: none waits.",
)
DELIVERY_SUCCESS = gauge(
    "delivery_last_success_timestamp_seconds",
    "When everything that could be delivered had last been, in Unix time; absent before.",
)

READINESS_CLIENTS = gauge(
    "readiness_clients",
    "Clients in the report, by verdict (docs/readiness.md); never_logged_in: without one. These"
    " metrics are those of the report's `report.prom`.",
    ("verdict",),
)
READINESS_PRINCIPALS = gauge(
    "readiness_principals", "Principals in that report, by the worst verdict of them.", ("verdict",)
)
READINESS_REGRESSED_CLIENTS = gauge(
    "readiness_regressed_clients",
    "Clients in that report that were ready at the end of an earlier day, and are not any more.",
)
READINESS_KAFKA_4_CLIENTS = gauge(
    "readiness_kafka_4_clients",
    "Clients in that report that use versions of APIs that Kafka 4.0 dropped (KIP-896).",
)
READINESS_KILLS_PER_DAY = gauge(
    "readiness_kills_per_day",
    "Kills a day that a session lifetime would have made, at least and at most (`bound`: `least`,"
    " `most`); absent where events cover less than an hour.",
    ("lifetime_seconds", "bound"),
)
READINESS_KILLED_CLIENTS = gauge(
    "readiness_killed_clients",
    "Clients of which that lifetime would have killed a connection.",
    ("lifetime_seconds",),
)
READINESS_FAILED_AUTHENTICATIONS = gauge(
    "readiness_failed_authentications",
    "Failed authentications in the time that the report covers: first ones (`login`), and others"
    " (`reauthentication`).",
    ("phase",),
)
READINESS_REPORT_TIME = gauge(
    "readiness_report_timestamp_seconds",
    "The report's present time (`--as-of`, by default when it was made), in Unix time.",
)
READINESS_NEWEST_EVENT = gauge(
    "readiness_newest_event_timestamp_seconds",
    "The report's newest event, in Unix time; absent without events.",
)
EVENT_LOOP_LAG = histogram(
    "event_loop_lag_seconds",
    "Delay of a timer of a worker's event loop.",
    buckets=LAG_BUCKETS,
)
BUILD_INFO = gauge(
    "build_info",
    "Always 1; the labels describe the running release. `compiled`: `true` if the data path is"
    " compiled, as in the image, `false` if it runs as plain Python.",
    ("version", "python", "compiled"),
    merge=Merge.MAX,
)
START_TIME = gauge(
    "start_time_seconds",
    "Time at which the first of the workers started, in Unix time.",
    merge=Merge.MIN,
)
WORKER_UP = gauge(
    "worker_up",
    "1 if the worker answered this scrape in time; if 0, its counters are those of its last answer"
    " and its gauges are left out.",
    ("worker",),
)
READY = gauge(
    "ready",
    "1 if the worker can serve the clients of every listener; if 0, /readyz has the reason."
    " Left out while the worker does not answer.",
    ("worker",),
)
WORKER_CPU = counter(
    "worker_cpu_seconds_total",
    "User and system CPU time of a worker process; the parent's and the HTTP process's are left"
    " out.",
    ("worker",),
)
WORKER_MEMORY = gauge(
    "worker_resident_memory_bytes",
    "Resident memory of a worker process; what workers share is in each of them.",
    ("worker",),
)
WORKER_OPEN_FDS = gauge("worker_open_fds", "Open file descriptors of a worker.", ("worker",))

METRICS: tuple[Metric, ...] = tuple(
    value for value in tuple(globals().values()) if isinstance(value, Metric)
)
"""All metrics, in the order of this file."""

BY_NAME = {metric.name: metric for metric in METRICS}
