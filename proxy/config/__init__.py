"""Configuration file: its settings, validation, and what a reload may change.

Rules: there is one YAML file; settings that Kafka also has keep Kafka's name, unit and meaning; a
mistake is reported in one line with the key's path. Attributes are named like the keys, with
underscores for dots.
"""

from proxy.config.changes import Changes, compare
from proxy.config.listener import (
    IssuerSettings,
    Listener,
    MechanismName,
    OauthbearerIssuer,
    Routing,
)
from proxy.config.load import (
    Located,
    from_mapping,
    json_schema,
    judged,
    judged_entirely,
    load,
    located,
    read,
)
from proxy.config.model import Authorizer, Config, Events, Http, Quotas, QuotasMode, Store, Upstream
from proxy.config.values import Address, PortRange

__all__ = (
    "Address",
    "Authorizer",
    "Changes",
    "Config",
    "Events",
    "Http",
    "IssuerSettings",
    "Listener",
    "Located",
    "MechanismName",
    "OauthbearerIssuer",
    "PortRange",
    "Quotas",
    "QuotasMode",
    "Routing",
    "Store",
    "Upstream",
    "compare",
    "from_mapping",
    "json_schema",
    "judged",
    "judged_entirely",
    "load",
    "located",
    "read",
)
