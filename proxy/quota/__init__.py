"""Quotas per user, client id and address: precedence, usage, throttle times, callbacks."""

from proxy.quota.callback import ClientPrincipal, ClientQuotaType, Cluster, QuotaCallback
from proxy.quota.model import DEFAULT, QuotaEntity, QuotaKey

__all__ = (
    "DEFAULT",
    "ClientPrincipal",
    "ClientQuotaType",
    "Cluster",
    "QuotaCallback",
    "QuotaEntity",
    "QuotaKey",
)
