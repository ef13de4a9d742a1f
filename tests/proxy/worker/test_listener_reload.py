"""What a reload changes for connections that are open: the authentications that come after it; and
a listener with two issuers."""

import asyncio
import json
import logging
import time
from functools import partial
from pathlib import Path
from typing import Any, cast

import pytest

from metrics import registry
from metrics.snapshot import Snapshot
from proxy.config.listener import Listener as Settings
from proxy.connection.connection import Connection
from proxy.errors import ConfigError
from proxy.net.relay import ClientSide
from proxy.worker import listener as listeners
from proxy.worker.identity_services import FileService, read_memberships
from proxy.worker.listener import Listener
from sasl.identity import Identity
from sasl.states import Enforcement
from tests.support.frames import api_versions, authenticate, bearer, fetch, handshake
from tests.support.playbook import OAUTHBEARER, SCRAM, Playbook, log_in, log_in_by_scram
from tests.support.relay import PLAINTEXT, Services, listen, listener_of, read_frame, settings_of
from tests.support.sasl import NOW, claims, document, ec_key, ed_key, rsa_key, token
from tests.support.settings import configured

BEFORE: dict[str, Any] = {
    "sasl.enabled.mechanisms": [SCRAM, OAUTHBEARER],
    "sasl.oauthbearer.jwks.endpoint.url": "file:keys.json",
    "sasl.oauthbearer.expected.issuer": "https://issuer.test",
    "sasl.oauthbearer.expected.audience": "kafka",
    "connections.max.reauth.ms": 3_600_000,
    "reauth.enforcement": "probe",
}


def settings(directory: Path, **changes: object) -> Settings:
    """`BEFORE`, changed."""
    given = BEFORE | {key.replace("_", "."): value for key, value in changes.items()}
    return configured(directory, given).listeners[0]


@pytest.fixture
def keys(tmp_path: Path) -> Path:
    (tmp_path / "keys.json").write_bytes(document(ed_key().jwk()))
    return tmp_path


def opened(directory: Path, **changes: object) -> Listener:
    listener = listener_of(settings(directory, **changes), Services())
    for service in listener.keys.values():
        service.cache.loaded(document(ed_key().jwk()), NOW)
    return listener


async def test_a_listener_whose_keys_are_missing_or_too_old_is_not_ready(tmp_path: Path) -> None:
    """Every token is refused: of several proxies another one may have keys."""
    listener = listener_of(settings(tmp_path), Services())
    service, begins = listener.keys[""], "listener clients: signing keys "
    assert listener.not_ready() == [f"{begins}were never read: no answer yet"]
    await service.refresh()
    assert listener.not_ready()[0].startswith(f"{begins}were never read: FileNotFoundError: ")
    now = asyncio.get_running_loop().time()
    service.cache.loaded(document(ed_key().jwk()), now - 86_401)
    service.cache.failed("HTTP status 503", now)
    (reason,) = listener.not_ready()
    assert reason.startswith(f"{begins}are too old, read 8640")
    assert reason.endswith(" s ago: HTTP status 503")
    service.cache.loaded(document(ed_key().jwk()), now - 86_300)
    service.cache.failed("HTTP status 503", now)
    assert listener.not_ready() == []
    without = opened(tmp_path, sasl_enabled_mechanisms=[SCRAM])
    assert (without.keys, without.not_ready()) == ({}, []), "its clients present no tokens"


class Opened(Playbook):
    """A connection to a listener, opened by the rules that it has now."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self.open(listener.rules)


def good_now() -> dict[str, Any]:
    """Claims of a token that is good now: a listener has the machine's clock."""
    now = int(time.time())
    return {"iat": now - 10, "exp": now + 3_000}


async def test_an_open_connection_is_held_to_what_was_reloaded_at_its_next_authentication(
    keys: Path,
) -> None:
    """Or a migration would end when the last connection of before it does: never."""
    listener = opened(keys)
    play = Opened(listener)
    log_in_by_scram(play, version=1)
    assert play.take()[2] == "to client: #3 token error 0 lifetime 3600000"
    listener.apply(settings(keys, reauth_enforcement="enforce", connections_max_reauth_ms=3000))
    assert play.session.deadline == NOW + 3600.0, "a session that is open stays as it is"
    assert play.session.enforcement is Enforcement.PROBE

    log_in_by_scram(play, version=1, first_id=4)
    assert play.take()[2] == "to client: #6 token error 0 lifetime 3000"
    play.expire()
    play.client(fetch(7))
    assert play.take() == ["expired enforce by Fetch", "closed expired", "close"]


