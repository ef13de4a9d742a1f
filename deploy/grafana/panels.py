"""Panels of the dashboards, one question each. generate.py writes the dashboards."""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial


@dataclass(frozen=True, slots=True)
class Panel:
    """One question. `queries` are (legend, PromQL); `P_` stands for the metrics' prefix.

    `%` stands for the selection of instances and listeners, `@` for that of instances alone.
    """

    title: str
    says: str
    unit: str
    queries: Sequence[tuple[str, str]]
    kind: str = "timeseries"
    width: int = 8


Stat = partial(Panel, kind="stat", width=6)


@dataclass(frozen=True, slots=True)
class Row:
    """A heading, for the panels below it."""

    title: str


def of_report(metric: str, by: str = "", of: str = "") -> str:
    """Query a figure of each fleet's report, of which several servers may show the same one."""
    labels = f"job, {by}" if by else "job"
    return f"max by ({labels}) (P_readiness_{metric}{of})"


_READY = '{verdict="ready"}'
_LOGGED_IN = '{verdict!="never_logged_in"}'


def per_second(metric: str, by: str = "", of: str = "%") -> str:
    """Query the sum of a counter's rates."""
    grouped = f"sum by ({by}) " if by else "sum"
    return f"{grouped}(rate(P_{metric}{{{of}}}[$__rate_interval]))"


def rates(metric: str, by: str, says: str = "", of: str = "%") -> tuple[str, str]:
    """Return a legend of the labels in `by`, after `says`, and the query of the rates by them."""
    legend = " ".join(f"{{{{{label}}}}}" for label in by.split(", "))
    return says + legend, per_second(metric, by, of)


def greatest(query: str) -> str:
    """Query the ten greatest values, without those that are 0: most are, of many label sets."""
    return f"topk(10, {query} > 0)"


def busiest(metric: str, by: str, says: str = "", of: str = "%") -> tuple[str, str]:
    """Return the same as `rates`, of the ten greatest alone."""
    legend, query = rates(metric, by, says, of)
    return legend, greatest(query)


def quantile(percent: int, metric: str, by: str = "", of: str = "%") -> str:
    """Query a percentile of a histogram."""
    labels = f"{by}, le" if by else "le"
    return (
        f"histogram_quantile({percent / 100}, sum by ({labels})"
        f" (rate(P_{metric}_bucket{{{of}}}[$__rate_interval])))"
    )


@dataclass(frozen=True, slots=True)
class Annotation:
    """A moment that all panels mark: where `query` has a value."""

    name: str
    says: str
    query: str
    colour: str


ANNOTATIONS = (
    Annotation(
        "Kills",
        "expired connections killed on {{listener}}",
        "sum by (listener) (increase(P_expired_connections_killed_total{%}[2m])) > 0",
        "red",
    ),
    Annotation(
        "Reloads",
        "{{instance}} took over a configuration",
        "changes(P_configuration_loaded_timestamp_seconds{@}[2m]) > 0",
        "blue",
    ),
    Annotation(
        "Starts", "{{instance}} started", "changes(P_start_time_seconds{@}[2m]) > 0", "purple"
    ),
    Annotation(
        "Brokers return",
        "{{instance}} reaches a broker again",
        "max by (instance) (max_over_time(P_upstream_unreachable{@}[2m])) == 1"
        " and on (instance) max by (instance) (P_upstream_unreachable{@}) == 0",
        "green",
    ),
)

