"""What a reload changes for connections that are open: the authentications that come after it."""

import asyncio
import time
from pathlib import Path
from typing import Any, cast

import pytest

from proxy.config.listener import Listener as Settings
from proxy.net.relay import ClientSide
from proxy.worker.listener import Listener
from sasl.states import Enforcement
from tests.support.frames import authenticate, bearer, fetch, handshake
from tests.support.playbook import OAUTHBEARER, SCRAM, Playbook, log_in, log_in_by_scram
from tests.support.relay import Services, listener_of
from tests.support.sasl import NOW, document, ed_key
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


def opened(directory: Path, **changes: object) -> Listener:
    return listener_of(settings(directory, **changes), Services())


@pytest.fixture
def listener(tmp_path: Path) -> Listener:
    (tmp_path / "keys.json").write_bytes(document(ed_key().jwk()))

    async def made() -> Listener:
        return opened(tmp_path)

    one = asyncio.run(made())
    assert one.keys[""].cache.loaded(document(ed_key().jwk()), NOW)
    return one


def test_why_keys_were_never_read_is_told(listener: Listener, tmp_path: Path) -> None:
    assert listener.not_ready() == []

    async def reasons() -> list[str]:
        other = opened(tmp_path, **{"sasl.oauthbearer.jwks.endpoint.url": "file:none.json"})
        before = other.not_ready()
        await other.keys[""].refresh()
        return before + other.not_ready()

    before, after = asyncio.run(reasons())
    assert before == "listener clients: signing keys were never read: no answer yet"
    assert after.startswith("listener clients: signing keys were never read: FileNotFoundError: ")


async def test_a_listener_whose_keys_are_too_old_is_not_ready(tmp_path: Path) -> None:
    """Every token is refused: of several proxies another one may have keys."""
    now = asyncio.get_running_loop().time()
    stale, fresh, without = (
        opened(tmp_path, name="stale"),
        opened(tmp_path, name="fresh"),
        opened(tmp_path, name="without", **{"sasl.enabled.mechanisms": [SCRAM]}),
    )
    assert not without.keys, "its clients present no tokens"
    stale.keys[""].cache.loaded(document(ed_key().jwk()), now - 86_401)
    fresh.keys[""].cache.loaded(document(ed_key().jwk()), now - 86_300)
    stale.keys[""].cache.failed("HTTP status 503", now)
    fresh.keys[""].cache.failed("HTTP status 503", now)
    (reason,) = stale.not_ready()
    assert reason.startswith("listener stale: signing keys are too old, read 8640")
    assert reason.endswith(" s ago: HTTP status 503")
    assert fresh.not_ready() == without.not_ready() == []
    stale.keys[""].cache.loaded(document(ed_key().jwk()), now)
    assert stale.not_ready() == []


class Opened(Playbook):
    """A connection to a listener, opened by the rules that it has now."""

    def __init__(self, listener: Listener) -> None:
        super().__init__()
        self.open(listener.rules)


def good_now() -> dict[str, Any]:
    """Claims of a token that is good now: a listener has the machine's clock."""
    now = int(time.time())
    return {"iat": now - 10, "exp": now + 3_000}


def test_an_open_connection_is_held_to_what_was_reloaded_at_its_next_authentication(
    listener: Listener, tmp_path: Path
) -> None:
    """Or a migration would end when the last connection of before it does: never."""
    play = Opened(listener)
    log_in_by_scram(play, version=1)
    assert play.take()[2] == "to client: #3 token error 0 lifetime 3600000"
    listener.apply(settings(tmp_path, reauth_enforcement="enforce", connections_max_reauth_ms=3000))
    assert play.session.deadline == NOW + 3600.0, "a session that is open stays as it is"
    assert play.session.enforcement is Enforcement.PROBE

    log_in_by_scram(play, version=1, first_id=4)
    assert play.take()[2] == "to client: #6 token error 0 lifetime 3000"
    play.expire()
    play.client(fetch(7))
    assert play.take() == ["expired enforce by Fetch", "closed expired", "close"]


def test_a_reload_logs_how_many_sessions_keep_their_terms(
    listener: Listener, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    plays = [Opened(listener) for _ in range(3)]
    for play in plays[:2]:
        log_in_by_scram(play, version=1)
    listener.clients = {cast(ClientSide, play) for play in plays}
    caplog.set_level("INFO", "proxy.worker.listener")
    listener.apply(settings(tmp_path, connections_max_idle_ms=60_000))
    assert caplog.text == ""
    listener.apply(settings(tmp_path, reauth_enforcement="enforce"))
    assert "clients: 2 sessions of this worker keep their old terms" in caplog.text


def test_so_it_is_by_a_reloaded_exception(listener: Listener, tmp_path: Path) -> None:
    play = Opened(listener)
    log_in_by_scram(play, version=1)
    override = {"principal": "User:alice", "connections.max.reauth.ms": 5_000}
    listener.apply(settings(tmp_path, reauth_overrides=[override]))
    log_in_by_scram(play, version=1, first_id=4)
    assert play.session.session_lifetime_ms == 5_000
    listener.apply(settings(tmp_path))
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
def test_tokens_that_are_believed_no_more_renew_nothing(
    listener: Listener, tmp_path: Path, change: dict[str, object], reason: str
) -> None:
    play = Opened(listener)
    log_in(play, **good_now())
    listener.apply(settings(tmp_path, **change))
    play.take()
    log_in(play, first_id=3, **good_now())
    play.client(authenticate(5, b"\x01"))
    assert f"failed {reason}" in play.take()


def test_an_exchange_under_way_ends_by_what_it_began_with(
    listener: Listener, tmp_path: Path
) -> None:
    """Except the length of its session, which is decided at its end."""
    play = Opened(listener)
    play.client(handshake(1, OAUTHBEARER))
    changed = {
        "sasl_oauthbearer_expected_issuer": "https://another.test",
        "connections_max_reauth_ms": 3_000,
    }
    listener.apply(settings(tmp_path, **changed))
    play.take()
    play.client(authenticate(2, bearer(**good_now())))
    assert play.take()[0] == "to client: #2 token error 0 lifetime 3000"


def test_mechanisms_stay_those_of_the_start(listener: Listener, tmp_path: Path) -> None:
    play = Opened(listener)
    log_in_by_scram(play, version=1)
    listener.apply(settings(tmp_path, sasl_enabled_mechanisms=[OAUTHBEARER]))
    log_in_by_scram(play, version=1, first_id=4)
    assert play.session.reauthentications == 1


def test_limits_are_those_that_a_connection_was_opened_with(
    listener: Listener, tmp_path: Path
) -> None:
    play = Opened(listener)
    log_in_by_scram(play, version=1)
    listener.apply(settings(tmp_path, connections_max_idle_ms=60_000))
    log_in_by_scram(play, version=1, first_id=4)
    assert play.connection.next_deadline() == NOW + 600.0
    another = Opened(listener)
    log_in_by_scram(another, version=1)
    assert another.connection.next_deadline() == NOW + 60.0
