"""Settings of the delivery of the event log."""

from typing import Annotated, Self

from metrics.delivery.selection import HIDEABLE, Kinds
from metrics.delivery.target import MEANT, Target, parse_target
from proxy.config.section import KAFKA_CLIENT, OWN, KeyProblemError, Section, setting
from proxy.config.upstream_sasl import UpstreamSasl
from proxy.config.values import BrokerAddress, Milliseconds, one_or_list, shown
from proxy.declarations import (
    BeforeValidator,
    PlainSerializer,
    PlainValidator,
    WithJsonSchema,
    model_validator,
)


def _target(value: object) -> Target:
    if isinstance(value, Target):
        return value
    if not isinstance(value, str):
        raise ValueError(f"{MEANT}, got {shown(value)}")
    return parse_target(value)  # its errors do not show the value, which may contain a password


def _kinds(value: object) -> object:
    if value not in list(Kinds):
        raise ValueError(f"must be {' or '.join(Kinds)}, got {shown(value)}")
    return value


def _field(value: object) -> object:
    if value not in HIDEABLE:
        raise ValueError(f"must be one of {', '.join(HIDEABLE)}, got {shown(value)}")
    return value


TargetValue = Annotated[
    Target,
    PlainValidator(_target),
    PlainSerializer(str),
    WithJsonSchema({"type": "string", "pattern": "^kafka:"}),
]
HiddenField = Annotated[
    str,
    BeforeValidator(_field),
    WithJsonSchema({"type": "string", "enum": list(HIDEABLE)}),
]


class DeliverKafka(UpstreamSasl):
    """Kafka cluster of the topic, where it is not the one behind the proxy.

    The connection and the login are set as in `upstream`.
    """

    bootstrap_servers: Annotated[tuple[BrokerAddress, ...], BeforeValidator(one_or_list)] = setting(
        (), source=KAFKA_CLIENT, repeated_or_one=True
    )
    """Brokers of another cluster, with its `security.protocol`, `ssl.…` and `sasl.…` beside it, as
    in `upstream`; empty: the topic is in the cluster behind the proxy, to which the proxy logs in
    as for its clients."""

    @model_validator(mode="after")
    def _check_servers(self) -> Self:
        others = [name for name in self.model_fields_set if name != "bootstrap_servers"]
        if not self.bootstrap_servers and others:
            raise KeyProblemError("bootstrap.servers", "is required with other settings beside it")
        if self.bootstrap_servers and self.sasl and self.sasl_mechanism is None:
            problem = f"is required with security.protocol: {self.security_protocol}"
            raise KeyProblemError("sasl.mechanism", problem)
        return self


class Deliver(Section):
    """Delivery of the event log, by a process beside the workers."""

    to: TargetValue | None = setting(None, source=OWN)
    """`kafka:TOPIC` (needs the extra `kafka`); null: event files stay where they are."""
    kinds: Annotated[Kinds, BeforeValidator(_kinds)] = setting(Kinds.ALL, source=OWN)
    """`all`, or `summary`: the summary rows alone, which answer the report's questions."""
    hide: Annotated[tuple[HiddenField, ...], BeforeValidator(one_or_list)] = setting(
        (), source=OWN, repeated_or_one=True
    )
    """Fields whose values are replaced by `hidden`: `client_host`, `client_id`, `principal`,
    `claimed_principal`, `resource_name`, `proxy_id`, `groups`, `groups_joined` or `groups_left`."""
    drain_ms: Milliseconds = setting(10_000, source=OWN, unit="ms")
    """Longest time that the delivery of the last events may take when the proxy ends, after
    `shutdown.drain.ms`."""
    kafka: DeliverKafka = setting({}, source=OWN)

    @model_validator(mode="after")
    def _check_kafka(self) -> Self:
        if self.kafka.bootstrap_servers and self.to is None:
            raise KeyProblemError("kafka.bootstrap.servers", "has no meaning without to: kafka:")
        return self
