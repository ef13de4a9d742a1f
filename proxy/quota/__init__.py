"""Quotas by user and client id, and what exceeding one leads to."""

from proxy.quota.callback import ClientQuotaType, Cluster, QuotaCallback
from proxy.quota.model import DEFAULT, QuotaEntity, QuotaKey

__all__ = (
    "DEFAULT",
    "ClientQuotaType",
    "Cluster",
    "QuotaCallback",
    "QuotaEntity",
    "QuotaKey",
)
