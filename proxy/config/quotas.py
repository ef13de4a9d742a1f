"""Settings of quotas."""

from enum import StrEnum
from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from proxy.config.section import KAFKA_BROKER, OWN, Section, setting
from proxy.config.values import Bytes, Count, shown
from proxy.quota.model import QuotaKey


class QuotasMode(StrEnum):
    """What is done about quotas."""

    OFF = "off"
    """They are kept and told, but nothing is measured."""
    AUDIT = "audit"
    """What exceeds them is counted and logged; nobody is throttled."""
    ENFORCE = "enforce"


def _callback(value: object) -> object:
    module, colon, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not (module and colon and name.isidentifier()):
        raise ValueError(f"must be package.module:Class, got {shown(value)}")
    return value


CallbackClass = Annotated[str, BeforeValidator(_callback)]


class Quotas(Section):
    """How much each client may use."""

    mode: QuotasMode = setting(QuotasMode.OFF, source=OWN)
    """`off`: nothing is measured; the client-quota APIs keep and tell quotas all the same.
    `audit`: who exceeds one is counted and logged, nobody is throttled. `enforce`: they are."""
    quota_window_num: Annotated[Count, Field(ge=2, le=1_000)] = setting(11, source=KAFKA_BROKER)
    """Samples of which a rate is made, the one under way included."""
    quota_window_size_seconds: Annotated[Count, Field(le=3_600)] = setting(
        1, source=KAFKA_BROKER, unit="s"
    )
    """How long one sample is."""
    quota_producer_default: Bytes | None = setting(None, source=KAFKA_BROKER, unit="bytes/s")
    """What a client id may produce that no entry limits; null: any amount. Gone from Kafka 4,
    where an entry for the default client id takes its place."""
    quota_consumer_default: Bytes | None = setting(None, source=KAFKA_BROKER, unit="bytes/s")
    """What a client id may fetch that no entry limits; null: any amount. As above."""
    client_quota_callback_class: CallbackClass | None = setting(None, source=KAFKA_BROKER)
    """A quota callback of one's own (KIP-257): `package.module:Class`."""
    client_quota_callback_configs: dict[str, Any] = setting({}, source=OWN)
    """What the callback's `configure` is given."""

    def static_defaults(self) -> dict[QuotaKey, float]:
        """Return the last row of the precedence, by the key that each stands for."""
        given = {
            QuotaKey.PRODUCER_BYTE_RATE: self.quota_producer_default,
            QuotaKey.CONSUMER_BYTE_RATE: self.quota_consumer_default,
        }
        return {key: float(limit) for key, limit in given.items() if limit is not None}