MIGRATION = (
    Stat(
        "Clients that re-authenticate",
        "Share of the logins of a day by clients that speak SaslAuthenticate v1 or later.",
        "percentunit",
        [
            (
                "",
                "1 - sum(increase(P_successful_authentication_no_reauth_total{%}[1d]))"
                " / sum(increase(P_successful_authentication_total{%}[1d]))",
            )
        ],
    ),
    Stat(
        "Logins without re-authentication",
        "Of the last day: SaslAuthenticate v0 and raw tokens. It must be 0 before the switch.",
        "short",
        [("", "sum(increase(P_successful_authentication_no_reauth_total{%}[1d]))")],
    ),
    Stat(
        "Would have been killed",
        "Of the last day, in `probe`: used past the end of the session.",
        "short",
        [("", "sum(increase(P_expired_connections_would_be_killed_total{%}[1d]))")],
    ),
    Stat(
        "Killed",
        "Of the last day, in `enforce`.",
        "short",
        [("", "sum(increase(P_expired_connections_killed_total{%}[1d]))")],
    ),
    Panel(
        "Re-authentications",
        "Successful ones, per second.",
        "ops",
        [rates("successful_reauthentication_total", "listener, mechanism")],
    ),
    Panel(
        "Logins of clients that cannot re-authenticate",
        "Logins without SaslAuthenticate v1, per second. Names: the `no-reauth`"
        " events and the readiness report.",
        "ops",
        [rates("successful_authentication_no_reauth_total", "listener, mechanism")],
    ),
    Panel(
        "Connections that are, or would be, killed",
        "Per second. Names: the `would-be-killed` and `expired-killed` events.",
        "ops",
        [
            rates("expired_connections_would_be_killed_total", "listener, mechanism", "would be: "),
            rates("expired_connections_killed_total", "listener, mechanism", "killed: "),
        ],
    ),
    Panel(
        "Failed re-authentications",
        "Per second; each closed its connection.",
        "ops",
        [rates("failed_reauthentication_total", "listener, mechanism")],
    ),
    Panel(
        "Latency of re-authentications",
        "From the SaslHandshake's arrival to success (KIP-368).",
        "s",
        [
            (
                f"p{percent} {{{{mechanism}}}}",
                quantile(percent, "reauthentication_latency_seconds", by="mechanism"),
            )
            for percent in (50, 99)
        ],
    ),
    Panel(
        "Lifetime left of open sessions",
        "Sessions that end within each time; `0`: past their end, idle or kept by `probe`.",
        "short",
        [("{{le}} s", "sum by (le) (P_session_lifetime_left_seconds_bucket{%})")],
        kind="bargauge",
    ),
    Panel(
        "Logins of unknown principals",
        "Per second; brokers accepted them (`sasl.termination: broker`), and their principals are"
        " `Opaque:…`.",
        "ops",
        [rates("opaque_authentication_total", "listener, mechanism")],
    ),
    Row("Automatic migration: reauth.enforcement: auto"),
    Panel(
        "Principals by stage",
        "Names and reasons: `reauth-proxy rollout status`.",
        "short",
        [("{{stage}}", "max by (stage) (P_auto_principals{@})")],
        width=12,
    ),
    Panel(
        "Promotions and demotions",
        "In an hour.",
        "short",
        [("{{decision}}", "sum by (decision) (increase(P_auto_decisions_total{@}[1h]))")],
        width=12,
    ),
    Row("Fleet over time: the readiness report"),
    Stat(
        "Clients that are ready",
        "Share of the clients that logged in, in the last report of each job.",
        "percentunit",
        [
            (
                "{{job}}",
                f"sum by (job) ({of_report('clients', 'verdict', _READY)})"
                f" / sum by (job) ({of_report('clients', 'verdict', _LOGGED_IN)})",
            )
        ],
    ),
    Stat(
        "Clients that are not ready any more",
        "They were ready at the end of an earlier day. Names: the head of the report's page.",
        "short",
        [("{{job}}", of_report("regressed_clients"))],
    ),
    Stat(
        "Age of the report",
        "Since the last complete run.",
        "s",
        [("{{job}}", f"time() - {of_report('report_timestamp_seconds')}")],
    ),
    Stat(
        "Age of its newest event",
        "If it grows while reports are recent, events do not reach the report.",
        "s",
        [("{{job}}", f"time() - {of_report('newest_event_timestamp_seconds')}")],
    ),
    Panel(
        "Clients by verdict",
        "In each report; unknown: the log does not show it.",
        "short",
        [("{{verdict}} ({{job}})", of_report("clients", "verdict"))],
    ),
    Panel(
        "Expected kills a day",
        "At most, for each session lifetime.",
        "short",
        [
            (
                "{{lifetime_seconds}} s ({{job}})",
                of_report("kills_per_day", "lifetime_seconds", '{bound="most"}'),
            )
        ],
    ),
    Panel(
        "Clients that each lifetime would kill",
        "Without the clients that are known to re-authenticate.",
        "short",
        [("{{lifetime_seconds}} s ({{job}})", of_report("killed_clients", "lifetime_seconds"))],
    ),
    Panel(
        "Principals by verdict",
        "By the worst of their clients; sessions of ready principals can be enforced.",
        "short",
        [("{{verdict}} ({{job}})", of_report("principals", "verdict"))],
    ),
    Panel(
        "Failed authentications",
        "Logins and re-authentications in the time that the report covers.",
        "short",
        [("{{phase}} ({{job}})", of_report("failed_authentications", "phase"))],
    ),
    Panel(
        "Clients that break at Kafka 4.0",
        "They use versions of APIs that Kafka 4.0 dropped (KIP-896).",
        "short",
        [("{{job}}", of_report("kafka_4_clients"))],
    ),
)

