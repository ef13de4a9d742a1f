"""Questions about the cluster and its configuration, and the ACL APIs themselves."""

from itertools import product
from typing import Any

from tests.support.acls import asking
from tests.support.kafka.acl_differential.profiles import as_filter, creation
from tests.support.kafka.acl_differential.requests import WITH_MISSING, Context, ask, constant

_TOPIC, _BROKER, _BROKER_LOGGER, _CLIENT_METRICS, _GROUP = 2, 4, 8, 16, 32
_KEY = {
    _TOPIC: "retention.ms",
    _BROKER: "log.cleaner.threads",
    _GROUP: "consumer.session.timeout.ms",
}


def _resources(context: Context, *types: int) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = []
    for kind in types:
        if kind in (_TOPIC, _GROUP, _CLIENT_METRICS):
            names = [context.names(each) for each in WITH_MISSING]
        else:
            names = ["1"]
        found += [{"resource_type": kind, "resource_name": name} for name in names]
    return found


# --- ACLs


def _entry(context: Context, acl: str, user: str = "someone") -> dict[str, Any]:
    return dict(creation(acl, f"{context.names.user}.{user}", context.names))


_ENTRIES = ("+topic:acl:READ", "-topic:acl:WRITE", "+topic:ac^:READ@10.0.0.1", "+group:acl:DELETE")
_ODD = (
    {"resource_type": 1},
    {"resource_type": 99},
    {"operation": 1},
    {"operation": 99},
    {"permission_type": 1},
    {"permission_type": 99},
    {"principal": "nobody"},
    {"principal": ""},
    {"resource_name": ""},
    {"resource_type": 4},
    {"host": ""},
    {"host": "no host"},
    {"operation": 12},
)


def _filter_field(name: str) -> str:
    return name if name in ("operation", "permission_type") else f"{name}_filter"


ask(30, "CreateAcls", lambda c: {"creations": [_entry(c, acl) for acl in _ENTRIES]})
ask(30, "CreateAcls of nothing", constant(creations=()))
for _odd in _ODD:
    ask(
        30,
        f"CreateAcls, one of two odd: {_odd}",
        lambda c, odd=_odd: {
            "creations": [_entry(c, _ENTRIES[0]), {**_entry(c, _ENTRIES[1]), **odd}]
        },
        since=3,
        profiles=("all", "none", "cluster-alter"),
    )

# --- configuration

_CONFIGURED = (("topics", (_TOPIC,)), ("the broker", (_BROKER,)), ("both", (_TOPIC, _BROKER)))
for _word, _types in (
    *_CONFIGURED,
    ("groups", (_GROUP,)),
    ("client metrics", (_CLIENT_METRICS,)),
    ("loggers", (_BROKER_LOGGER,)),
):
    ask(
        32,
        f"DescribeConfigs of {_word}",
        lambda c, types=_types: {
            "resources": [
                {
                    **each,
                    "configuration_keys": [_KEY.get(each["resource_type"], "kafka.none")],
                }
                for each in _resources(c, *types)
            ]
        },
    )
for _word, _types in (*_CONFIGURED, ("groups", (_GROUP,)), ("client metrics", (_CLIENT_METRICS,))):
    ask(
        44,
        f"IncrementalAlterConfigs of {_word}, validated only",
        lambda c, types=_types: {
            "resources": [
                {
                    **each,
                    "configs": [
                        {
                            "name": _KEY.get(each["resource_type"], "interval.ms"),
                            "config_operation": 1,
                            "value": None,
                        }
                    ],
                }
                for each in _resources(c, *types)
            ],
            "validate_only": True,
        },
    )
for _word, _types in _CONFIGURED:
    ask(
        33,
        f"AlterConfigs of {_word}, validated only",
        lambda c, types=_types: {
            "resources": [{**each, "configs": []} for each in _resources(c, *types)],
            "validate_only": True,
        },
    )
