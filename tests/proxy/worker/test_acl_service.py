"""A worker's authorizer: what it applies, what it reports, and what it does without its store."""

from collections.abc import Iterator
from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from metrics import registry
from metrics.snapshot import Snapshot
from proxy.acl.authorizer import DenialNotice
from proxy.acl.model import Acl, AuthorizerMode, Operation, PatternType, Permission, ResourceType
from proxy.config import Authorizer
from proxy.connection.commands import CloseReason
from proxy.connection.connection import Connection
from proxy.connection.frames import route_key
from proxy.store import StoreError, open_store
from proxy.wire.apis import PRODUCE
from proxy.worker.acl_service import MAX_NAME_LOGGED, AclService
from sasl.identity import Identity
from tests.support.frames import request, response
from tests.support.kio_messages import decode, encode, response_type
from tests.support.messages import metadata_request as asking
from tests.support.messages import metadata_response as with_throttle_time
from tests.support.playbook import Playbook, everything, logged_in


@dataclass
class Told:
    """Events for the event log."""

    notices: list[DenialNotice] = field(default_factory=list)

    def denied(self, _connection: Connection, notice: DenialNotice, _now: float) -> None:
        self.notices.append(notice)


@dataclass
class Failing:
    """A store that can break."""

    inner: Any
    broken: bool = False

    def __getattr__(self, name: str) -> Any:
        if self.broken:
            raise StoreError("state.db: is damaged")
        return getattr(self.inner, name)


@pytest.fixture
def store(tmp_path: Path) -> Iterator[Failing]:
    with closing(open_store(f"sqlite:{tmp_path / 'state.db'}")) as opened:
        yield Failing(opened)


class Services:
    """An authorizer over a store, and a connection."""

    def __init__(
        self,
        store: Failing,
        mode: AuthorizerMode = AuthorizerMode.ENFORCE,
        *super_users: str,
        brokers_make_topics: bool = True,
    ) -> None:
        self.store = store
        self.reported = Told()
        settings = Authorizer.model_validate(
            {
                "mode": mode,
                "super.users": super_users,
                "allow.everyone.if.no.acl.found": False,
                "auto.create.topics.enable": brokers_make_topics,
            }
        )
        self.authorization = AclService(
            settings, cast(Any, self.store), observer=lambda _: self.reported
        )
        offer = everything(rewritten=frozenset())
        self.play = logged_in(Playbook(rights=self.authorization, offer=offer))
        self.connection = self.play.connection

    def may(self, operation: Operation, name: str) -> bool:
        admission = self.connection.authorization
        assert admission is not None
        admission._asks()
        return admission._authority.may(operation, ResourceType.TOPIC, name)


def allow(name: str) -> Acl:
    return Acl(
        resource_type=ResourceType.TOPIC,
        pattern_type=PatternType.LITERAL,
        name=name,
        principal="User:*",
        host="*",
        operation=Operation.READ,
        permission=Permission.ALLOW,
    )


def test_a_change_in_the_store_is_taken_over(store: Failing) -> None:
    services = Services(store)
    assert not services.may(Operation.READ, "a")
    services.store.create_acls([allow("a")])
    services.authorization.read()
    assert services.authorization.take_over()
    assert services.may(Operation.READ, "a")
    services.authorization.read()
    assert not services.authorization.take_over(), "nothing is new"


def test_without_its_store_the_last_acls_apply(store: Failing) -> None:
    """Never open, never closed: as it was."""
    services = Services(store)
    services.store.create_acls([allow("a")])
    services.authorization.read()
    services.authorization.take_over()
    services.store.broken = True
    with pytest.raises(StoreError, match="is damaged"):
        services.authorization.read()
    assert not services.authorization.take_over()
    assert services.may(Operation.READ, "a")
    assert not services.may(Operation.READ, "b")


def test_a_store_that_cannot_be_read_at_start_is_an_error() -> None:
    store = Failing(None, broken=True)
    settings = Authorizer.model_validate({"mode": "enforce"})
    with pytest.raises(StoreError):
        AclService(settings, cast(Any, store), observer=lambda _: Told())