async def test_a_reload_logs_how_many_sessions_keep_their_terms(
    keys: Path, caplog: pytest.LogCaptureFixture
) -> None:
    listener = opened(keys)
    plays = [Opened(listener) for _ in range(3)]
    for play in plays[:2]:
        log_in_by_scram(play, version=1)
    listener.clients = {cast(ClientSide, play) for play in plays}
    caplog.set_level("INFO", "proxy.worker.listener")
    listener.apply(settings(keys, connections_max_idle_ms=60_000))
    assert caplog.text == ""
    listener.apply(settings(keys, reauth_enforcement="enforce"))
    assert "clients: 2 sessions of this worker keep their old terms" in caplog.text


async def test_so_it_is_by_a_reloaded_exception(keys: Path) -> None:
    listener = opened(keys)
    play = Opened(listener)
    log_in_by_scram(play, version=1)
    override = {"principal": "User:alice", "connections.max.reauth.ms": 5_000}
    listener.apply(settings(keys, reauth_overrides=[override]))
    log_in_by_scram(play, version=1, first_id=4)
    assert play.session.session_lifetime_ms == 5_000
    listener.apply(settings(keys))
    play.now += 1.0
    log_in_by_scram(play, version=1, first_id=7)
    assert play.session.session_lifetime_ms == 3_600_000


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"sasl_oauthbearer_expected_issuer": "https://another.test"}, "wrong_issuer"),
        ({"sasl_oauthbearer_expected_audience": "another"}, "wrong_audience"),
    ],
)
async def test_tokens_that_are_believed_no_more_renew_nothing(
    keys: Path, change: dict[str, object], reason: str
) -> None:
    listener = opened(keys)
    play = Opened(listener)
    log_in(play, **good_now())
    listener.apply(settings(keys, **change))
    play.take()
    log_in(play, first_id=3, **good_now())
    play.client(authenticate(5, b"\x01"))
    assert f"failed {reason}" in play.take()


async def test_an_exchange_under_way_ends_by_what_it_began_with(keys: Path) -> None:
    """Except the length of its session, which is decided at its end."""
    listener = opened(keys)
    play = Opened(listener)
    play.client(handshake(1, OAUTHBEARER))
    changed = {
        "sasl_oauthbearer_expected_issuer": "https://another.test",
        "connections_max_reauth_ms": 3_000,
    }
    listener.apply(settings(keys, **changed))
    play.take()
    play.client(authenticate(2, bearer(**good_now())))
    assert play.take()[0] == "to client: #2 token error 0 lifetime 3000"


async def test_mechanisms_stay_those_of_the_start(keys: Path) -> None:
    listener = opened(keys)
    play = Opened(listener)
    log_in_by_scram(play, version=1)
    listener.apply(settings(keys, sasl_enabled_mechanisms=[OAUTHBEARER]))
    log_in_by_scram(play, version=1, first_id=4)
    assert play.session.reauthentications == 1


async def test_limits_are_those_that_a_connection_was_opened_with(keys: Path) -> None:
    listener = opened(keys)
    play = Opened(listener)
    log_in_by_scram(play, version=1)
    listener.apply(settings(keys, connections_max_idle_ms=60_000))
    log_in_by_scram(play, version=1, first_id=4)
    assert play.connection.next_deadline() == NOW + 600.0
    another = Opened(listener)
    log_in_by_scram(another, version=1)
    assert another.connection.next_deadline() == NOW + 60.0


# Two issuers: their outages, what a reload changes, and what is shown of them

OURS, PARTNERS = "https://issuer.test", "https://partner.test"
KEYS = {OURS: rsa_key(), PARTNERS: ec_key()}