OPERATION = (
    Stat(
        "Proxies",
        "Proxies that answer the scrape and whose workers are all ready.",
        "short",
        [("", "count(min by (instance) (P_ready{@} or P_worker_up{@}) == 1) or vector(0)")],
    ),
    Stat("Connections", "Open now.", "short", [("", "sum(P_connections{%})")]),
    Stat(
        "Age of the signing keys",
        "Age of the oldest key set: stale after two hours; after a day OAUTHBEARER logins fail.",
        "s",
        [("", "max(P_jwks_age_seconds{%})")],
    ),
    Stat(
        "Time since the store was read",
        "For the worst worker.",
        "s",
        [("", "max(P_store_age_seconds{@})")],
    ),
    Stat(
        "Time since the block list was read",
        "For the worst worker; its sessions end within `block.max.age.ms` of a block.",
        "s",
        [("", "max(P_blocks_age_seconds{@})")],
    ),
    Panel(
        "Signals of the identity provider",
        "In an hour: `blocked` end sessions, `refused` are invalid.",
        "short",
        [("{{result}}", "sum by (result) (increase(P_block_signals_total{@}[1h]))")],
    ),
    Panel(
        "Requests",
        "Of authenticated clients, per second; the ten busiest APIs.",
        "reqps",
        [busiest("requests_total", "api")],
    ),
    Panel(
        "Traffic",
        "Requests and responses.",
        "Bps",
        [
            ("from clients", per_second("request_bytes_total")),
            ("to clients", per_second("response_bytes_total")),
        ],
    ),
    Panel(
        "Latency of the brokers",
        "From a request written to them to the first bytes of the response, p99 of a sample; the"
        " ten slowest APIs. A Fetch waits for records.",
        "s",
        [("{{api}}", greatest(quantile(99, "broker_latency_seconds", by="api")))],
    ),
    Panel(
        "Latency that the proxy adds",
        "For the same requests, including waits for quotas and ACLs.",
        "s",
        [
            (
                f"p{percent} {{{{listener}}}}",
                quantile(percent, "proxy_latency_seconds", by="listener"),
            )
            for percent in (50, 99)
        ],
    ),
    Panel(
        "Latency of connections and logins",
        "p99 of the time to open a connection to a broker, and of first logins.",
        "s",
        [
            ("brokers of {{listener}}", quantile(99, "upstream_connect_seconds", by="listener")),
            (
                "login: {{mechanism}}",
                quantile(99, "authentication_latency_seconds", by="mechanism"),
            ),
        ],
    ),
    Panel(
        "Connections by listener",
        "Open now.",
        "short",
        [("{{listener}}", "sum by (listener) (P_connections{%})")],
    ),
    Panel(
        "Connections opened and closed",
        "Per second; closed by reason, the ten most frequent.",
        "ops",
        [
            ("opened", per_second("connections_opened_total")),
            busiest("connections_closed_total", "reason", says="closed: "),
        ],
    ),
    Panel(
        "Authentications",
        "First logins, per second.",
        "ops",
        [
            rates("successful_authentication_total", "mechanism", "good: "),
            rates("failed_authentication_total", "mechanism", "failed: "),
        ],
    ),
    Panel(
        "Failures by reason",
        "Of authentications and re-authentications, per second; the ten most frequent.",
        "ops",
        [busiest("authentication_failures_total", "reason")],
    ),
    Panel(
        "Decisions about requests",
        "Of the authorizer, per second, the ten most frequent; decisions that connections cache are"
        " not counted.",
        "ops",
        [busiest("authorizer_decisions_total", "result, operation", of="@")],
    ),
    Panel(
        "Connections throttled",
        "Connections that are not read now because of a quota.",
        "short",
        [("{{listener}}", "sum by (listener) (P_throttled_connections{%})")],
    ),
    Panel(
        "Quotas exceeded",
        "Per second, by the entry that limits, the ten most frequent; in `audit` no client waits.",
        "ops",
        [busiest("quota_throttles_total", "quota, entry", of="@")],
    ),
    Panel(
        "No broker available",
        "1: no broker answers, or all refuse the proxy's login.",
        "short",
        [
            ("cannot be reached: {{instance}}", "max by (instance) (P_upstream_unreachable{@})"),
            ("login refused: {{instance}}", "max by (instance) (P_upstream_login_refused{@})"),
        ],
    ),
    Panel(
        "Failures to reach brokers and signing keys",
        "Failed connections and failed loads of keys, per second.",
        "ops",
        [
            rates("upstream_connect_failures_total", "listener", "brokers of "),
            rates("jwks_refresh_failures_total", "listener", "keys of "),
        ],
    ),
    Panel(
        "The proxy's own logins to brokers",
        "Per second; each failure closes a client's connection.",
        "ops",
        [
            rates("upstream_successful_authentication_total", "listener", "good: "),
            rates("upstream_successful_reauthentication_total", "listener", "renewed: "),
            rates("upstream_failed_authentication_total", "listener", "failed: "),
            rates("upstream_failed_reauthentication_total", "listener", "not renewed: "),
            ("no token", per_second("upstream_token_refresh_failures_total", of="@")),
        ],
    ),
    Panel(
        "Client identity at brokers",
        "Logins as a client that were refused, and delegation tokens created, per second.",
        "ops",
        [
            rates("identity_refused_total", "reason", "refused: "),
            rates("delegation_tokens_created_total", "kind", "token: "),
        ],
    ),
    Panel(
        "Wait for delegation tokens",
        "Principals that wait now.",
        "short",
        [("{{listener}}", "sum by (listener) (P_delegation_token_waiting{%})")],
    ),
    Panel(
        "Propagation of delegation tokens",
        "From creation until the broker knows the token; 99 of 100 took no longer.",
        "s",
        [("{{listener}}", quantile(99, "delegation_token_propagation_seconds", by="listener"))],
    ),
    Panel(
        "Session events",
        "Written, lost (disk full or too slow), or left out (too many failed logins), per second.",
        "ops",
        [
            ("written", per_second("events_written_total", of="@")),
            rates("events_dropped_total", "reason", of="@", says="not written: "),
        ],
    ),
    Panel(
        "Events delivered",
        "To `events.deliver.to`, per second; set aside: lines that the topic cannot take.",
        "ops",
        [
            ("delivered", per_second("delivery_events_total", of="@")),
            ("set aside", per_second("delivery_set_aside_total", of="@")),
            ("failed attempts", per_second("delivery_failures_total", of="@")),
        ],
    ),
    Panel(
        "Events waiting for delivery",
        "Bytes in the folders of the ten proxies with the most.",
        "bytes",
        [("{{instance}}", "topk(10, max by (instance) (P_delivery_waiting_bytes{@}))")],
    ),
    Panel(
        "Age of the oldest waiting event",
        "Upper bound; the ten proxies that are furthest behind.",
        "s",
        [("{{instance}}", "topk(10, max by (instance) (P_delivery_oldest_waiting_seconds{@}))")],
    ),
    Panel(
        "CPU by worker",
        "1 is a whole core.",
        "short",
        [rates("worker_cpu_seconds_total", "instance, worker", of="@")],
    ),
    Panel(
        "Event loop lag",
        "How late timers run, p99.",
        "s",
        [("{{instance}}", quantile(99, "event_loop_lag_seconds", by="instance", of="@"))],
    ),
    Panel(
        "Memory by worker",
        "Resident; shared memory counts in each worker.",
        "bytes",
        [
            (
                "{{instance}} {{worker}}",
                "sum by (instance, worker) (P_worker_resident_memory_bytes{@})",
            )
        ],
    ),
    Panel(
        "Open files by worker",
        "Two for each connection.",
        "short",
        [("{{instance}} {{worker}}", "sum by (instance, worker) (P_worker_open_fds{@})")],
    ),
    Panel(
        "Expiry of certificates and token",
        "The proxy's certificates towards clients and brokers, and its token towards brokers.",
        "s",
        [
            (
                "{{listener}}",
                "min by (listener) (P_certificate_expiry_timestamp_seconds{%}) - time()",
            ),
            ("brokers", "min(P_upstream_certificate_expiry_timestamp_seconds{@}) - time()"),
            ("token", "min(P_upstream_token_expiry_timestamp_seconds{@}) - time()"),
        ],
    ),
)
