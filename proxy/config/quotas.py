"""Settings of quotas."""

from enum import StrEnum
from typing import Annotated, Any

from proxy.config.section import KAFKA_BROKER, OWN, Section, setting
from proxy.config.values import Bytes, Count, shown
from proxy.declarations import BeforeValidator, Field
from proxy.quota.model import QuotaKey


class QuotasMode(StrEnum):
    """Treatment of quotas."""

    OFF = "off"
    """Quotas are stored and described, but nothing is measured."""
    AUDIT = "audit"
    """Excess is counted and logged; no client is throttled."""
    ENFORCE = "enforce"


def _callback(value: object) -> object:
    module, colon, name = value.partition(":") if isinstance(value, str) else ("", "", "")
    if not (module and colon and name.isidentifier()):
        raise ValueError(f"must be package.module:Class, got {shown(value)}")
    return value


CallbackClass = Annotated[str, BeforeValidator(_callback)]


class Quotas(Section):
    """Quotas of clients."""

    mode: QuotasMode = setting(QuotasMode.OFF, source=OWN)
    """`off`: nothing is measured; the client-quota APIs still store and describe quotas. `audit`:
    excess is counted and logged, no client is throttled. `enforce`: clients are throttled."""
    quota_window_num: Annotated[Count, Field(ge=2, le=1_000)] = setting(11, source=KAFKA_BROKER)
    """Number of samples that a rate is computed from, the current one included."""
    quota_window_size_seconds: Annotated[Count, Field(le=3_600)] = setting(
        1, source=KAFKA_BROKER, unit="s"
    )
    """Length of one sample."""
    quota_producer_default: Bytes | None = setting(None, source=KAFKA_BROKER, unit="bytes/s")
    """Produce quota of a client id that no entry limits; null: no limit. Removed in Kafka 4, where
    an entry for the default client id takes its place."""
    quota_consumer_default: Bytes | None = setting(None, source=KAFKA_BROKER, unit="bytes/s")
    """Fetch quota of a client id that no entry limits; null: no limit. Removed in Kafka 4 as
    well."""
    client_quota_callback_class: CallbackClass | None = setting(None, source=KAFKA_BROKER)
    """A custom quota callback (KIP-257): `package.module:Class`."""
    client_quota_callback_configs: dict[str, Any] = setting({}, source=OWN)
    """Configuration passed to the callback's `configure`."""

    def static_defaults(self) -> dict[QuotaKey, float]:
        """Return the static defaults, which are last in the precedence, by quota key."""
        given = {
            QuotaKey.PRODUCER_BYTE_RATE: self.quota_producer_default,
            QuotaKey.CONSUMER_BYTE_RATE: self.quota_consumer_default,
        }
        return {key: float(limit) for key, limit in given.items() if limit is not None}