ask(
    33,
    "AlterConfigs of two",
    lambda c: {
        "resources": [
            {
                **each,
                "configs": [{"name": "retention.ms", "value": "777777777"}],
            }
            for each in _resources(c, _TOPIC)[:2]
        ],
    },
)

ask(48, "DescribeClientQuotas", constant(components=(), strict=True))
ask(
    55,
    "DescribeQuorum",
    constant(topics=[{"topic_name": "__cluster_metadata", "partitions": [{"partition_index": 0}]}]),
)
ask(57, "UpdateFeatures of none", constant(timeout=10_000, validate_only=True))
ask(
    57,
    "UpdateFeatures, validated only",
    constant(
        timeout=10_000,
        validate_only=True,
        feature_updates=[{"feature": "no.such", "max_version_level": 1, "upgrade_type": 1}],
    ),
)
for _include in (False, True):
    ask(
        60,
        f"DescribeCluster{' with operations' if _include else ''}",
        constant(include_cluster_authorized_operations=_include, endpoint_type=1),
    )
ask(64, "UnregisterBroker", constant(broker_id=77))
ask(71, "GetTelemetrySubscriptions", constant())
ask(72, "PushTelemetry", constant(metrics=b""))
ask(74, "ListConfigResources", constant(resource_types=()), is_list=True)
ask(74, "ListConfigResources of metrics", constant(resource_types=[16]), since=1)
ask(74, "ListConfigResources of groups", constant(resource_types=[32]), since=1)
ask(
    80,
    "AddRaftVoter",
    constant(cluster_id="another", voter_id=77, listeners=()),
)
ask(81, "RemoveRaftVoter", constant(cluster_id="another", voter_id=77))

# --- ACLs again, when the broker has learnt of them

for _type, _pattern in product((1, 2, 3), (1, 2, 3, 4)):
    ask(
        29,
        f"DescribeAcls of type {_type} by pattern {_pattern}",
        lambda c, kind=_type, pattern=_pattern: {
            **asking(),
            "resource_type_filter": kind,
            "resource_name_filter": c.names("acl"),
            "pattern_type_filter": pattern,
            "principal_filter": f"User:{c.names.user}.someone",
        },
        profiles=("all", "none", "one", "cluster-describe", "cluster-alter", "deny-all"),
    )
ask(
    29,
    "DescribeAcls of one user",
    lambda c: {**asking(), "principal_filter": f"User:{c.names.user}.someone"},
)
for _operation in (2, 3, 4, 8):
    ask(
        29,
        f"DescribeAcls of operation {_operation}",
        lambda c, operation=_operation: {
            **asking(),
            "operation": operation,
            "principal_filter": f"User:{c.names.user}.someone",
        },
        profiles=("all",),
    )
for _odd in _ODD:
    ask(
        29,
        f"DescribeAcls, odd: {_odd}",
        lambda c, odd=_odd: {
            **as_filter(_entry(c, _ENTRIES[0])),
            **{_filter_field(name): value for name, value in odd.items()},
        },
        since=3,
        profiles=("all", "none", "cluster-describe"),
    )

ask(
    31,
    "DeleteAcls",
    lambda c: {
        "filters": [
            as_filter(_entry(c, _ENTRIES[0])),
            as_filter(_entry(c, "+topic:never:READ")),
            {**asking(), "principal_filter": f"User:{c.names.user}.someone"},
        ]
    },
)
ask(31, "DeleteAcls of nothing", constant(filters=()))
for _odd in _ODD:
    ask(
        31,
        f"DeleteAcls, one of two odd: {_odd}",
        lambda c, odd=_odd: {
            "filters": [
                as_filter(_entry(c, "+topic:acl:CREATE")),
                {
                    **as_filter(_entry(c, "+topic:acl:ALTER")),
                    **{_filter_field(name): value for name, value in odd.items()},
                },
            ]
        },
        since=3,
        profiles=("all", "none", "cluster-alter"),
    )
