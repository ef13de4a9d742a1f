"""Message definitions of a release of Kafka, and the proxy's compact form.

They are JSON with comments, in the jar of the clients (`common/message/*.json`) and, for the
records of a KRaft cluster, of the metadata (`common/metadata/*.json`); the README.md beside their
source documents each attribute. The compact form is described in `proxy/wire/schema.py`.
`overlay.json` names the messages that come from an older release, because the proxy still serves
versions that Kafka has dropped, and has the versions that no release has.
"""

import json
import re
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

Definition = Mapping[str, Any]
"""A message definition in Kafka's format."""

OVERLAY: Final = json.loads(Path(__file__).with_name("overlay.json").read_text())
_STRING_OR_COMMENT: Final = re.compile(r'"(?:\\.|[^"\\])*"|//[^\n]*')
_WORDS: Final = re.compile(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])")


class Unreadable(ValueError):
    """The compact form cannot express a definition."""


def read_definitions(jar: Path, names: str = "Request|Response") -> dict[str, Definition]:
    """Return the messages of a release whose names end in `names`, by name.

    Raises Unreadable, OSError and zipfile.BadZipFile.
    """
    found = {}
    with zipfile.ZipFile(jar) as archive:
        for name in sorted(archive.namelist()):
            if re.fullmatch(rf"common/\w+/\w*({names})\.json", name):
                try:
                    definition = json.loads(_without_comments(archive.read(name).decode()))
                    if definition["validVersions"] != "none":
                        found[definition["name"]] = definition
                except (ValueError, KeyError, TypeError, RecursionError) as error:
                    raise Unreadable(f"{name}: {type(error).__name__}: {error}") from None
    return found


def _without_comments(text: str) -> str:
    return _STRING_OR_COMMENT.sub(lambda found: found[0] if found[0][0] == '"' else "", text)


def with_overlay(
    definitions: Mapping[str, Definition], older: Mapping[str, Mapping[str, Definition]]
) -> dict[str, Definition]:
    """Add definitions of `older` releases and the overlay's versions.

    `older` has the definitions of each release that the overlay names.
    """
    merged = dict(definitions)
    for release, names in OVERLAY["releases"].items():
        merged |= {name: older[release][name] for name in names}
    for name, change in OVERLAY["changes"].items():
        versions = change["versions"]
        merged[name] = {
            **merged[name],
            "validVersions": change["validVersions"],
            "fields": [
                {**one, "versions": versions.get(one["name"], one["versions"])}
                for one in merged[name]["fields"]
            ]
            + change["fields"],
        }
    return merged


def compact(definitions: Mapping[str, Definition], heading: str) -> str:
    """Return the compact form of all messages, by API key. Raises Unreadable."""
    ordered = sorted(definitions.values(), key=lambda one: (one["apiKey"], one["name"]))
    blocks = ["\n".join(_block(one)) for one in ordered]
    return "\n\n".join((heading, *blocks)) + "\n"


def _block(definition: Definition) -> Iterator[str]:
    facts = [str(definition["apiKey"]), definition["name"], definition["validVersions"]]
    if definition["flexibleVersions"] != "none":
        facts.append(f"flexible={definition['flexibleVersions'].removesuffix('+')}")
    if definition.get("latestVersionUnstable"):
        facts.append("unstable")
    yield " ".join(facts)
    structs: dict[str, Any] = {one["name"]: one for one in definition.get("commonStructs", ())}
    yield from (_field(definition["name"], one, structs) for one in definition["fields"])
    written: set[str] = set()
    while waiting := structs.keys() - written:
        name = next(one for one in structs if one in waiting)
        written.add(name)
        yield f".{name}"
        yield from (_field(definition["name"], one, structs) for one in structs[name]["fields"])


def _field(message: str, field: Definition, structs: dict[str, Any]) -> str:
    """Return the line of a field, and add its structure to `structs`."""
    name, kind = field["name"], field["type"]
    if "fields" in field:
        struct = kind.removeprefix("[]")
        if struct in structs:
            raise Unreadable(f"{message}: two structures are called {struct}")
        structs[struct] = field
    facts = ["_".join(_WORDS.split(name)).lower(), kind, field["versions"]]
    if "nullableVersions" in field:
        facts.append(f"null={field['nullableVersions']}")
    if "default" in field:
        default = str(field["default"])
        facts.append(f"default={default.lower() if kind == 'bool' else default}")
    if "tag" in field:
        if field["taggedVersions"] != field["versions"]:
            raise Unreadable(f"{message}: {name} is tagged in some of its versions only")
        facts.append(f"tag={field['tag']}")
    if field.get("ignorable"):
        facts.append("ignorable")
    if any(" " in one or not one for one in facts) or "flexibleVersions" in field:
        raise Unreadable(f"{message}: {name} has an attribute that is not expected")
    return " ".join(facts)