def test_a_super_user_is_judged_by_nobody_until_it_is_none(store: Failing) -> None:
    services = Services(store)
    principal = services.connection.session.state.principal  # type: ignore[union-attr]
    services.authorization.replace_super_users([principal])
    services.connection.rights_changed(0.0)
    assert services.connection.authorization is None
    services.authorization.replace_super_users([])
    services.connection.rights_changed(0.0)
    assert services.connection.authorization is not None
    assert not services.may(Operation.READ, "a")


def test_a_denial_is_told_once_and_counted(
    store: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    services = Services(store)
    for _ in range(1_000):
        services.may(Operation.READ, "a")
    (notice,) = services.reported.notices
    assert (notice.denial.name, notice.denial.would_be, notice.count) == ("a", False, 1)
    assert len(caplog.records) == 1
    services.authorization.close()
    assert services.reported.notices[-1].count == 999
    snapshot = Snapshot(run="r", values={}, histograms={})
    services.authorization.collect(snapshot)
    decisions = snapshot.values[registry.AUTHORIZER_DECISIONS.name]
    assert decisions == {("READ", "denied"): 1_000}


def test_in_audit_everything_passes_and_is_told(store: Failing) -> None:
    services = Services(store, AuthorizerMode.AUDIT)
    assert services.may(Operation.READ, "a")
    (notice,) = services.reported.notices
    assert notice.denial.would_be


def test_in_audit_what_cannot_be_judged_is_reported(
    store: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    services = Services(store, AuthorizerMode.AUDIT)
    connection = services.connection
    services.authorization.passes_unjudged(
        connection, Identity("User:alice"), route_key(PRODUCE, 2)
    )
    (notice,) = services.reported.notices
    assert (notice.denial.name, notice.denial.would_be) == ("Produce v2", True)
    (record,) = caplog.records
    expected = "would be denied Produce v2: ACLs cannot judge this old version"
    assert record.getMessage() == f"User:alice at {connection.peer_host} {expected}"
    snapshot = Snapshot(run="r", values={}, histograms={})
    services.authorization.collect(snapshot)
    decisions = snapshot.values[registry.AUTHORIZER_DECISIONS.name]
    assert decisions == {("UNKNOWN", "would_be_denied"): 1}


def test_without_audit_it_is_not(store: Failing) -> None:
    services = Services(store, AuthorizerMode.ENFORCE)
    key = route_key(PRODUCE, 2)
    services.authorization.passes_unjudged(services.connection, Identity("User:alice"), key)
    assert services.reported.notices == []


@pytest.mark.parametrize(("brokers_make_topics", "error"), [(True, 29), (False, 3)])
def test_a_topic_that_may_not_be_made_is_missing_as_before_brokers_of_that_setting(
    store: Failing, brokers_make_topics: bool, error: int
) -> None:
    """A client that may read it waits for it where nobody makes it by asking."""
    services = Services(store, brokers_make_topics=brokers_make_topics)
    services.store.create_acls([allow("a")])
    services.authorization.read()
    services.authorization.take_over()
    services.play.client(request(3, 12, 7, encode(asking(12, "a"))))
    services.play.broker(response(7, b"\0" + encode(with_throttle_time(12, ("a", 3)))))
    (topic,) = decode(response_type(3, 12), services.play.received[-1], 5).topics
    assert topic.error_code == error


def test_names_that_clients_chose_do_no_harm_to_a_log(
    store: Failing, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level("INFO")
    services = Services(store)
    services.may(Operation.READ, "x\n2026 ERROR forged\x1b[2J\u202e" + "y" * 30_000)
    (record,) = caplog.records
    assert record.getMessage().isascii()
    assert record.getMessage().isprintable()
    assert len(record.getMessage()) < 3 * MAX_NAME_LOGGED


def test_a_connection_that_is_gone_gets_no_event(store: Failing) -> None:
    services = Services(store)
    services.may(Operation.READ, "a")
    services.may(Operation.READ, "a")
    services.connection.finish(CloseReason.CLIENT_CLOSED, 0.0)
    services.authorization.close()
    assert len(services.reported.notices) == 1
