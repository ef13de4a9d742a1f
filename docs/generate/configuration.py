"""Tables of docs/configuration.md."""

from collections.abc import Iterator
from enum import Enum
from typing import Any, get_args

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

from docs.generate import table
from proxy.config.listener import (
    IssuerSettings,
    LimitSettings,
    Listener,
    OauthbearerIssuer,
    OauthbearerSettings,
    ReauthOverride,
    SessionSettings,
)
from proxy.config.model import (
    Admin,
    Authorizer,
    Auto,
    Block,
    Config,
    Deliver,
    DeliverKafka,
    Events,
    Http,
    Log,
    Quotas,
    Signals,
    Store,
    Upstream,
)
from proxy.config.section import Section, described, keys, meanings, nested_section
from proxy.config.security import Keystore, ListenerTls, UpstreamSasl, UpstreamTls

_SECTIONS: tuple[tuple[str, type[Section]], ...] = (
    ("Top level", Config),
    ("`upstream`", Upstream),
    ("`upstream`: TLS", UpstreamTls),
    ("`upstream`: the proxy's own login", UpstreamSasl),
    ("`listeners[]`: where and who", Listener),
    ("`listeners[]`: sessions", SessionSettings),
    ("`listeners[].reauth.overrides[]`", ReauthOverride),
    ("`listeners[]`: OAUTHBEARER", OauthbearerSettings),
    ("`listeners[]` or `listeners[].sasl.oauthbearer.issuers[]`", IssuerSettings),
    ("`listeners[].sasl.oauthbearer.issuers[]`", OauthbearerIssuer),
    ("`listeners[]`: TLS", ListenerTls),
    ("`listeners[]`: limits", LimitSettings),
    ("`auto`", Auto),
    ("`authorizer`", Authorizer),
    ("`quotas`", Quotas),
    ("`store`", Store),
    ("`block`", Block),
    ("`block.signals`", Signals),
    ("`events`", Events),
    ("`events.deliver`", Deliver),
    ("`events.deliver.kafka`", DeliverKafka),
    ("`http`", Http),
    ("`log`", Log),
    ("`admin`", Admin),
)


def settings() -> str:
    """Return a heading and a table for each section."""
    return "\n\n".join(_section(title, one) for title, one in _SECTIONS)


def _section(title: str, section: type[Section]) -> str:
    meaning = " ".join((section.__doc__ or "").split())
    head = ("Key", "Type", "Default", "Reload", "From", "Meaning")
    return f"## {title}\n\n{meaning}\n\n{table(head, list(_rows(section)))}"


def _rows(section: type[Section]) -> Iterator[tuple[str, ...]]:
    parents = (one for _, one in _SECTIONS if one is not section and issubclass(section, one))
    inherited = {name for parent in parents for name in parent.model_fields}
    documented, schema = meanings(section), section.model_json_schema(by_alias=True)
    for key, name, field in keys(section):
        if name in inherited:
            continue
        if nested := nested_section(field.annotation):
            documented_here = {one for _, one in _SECTIONS} | {Keystore}  # described in its row
            assert nested in documented_here, f"_SECTIONS lacks {nested.__name__}"
            what = "list" if get_args(field.annotation) else "section"
            meaning = documented.get(name) or nested.__doc__ or ""
            yield _row(key, what, _default(field), field, meaning)
        else:
            kind = _type(schema, key, field)
            yield _row(key, kind, _default(field), field, documented.get(name))


def _row(
    key: str, kind: str, default: str, field: FieldInfo, meaning: str | None
) -> tuple[str, ...]:
    known = described(field)
    assert known is not None, f"{key} is not declared by setting()"
    assert meaning, f"{key} has no documentation"
    reload = "yes" if known.reloadable else "no"
    return f"`{key}`", kind, default, reload, known.source, " ".join(meaning.split())


def _default(field: FieldInfo) -> str:
    match field.default:
        case default if default is PydanticUndefined:
            return "required"
        case None:
            return "null"
        case {}:
            return "its defaults" if nested_section(field.annotation) else "`{}`"
        case tuple() as default:
            return f"`[{', '.join(map(str, default))}]`"
        case Enum() as default:
            return f"`{default.value}`"
        case default:
            return f"`{default}`"


def _type(schema: dict[str, Any], key: str, field: FieldInfo) -> str:
    known = described(field)
    kind = _kind(schema["properties"][key], schema.get("$defs", {}))
    return f"{kind}, {known.unit}" if known and known.unit else kind


def _kind(schema: dict[str, Any], definitions: dict[str, Any]) -> str:
    """Return the type of a JSON Schema in words."""
    if "$ref" in schema:
        return _kind(definitions[schema["$ref"].rpartition("/")[2]], definitions)
    if "anyOf" in schema:
        kinds = (_kind(one, definitions) for one in schema["anyOf"])
        return " or ".join(kind for kind in kinds if kind != "null")
    if "const" in schema:
        return f"`{schema['const']}`"
    if "enum" in schema:
        return " or ".join(f"`{value}`" for value in schema["enum"])
    if schema["type"] == "array":
        return f"list of {_kind(schema['items'], definitions)}"
    if schema.get("title") == "HOST:PORT":
        return "`HOST:PORT`"
    kind: str = schema["type"]
    names = {"integer": "whole number", "string": "text", "object": "mapping"}
    return names.get(kind, kind)
