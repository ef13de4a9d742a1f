"""A listener with two issuers: their outages, what a reload changes, and what is shown of them."""

import asyncio
import time
from pathlib import Path
from typing import Any

import pytest

from metrics import registry
from metrics.snapshot import Snapshot
from proxy.worker.listener import Listener
from tests.support.frames import authenticate, handshake
from tests.support.playbook import OAUTHBEARER, Playbook
from tests.support.relay import Services, listener_of
from tests.support.sasl import NOW, claims, document, ec_key, rsa_key, token
from tests.support.settings import configured

OURS, PARTNERS = "https://issuer.test", "https://partner.test"
KEYS = {OURS: rsa_key(), PARTNERS: ec_key()}


def settings(
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
def directory(tmp_path: Path) -> Path:
    for name in (OURS, PARTNERS, "https://third.test"):
        key = KEYS.get(name, rsa_key())
        (tmp_path / f"{name[8:]}.json").write_bytes(document(key.jwk()))
    return tmp_path


def made(directory: Path) -> Listener:
    """To be called while an event loop runs."""
    return listener_of(settings(directory), Services())


def opened(directory: Path, *loaded: str) -> Listener:
    """The listener, with the keys of some issuers."""

    async def load() -> Listener:
        listener = made(directory)
        for name in loaded:
            await listener.keys[name].refresh()
            listener.keys[name].cache.loaded(document(KEYS[name].jwk()), NOW)
        return listener

    return asyncio.run(load())


class Client(Playbook):
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


def test_each_issuer_has_its_keys_and_its_names(directory: Path) -> None:
    listener = opened(directory, OURS, PARTNERS)
    assert Client(listener, OURS).outcome == ["authenticated User:alice"]
    assert Client(listener, PARTNERS).outcome == ["authenticated User:partner:alice"]


def test_the_outage_of_one_concerns_its_clients_alone(directory: Path) -> None:
    """A proxy that is not ready would be taken from the clients of the other, too."""
    listener = opened(directory, OURS)
    assert Client(listener, OURS).outcome == ["authenticated User:alice"]
    assert Client(listener, PARTNERS).outcome == ["seek keys"]
    states = {one.name: one.good for one in listener.conditions(NOW, time.time())}
    assert states[f"clients, {OURS}"]
    assert "never read" in next(
        one.state for one in listener.conditions(NOW, 0.0) if PARTNERS in one.name
    )


def test_a_listener_is_ready_with_the_keys_of_one(directory: Path) -> None:
    async def reasons(*loaded: str) -> list[str]:
        listener = made(directory)
        for name in loaded:
            await listener.keys[name].refresh()
        return listener.not_ready()

    assert len(asyncio.run(reasons())) == 2
    assert asyncio.run(reasons(PARTNERS)) == []


def test_a_reload_changes_the_names_and_waits_with_new_issuers(directory: Path) -> None:
    listener = opened(directory, OURS, PARTNERS)
    third = "https://third.test"
    listener.apply(
        settings(directory, issuers=(PARTNERS, third), principal_mapping_rules="DEFAULT")
    )
    assert Client(listener, PARTNERS).outcome == ["authenticated User:partner:alice"]
    assert Client(listener, OURS).outcome == [], "an error is answered: it is no issuer any more"
    listener.apply(settings(directory, principal_mapping_rules="RULE:^(.*)$/$1@x/"))
    assert Client(listener, OURS).outcome == ["authenticated User:alice@x"]


def test_metrics_tell_the_issuers_apart(directory: Path) -> None:
    listener = opened(directory, OURS)
    listener.keys[PARTNERS].cache.failed("no route to host", NOW)
    snapshot = Snapshot()
    listener.collect(snapshot, NOW + 60)
    assert snapshot.values[registry.JWKS_AGE.name] == {("clients", OURS): 60.0}
    failures = snapshot.values[registry.JWKS_REFRESH_FAILURES.name]
    assert failures == {("clients", OURS): 0, ("clients", PARTNERS): 1}