def with_issuers(
    directory: Path, *, issuers: tuple[str, ...] = (OURS, PARTNERS), **of_each: Any
) -> Any:
    def issuer(name: str) -> dict[str, Any]:
        given = {
            "expected.issuer": name,
            "expected.audience": "kafka",
            "jwks.endpoint.url": f"file:{name[8:]}.json",
            "groups.claim.name": "groups",
            "principal.prefix": "" if name == OURS else "partner:",
        } | {key.replace("_", "."): value for key, value in of_each.items()}
        return {f"sasl.oauthbearer.{key}": value for key, value in given.items()}

    listener = {
        "sasl.enabled.mechanisms": [OAUTHBEARER],
        "connections.max.reauth.ms": 60_000,
        "sasl.oauthbearer.issuers": [issuer(name) for name in issuers],
    }
    return configured(directory, listener).listeners[0]


@pytest.fixture
def issuers(tmp_path: Path) -> Path:
    for name in (OURS, PARTNERS, "https://third.test"):
        key = KEYS.get(name, rsa_key())
        (tmp_path / f"{name[8:]}.json").write_bytes(document(key.jwk()))
    return tmp_path


async def loaded(directory: Path, *names: str) -> Listener:
    """The listener, with the keys of some issuers."""
    listener = listener_of(with_issuers(directory), Services())
    for name in names:
        await listener.keys[name].refresh()
        listener.keys[name].cache.loaded(document(KEYS[name].jwk()), NOW)
    return listener


class TokenClient(Playbook):
    """A client that logs in with one token."""

    def __init__(self, listener: Listener, issuer: str, **changes: Any) -> None:
        super().__init__()
        self.open(listener.rules)
        now = int(time.time())
        said = claims(iss=issuer, iat=now - 10, exp=now + 3_000, **changes)
        bearer = token(said, key=KEYS[issuer])
        message = f"n,,\x01auth=Bearer {bearer}\x01\x01".encode()
        self.client(handshake(1, OAUTHBEARER), authenticate(2, message))
        self.outcome = [line for line in self.take() if not line.startswith("to client")]


async def test_each_issuer_has_its_keys_and_its_names(issuers: Path) -> None:
    listener = await loaded(issuers, OURS, PARTNERS)
    assert TokenClient(listener, OURS).outcome == ["authenticated User:alice"]
    assert TokenClient(listener, PARTNERS).outcome == ["authenticated User:partner:alice"]


async def test_the_outage_of_one_concerns_its_clients_alone(issuers: Path) -> None:
    """A proxy that is not ready would be taken from the clients of the other, too."""
    listener = await loaded(issuers, OURS)
    assert TokenClient(listener, OURS).outcome == ["authenticated User:alice"]
    assert TokenClient(listener, PARTNERS).outcome == ["seek keys"]
    states = {one.name: one.good for one in listener.conditions(NOW, time.time())}
    assert states[f"clients, {OURS}"]
    assert "never read" in next(
        one.state for one in listener.conditions(NOW, 0.0) if PARTNERS in one.name
    )


async def test_a_listener_is_ready_with_the_keys_of_one(issuers: Path) -> None:
    assert len((await loaded(issuers)).not_ready()) == 2
    assert (await loaded(issuers, PARTNERS)).not_ready() == []


async def test_a_reload_changes_the_names_and_waits_with_new_issuers(issuers: Path) -> None:
    listener = await loaded(issuers, OURS, PARTNERS)
    third = "https://third.test"
    listener.apply(
        with_issuers(issuers, issuers=(PARTNERS, third), principal_mapping_rules="DEFAULT")
    )
    assert TokenClient(listener, PARTNERS).outcome == ["authenticated User:partner:alice"]
    assert TokenClient(listener, OURS).outcome == [], (
        "an error is answered: it is no issuer any more"
    )
    listener.apply(with_issuers(issuers, principal_mapping_rules="RULE:^(.*)$/$1@x/"))
    assert TokenClient(listener, OURS).outcome == ["authenticated User:alice@x"]


async def test_metrics_tell_the_issuers_apart(issuers: Path) -> None:
    listener = await loaded(issuers, OURS)
    listener.keys[PARTNERS].cache.failed("no route to host", NOW)
    snapshot = Snapshot()
    listener.collect(snapshot, NOW + 60)
    assert snapshot.values[registry.JWKS_AGE.name] == {("clients", OURS): 60.0}
    failures = snapshot.values[registry.JWKS_REFRESH_FAILURES.name]
    assert failures == {("clients", OURS): 0, ("clients", PARTNERS): 1}


# Groups of SCRAM users and of clients without SASL, from a file that changes


