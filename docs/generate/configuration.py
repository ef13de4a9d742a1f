"""Generator of docs/configuration.md: `python -m docs.generate.configuration`.

With `--check` it writes nothing, and exits with status 1 if the file is out of date.
"""

import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Any, get_args

from pydantic.fields import FieldInfo
from pydantic_core import PydanticUndefined

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
    Config,
    Deliver,
    DeliverKafka,
    Events,
    Http,
    Quotas,
    Store,
    Upstream,
)
from proxy.config.section import Section, described, keys, meanings, nested_section
from proxy.config.security import ListenerTls, UpstreamSasl, UpstreamTls, Zookeeper

DOCUMENT = Path(__file__).parent.parent.parent / "docs" / "configuration.md"

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
    ("`authorizer`", Authorizer),
    ("`quotas`", Quotas),
    ("`store`", Store),
    ("`store.zookeeper`", Zookeeper),
    ("`events`", Events),
    ("`events.deliver`", Deliver),
    ("`events.deliver.kafka`", DeliverKafka),
    ("`http`", Http),
    ("`admin`", Admin),
)
_PARENTS = (
    SessionSettings,
    IssuerSettings,
    OauthbearerSettings,
    LimitSettings,
    ListenerTls,
    UpstreamTls,
    UpstreamSasl,
)

_INTRODUCTION = """\
# Configuration

<!-- Written by `python -m docs.generate.configuration` from proxy/config; do not edit. -->

One YAML file. A dotted name is one key. Settings that Kafka has keep its name, unit, default and
meaning; the row of a different default has the reason. An error is one line with the key's path,
and exit status 2. Relative paths are relative to the file. YAML aliases and tags are refused, `off`
and `on` are words, and only `true` and `false` are booleans.

- `reauth-proxy config check FILE` checks a file, `reauth-proxy config schema` prints its JSON
  Schema.
- *Reload*: whether SIGHUP applies it: super users at once, limits to later connections, the rest to
  later authentications, including those on open connections. Other changes are logged and wait for
  a restart.
- *From*: the origin of the setting. Kafka (broker) and Kafka (client) are Kafka's own.

```yaml
"""

EXAMPLE = """\
upstream:
  bootstrap.servers: 127.0.0.1:9092
listeners:
  - name: clients
    address: 0.0.0.0:9094
    routing: gateway
    advertised.host: 127.0.0.1
    broker.ports: 9100-9199
    sasl.enabled.mechanisms: [OAUTHBEARER, SCRAM-SHA-256]
    connections.max.reauth.ms: 3600000
    reauth.enforcement: probe
    reauth.overrides:
      - principal: User:alice
        reauth.enforcement: enforce
      - principal.prefix: "User:batch-"
        connections.max.reauth.ms: 14400000
    sasl.oauthbearer.jwks.endpoint.url: https://idp.example.com/jwks.json
    sasl.oauthbearer.expected.audience: kafka
    sasl.oauthbearer.expected.issuer: https://idp.example.com
events:
  directory: events
http:
  address: 127.0.0.1:9404
"""


def render() -> str:
    """Return the whole document."""
    sections = (_section(title, one) for title, one in _SECTIONS)
    return "\n".join((f"{_INTRODUCTION}{EXAMPLE}```\n", *sections))


def _section(title: str, section: type[Section]) -> str:
    meaning = " ".join((section.__doc__ or "").split())
    rows = "\n".join(_rows(section))
    head = "| Key | Type | Default | Reload | From | Meaning |\n|---|---|---|---|---|---|"
    return f"## {title}\n\n{meaning}\n\n{head}\n{rows}\n"


def _rows(section: type[Section]) -> Iterator[str]:
    parents = (one for one in _PARENTS if one is not section and issubclass(section, one))
    inherited = {name for parent in parents for name in parent.model_fields}
    documented = meanings(section)
    for key, name, field in keys(section):
        if name in inherited:
            continue
        if nested := nested_section(field.annotation):
            what = "list" if get_args(field.annotation) else "section"
            meaning = documented.get(name) or nested.__doc__ or ""
            yield _row(key, what, _default(field), field, meaning)
        else:
            kind = _type(section, key, field)
            yield _row(key, kind, _default(field), field, documented.get(name))


def _row(key: str, kind: str, default: str, field: FieldInfo, meaning: str | None) -> str:
    known = described(field)
    assert known is not None, f"{key} is not declared by setting()"
    assert meaning, f"{key} has no documentation"
    reload = "yes" if known.reloadable else "no"
    cells = (f"`{key}`", kind, default, reload, known.source, " ".join(meaning.split()))
    return "| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |"


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


def _type(section: type[Section], key: str, field: FieldInfo) -> str:
    schema = section.model_json_schema(by_alias=True)
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


def main(arguments: list[str]) -> int:
    """Write the document, or with `--check` compare it; return the exit status."""
    text = render()
    if arguments == ["--check"]:
        if DOCUMENT.exists() and DOCUMENT.read_text() == text:
            return 0
        sys.stderr.write(
            f"{DOCUMENT.name} is out of date: run python -m docs.generate.configuration\n"
        )
        return 1
    if arguments:
        sys.stderr.write("usage: python -m docs.generate.configuration [--check]\n")
        return 2
    DOCUMENT.parent.mkdir(exist_ok=True)
    DOCUMENT.write_text(text)
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
