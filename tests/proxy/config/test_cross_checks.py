"""Mistakes between settings are found beside those of single ones, and none that is not there."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from proxy.config import judged_entirely
from proxy.config.document import parse
from tests.support.proxy_process import BASE
from tests.support.settings import SCRAM, mapping

WRONG = {"no": {"setting": "is like this"}}


def problems(mapping: Any, directory: Path) -> list[str]:
    (directory / "jwks.json").touch()
    _, found = judged_entirely(json.dumps(mapping).encode(), directory / "proxy.yaml")
    return [str(one) for one in found]


def test_all_are_found_whose_settings_are_right(tmp_path: Path) -> None:
    """The gateway's TLS is not reported, since its protocol is wrong, nor are wrong ports."""
    sidecar = {
        "name": "a",
        "address": "0.0.0.0:9094",
        "routing": "sidecar",
        "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
        "broker.ports": "9100-9200",
        "connections.max.idle.ms": "abc",
        "reauth.overrides": [{"principal": "User:a"}],
    }
    gateway = {
        "name": "a",
        "address": "0.0.0.0:9095",
        "routing": "gateway",
        "brokr.ports": "9100-9200",
        "security.protocol": "SASL_SSLL",
        "ssl.keystore.location": "x",
        "sasl.enabled.mechanisms": ["SCRAM-SHA-256"],
    }
    mapping = {
        "upstream": {"bootstrap.servers": "b:1,c:2"},
        "listeners": [sidecar, gateway],
        "max.connections.per.ip": 0,
        "workers": "many",
    }
    assert sorted(problems(mapping, tmp_path)) == [
        "listeners[0].broker.ports: has no meaning with routing: sidecar",
        "listeners[0].connections.max.idle.ms: must be a whole number of milliseconds, got 'abc'",
        "listeners[0].reauth.overrides[0].reauth.enforcement: set it or"
        " connections.max.reauth.ms: the override changes nothing",
        "listeners[1].brokr.ports: unknown key, did you mean broker.ports?",
        "listeners[1].name: a is the name of another listener",
        "listeners[1].security.protocol: must be 'PLAINTEXT', 'SSL', 'SASL_PLAINTEXT' or"
        " 'SASL_SSL', got 'SASL_SSLL'",
        "max.connections.per.ip: can be 0 only if max.connections.per.ip.overrides allows"
        " connections",
        "upstream.bootstrap.servers: must be one broker: a listener is its sidecar",
        "workers: must be a whole number, got 'many'",
    ]


def test_several_of_one_section_are_found(tmp_path: Path) -> None:
    mapping = parse(BASE.encode())
    del mapping["upstream"]["bootstrap.servers"]
    mapping["listeners"][0]["connection.failed.authentication.delay.ms"] = 600_000
    mapping["listeners"][0]["sasl.oauthbearer.jwks.max.stale.ms"] = 1
    found = {one.partition(": ")[0] for one in problems(mapping, tmp_path)}
    assert found == {
        "upstream.bootstrap.servers",
        "listeners[0].connection.failed.authentication.delay.ms",
        "listeners[0].sasl.oauthbearer.jwks.max.stale.ms",
    }


def test_files_are_checked_beside_wrong_settings(tmp_path: Path) -> None:
    """A misspelt setting is checked as the one that it means."""
    mapping = parse(BASE.encode())
    mapping |= {"workers": "many", "stroe": mapping.pop("store") | {"users.file": "none"}}
    mapping["listeners"][0]["connections.max.idle.ms"] = "abc"
    found = problems(mapping, tmp_path)
    assert found[-1].endswith("none cannot be read: No such file or directory")
    assert [one.partition(": ")[0] for one in found] == [
        "stroe",
        "listeners[0].connections.max.idle.ms",
        "workers",
        "store.users.file",
    ]


def paths(found: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    """Where each value of a file is, sections and lists included."""
    if at:
        yield at
    if isinstance(found, dict | list):
        for key, value in found.items() if isinstance(found, dict) else enumerate(found):
            yield from paths(value, (*at, key))


PATHS = [*paths(parse(BASE.encode()))]


def section_of(mapping: Any, path: tuple[Any, ...]) -> Any:
    return section_of(mapping[path[0]], path[1:]) if path[1:] else mapping


@pytest.mark.parametrize("path", PATHS, ids=str)
def test_one_that_is_wrong_makes_no_other_wrong(path: tuple[Any, ...], tmp_path: Path) -> None:
    mapping = parse(BASE.encode())
    section_of(mapping, path)[path[-1]] = WRONG
    named = "".join(f"[{part}]" if isinstance(part, int) else f".{part}" for part in path)[1:]
    found = problems(mapping, tmp_path)
    assert found
    assert [one for one in found if not one.startswith(named)] == []


@pytest.mark.parametrize("path", [one for one in PATHS if isinstance(one[-1], str)], ids=str)
def test_a_misspelt_key_is_not_missing_elsewhere(path: tuple[Any, ...], tmp_path: Path) -> None:
    mapping = parse(BASE.encode())
    section = section_of(mapping, path)
    section[f"{path[-1]}x"] = section.pop(path[-1])
    (found,) = problems(mapping, tmp_path)
    assert f"unknown key, did you mean {path[-1]}?" in found


TRUSTED = "proxy.protocol.trusted"
REQUIRED = {"proxy.protocol": "required"}
REDIRECTED = {"routing": "transparent"}


@pytest.mark.parametrize(
    ("given", "problem"),
    [
        (REQUIRED, f"{TRUSTED}: is required with proxy.protocol: required; set it to the load"),
        ({TRUSTED: "10.0.0.0/8"}, f"{TRUSTED}: has no meaning with proxy.protocol: off"),
        (REQUIRED | {TRUSTED: "10.0.0.1/8"}, f"{TRUSTED}[0]: must be a network, such as 10.0.0"),
        (REQUIRED | {TRUSTED: ["::ffff:10.0.0.0/104"]}, f"{TRUSTED}[0]: must be a network, such"),
        (REQUIRED | REDIRECTED | {TRUSTED: "10.0.0.0/8"}, "proxy.protocol: must be off with rout"),
    ],
)
def test_clients_addresses_come_from_named_load_balancers_only(
    given: dict[str, Any], problem: str, tmp_path: Path
) -> None:
    whole = mapping({**SCRAM, **given})
    if given.get("routing") == "transparent":
        whole["upstream"] = {"allowed": "10.0.0.0/8"}
    (found,) = problems(whole, tmp_path)
    assert found.startswith(f"listeners[0].{problem}")


def test_redirected_connections_are_not_announced_to_brokers(tmp_path: Path) -> None:
    upstream = {"allowed": "10.0.0.0/8", "proxy.protocol": "v2"}
    whole = mapping({**SCRAM, **REDIRECTED}) | {"upstream": upstream}
    assert problems(whole, tmp_path) == [
        "upstream.proxy.protocol: must be off with routing: transparent"
    ]


@pytest.mark.parametrize(
    ("events", "mode", "expected"),
    [
        ({"usage": True, "directory": "events"}, "audit", []),
        (
            {"usage": True, "directory": "events"},
            "off",
            ["events.usage: needs authorizer.mode: audit, or enforce"],
        ),
        ({"usage": True}, "enforce", ["events.directory: is required with usage"]),
    ],
)
def test_uses_are_recorded_where_they_are_judged(
    tmp_path: Path, events: dict[str, Any], mode: str, expected: list[str]
) -> None:
    assert problems(mapping(authorizer={"mode": mode}, events=events), tmp_path) == expected