def write(directory: Path, **groups: list[str]) -> Path:
    path = directory / "groups.json"
    staged = directory / "staged"
    staged.write_text(json.dumps({"groups": groups}))
    staged.replace(path)
    return path


async def test_open_connections_follow_the_file(tmp_path: Path) -> None:
    write(tmp_path, guests=["User:ANONYMOUS"])
    async with listen(tmp_path, PLAINTEXT | {"groups.file": "groups.json"}) as running:
        reader, writer = await running.connect()
        writer.write(api_versions(1))
        await read_frame(reader)
        authentication = running.connection.authentication
        memberships = running.listener.memberships
        assert memberships is not None

        def groups() -> tuple[str, ...]:
            assert authentication.identity is not None
            return authentication.identity.groups

        assert groups() == ("Group:guests",)
        write(tmp_path, guests=["User:else"], others=["User:ANONYMOUS"])
        await memberships.refresh()
        assert groups() == ("Group:others",)
        (tmp_path / "groups.json").write_text('{"groups": {"guests": ["User:ANONYM')
        await memberships.refresh()
        assert groups() == ("Group:others",), "half a file changes nothing"
        (tmp_path / "groups.json").unlink()
        await memberships.refresh()
        assert groups() == ("Group:others",), "nor does none"
        write(tmp_path)
        await memberships.refresh()
        assert groups() == ()


async def test_other_work_goes_on_while_connections_are_regrouped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is closed meanwhile is left alone."""
    monkeypatch.setattr(listeners, "REGROUPED_AT_ONCE", 1)
    write(tmp_path)
    async with listen(tmp_path, PLAINTEXT | {"groups.file": "groups.json"}) as running:
        writers = []
        for _ in range(3):
            reader, writer = await running.connect()
            writer.write(api_versions(1))
            await read_frame(reader)
            writers.append(writer)
        connections = [client.connection for client in running.listener.clients]
        memberships = running.listener.memberships
        assert memberships is not None

        def regrouped() -> list[Connection]:
            identities = [(one, one.authentication.identity) for one in connections if one]
            return [one for one, identity in identities if identity and identity.groups]

        write(tmp_path, guests=["User:ANONYMOUS"])
        seen = set()
        refresh = asyncio.create_task(memberships.refresh())
        while not refresh.done():
            if len(regrouped()) == 1 and 1 not in seen:
                open_ones = [one for one in running.listener.clients if one.connection]
                next(one for one in open_ones if one.connection not in regrouped()).evict()
            seen.add(len(regrouped()))
            await asyncio.sleep(0)
        assert seen >= {0, 1}
        assert len(regrouped()) == 2


async def test_users_have_the_groups_of_their_principals(tmp_path: Path) -> None:
    """Those of the name that the rules make."""
    write(tmp_path, analysts=["User:alice@x"], others=["User:alice"])
    given = {
        "sasl.enabled.mechanisms": [SCRAM],
        "sasl.scram.principal.mapping.rules": "RULE:^(.*)$/$1@x/",
        "groups.file": "groups.json",
    }
    play = Opened(listener_of(settings_of(tmp_path, given)[0], Services()))
    log_in_by_scram(play, version=1)
    assert play.connection.authentication.identity == Identity("User:alice@x", ["Group:analysts"])


async def test_a_file_is_logged_once_for_each_problem(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[None] = []
    path = write(tmp_path)
    caplog.set_level(logging.INFO)

    async def changed() -> None:
        calls.append(None)

    service = FileService(path, partial(read_memberships, path), changed)

    async def refresh(text: str) -> None:
        path.write_text(text)
        await service.refresh()

    await service.refresh()
    await refresh("{")
    await refresh("{ ")
    await refresh('{"groups": {"a": ["User:x", "User:y"]}}')
    assert calls == [None]
    assert [record.getMessage() for record in caplog.records] == [
        f"{path} is not a JSON object, or is incomplete; its last content applies",
        f"{path}: read again, 2 clients have groups",
    ]


async def never() -> None:
    raise AssertionError("nothing has been read again")


@pytest.mark.parametrize("content", [None, "", "{}"])
def test_without_a_valid_file_nothing_starts(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "groups.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"^groups\.file: .*groups\.json"):
        FileService(path, partial(read_memberships, path), never)
