"""Changes that go to brokers and then to the mirror, against a broker over TCP that may lie."""

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from time import monotonic
from typing import Any

import pytest

from proxy.acl.index import AclIndex
from proxy.acl.model import Acl, AclFilter, PatternType
from proxy.brokers.access import Access, open_access
from proxy.handlers import acls as acl_api
from proxy.handlers.acls import Acls
from proxy.net.dialler import Dialler
from proxy.quota.model import Quotas
from proxy.store.brokers import Administration, BrokerStore, administrator
from proxy.store.interface import StoreRefused
from proxy.wire.error_codes import ErrorCode
from tests.support.acls import acl, create_body, creation
from tests.support.broker_store import (
    ALICE,
    ALTER_QUOTAS,
    BOB,
    CREATE,
    DELETE,
    LIE,
    NAME,
    PASSWORD,
    PRODUCER,
    broker,
    hangs_up,
    settings_of,
)
from tests.support.fake_broker import Body, Peer, in_a_thread
from tests.support.keepalive import options_of_connections_to
from tests.support.kio_messages import decode, response_type
from tests.support.messages import response, written
from tests.support.processes import PATIENCE_SECONDS, free_ports

REFUSED = "The brokers refused the change: "
NOT_ALL = "The brokers refused a part of the change: "
PERHAPS = "It is not known whether the brokers made the change, or a part of it."


@contextmanager
def store_of(address: str, directory: Path, **more: Any) -> Iterator[BrokerStore]:
    upstream = settings_of(address, directory, **more).upstream
    store = BrokerStore(
        directory / "state.db", Administration(upstream, open_access(upstream, None))
    )
    store.begin()
    try:
        yield store
    finally:
        store.close()


def shown(store: BrokerStore) -> tuple[set[Acl], Quotas]:
    return {*store.acl_snapshot().acls}, store.quota_snapshot().quotas


def holds_off(store: BrokerStore, asked_at: float) -> bool:
    """Whether an answer to a question of that moment is too old to be shown."""
    return not store.take_over(asked_at=asked_at, new_acls=None, new_quotas=None)


@contextmanager
def store_at(peer: Peer, directory: Path, **more: Any) -> Iterator[BrokerStore]:
    with in_a_thread(peer), store_of(peer.address, directory, **more) as store:
        yield store


def refusal(change: Callable[[], object]) -> tuple[int, str | None]:
    """The error code and the message of a change that is refused."""
    with pytest.raises(StoreRefused) as reported:
        change()
    return reported.value.code, reported.value.message


# --- what is done


async def test_the_kernel_probes_connections_to_brokers(tmp_path: Path) -> None:
    """Those of the follower, too, which stay open."""
    async with broker() as peer:
        upstream = settings_of(peer.address, tmp_path).upstream
        access = Access(timeout_s=PATIENCE_SECONDS, dialler=Dialler(50_000))
        async with administrator(upstream, access) as client:
            await client.describe_acls()
            assert list(options_of_connections_to(peer.port)) == [(1, 50, 10, 3, 80_000)]


@pytest.mark.parametrize("login", [False, True])
def test_what_is_changed_is_the_brokers_and_then_the_mirrors(tmp_path: Path, login: bool) -> None:
    peer = broker(acl("there"), passwords={NAME: PASSWORD} if login else None)
    with store_at(peer, tmp_path, login=login) as store:
        before = monotonic()
        assert store.create_acls([acl("a"), acl("b"), acl("there")]) == store.acl_version()
        assert peer.acl_store.acls == {acl("a"), acl("b"), acl("there")} == shown(store)[0]
        assert holds_off(store, before)

        assert store.delete_acls([AclFilter(name="a"), AclFilter(name="none")]) == ((acl("a"),), ())
        assert peer.acl_store.acls == {acl("b"), acl("there")} == shown(store)[0]

        store.alter_quotas({ALICE: {PRODUCER: 5.0}, BOB: {PRODUCER: 6.0}})
        assert peer.quotas.quotas == {ALICE: {PRODUCER: 5.0}, BOB: {PRODUCER: 6.0}}
        store.alter_quotas({BOB: {PRODUCER: None}})
        assert peer.quotas.quotas == {ALICE: {PRODUCER: 5.0}} == shown(store)[1]


def test_what_the_mirror_does_not_show_yet_is_deleted_at_the_brokers(tmp_path: Path) -> None:
    """And told, each filter for itself, though two of them find the same."""
    peer = broker(acl("a"), acl("b"))
    with store_at(peer, tmp_path) as store:
        by_name = AclFilter(name="a")
        found = store.delete_acls([by_name, AclFilter(name="b"), by_name])
        assert found == ((acl("a"),), (acl("b"),), (acl("a"),))
        assert (peer.acl_store.acls, shown(store)[0]) == (set(), set())


def in_threads(count: int, change: Callable[[int], object]) -> None:
    threads = [threading.Thread(target=change, args=(number,)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(60)


def test_changes_may_come_from_any_thread(tmp_path: Path) -> None:
    peer = broker()
    with store_at(peer, tmp_path) as store:
        in_threads(8, lambda number: store.create_acls([acl(str(number))]))
        assert {one.name for one in shown(store)[0]} == {*"01234567"}
        assert (peer.connections, len(peer.acl_store.acls)) == (8, 8)


def test_changes_go_to_the_brokers_one_after_the_other(tmp_path: Path) -> None:
    """In the order in which they are mirrored; here each waits for a broker that is silent."""
    with store_at(broker(silent={CREATE}), tmp_path, timeout_ms=300) as store:
        began = monotonic()
        in_threads(3, lambda number: refusal(lambda: store.create_acls([acl(str(number))])))
        assert monotonic() - began >= 3 * 0.3


# --- what is refused, or a part of it


def test_what_was_done_of_a_creation_is_mirrored(tmp_path: Path) -> None:
    """An earlier answer lacks it and must not be taken for the present state."""
    peer = broker()
    with store_at(peer, tmp_path) as store:
        before = monotonic()
        reported = refusal(lambda: store.create_acls([acl("a"), acl(""), acl("b")]))
        assert reported == (ErrorCode.INVALID_REQUEST, f"{NOT_ALL}INVALID_REQUEST")
        assert peer.acl_store.acls == {acl("a"), acl("b")} == shown(store)[0]
        assert holds_off(store, before)


def test_what_was_done_of_a_deletion_is_mirrored(tmp_path: Path) -> None:
    peer = broker(acl("a"), acl("b"))
    with store_at(peer, tmp_path) as store:
        store.create_acls([acl("a"), acl("b")])
        filters = [AclFilter(name="a"), AclFilter(pattern_type=PatternType.UNKNOWN)]
        assert refusal(lambda: store.delete_acls(filters))[0] == ErrorCode.INVALID_REQUEST
        assert peer.acl_store.acls == {acl("b")} == shown(store)[0]


def deletes(*found: tuple[str, int, ErrorCode]) -> Body:
    """By one filter: names and operations of the ACLs that it found, and their errors."""
    of_each = {"resource_type": 2, "pattern_type": 3, "principal": "User:alice", "host": "*"}
    matches = [
        {
            **of_each,
            "resource_name": name,
            "operation": operation,
            "permission_type": 3,
            "error_code": error,
            "error_message": LIE if error else None,
        }
        for name, operation, error in found
    ]
    results = [{"error_code": 0, "error_message": None, "matching_acls": matches}]
    return lambda version, _: written(response(DELETE, version, filter_results=results))


def test_an_acl_that_a_filter_found_and_that_stayed_is_shown(tmp_path: Path) -> None:
    answer = deletes(("a", 3, ErrorCode.NONE), ("b", 3, ErrorCode.UNKNOWN_SERVER_ERROR))
    with store_at(broker(handlers={DELETE: answer}), tmp_path) as store:
        store.create_acls([acl("a"), acl("b")])
        reported = refusal(lambda: store.delete_acls([AclFilter()]))
        assert reported == (ErrorCode.UNKNOWN_SERVER_ERROR, f"{NOT_ALL}UNKNOWN_SERVER_ERROR")
        assert shown(store)[0] == {acl("b")}


def test_what_a_newer_broker_deleted_besides_is_no_fault(tmp_path: Path) -> None:
    """An operation that is unknown here was never mirrored."""
    answer = deletes(("a", 3, ErrorCode.NONE), ("a", 99, ErrorCode.NONE))
    with store_at(broker(handlers={DELETE: answer}), tmp_path) as store:
        store.create_acls([acl("a"), acl("b")])
        assert store.delete_acls([AclFilter(name="a")]) == ((acl("a"),),)
        assert shown(store)[0] == {acl("b")}


def test_what_was_done_of_quotas_is_mirrored(tmp_path: Path) -> None:
    peer = broker()
    with store_at(peer, tmp_path) as store:
        limits = {ALICE: {PRODUCER: 0.0}, BOB: {PRODUCER: 5.0}}
        assert refusal(lambda: store.alter_quotas(limits))[0] == ErrorCode.INVALID_REQUEST
        assert peer.quotas.quotas == {BOB: {PRODUCER: 5.0}} == shown(store)[1]


def changes_of(store: BrokerStore) -> list[Callable[[], object]]:
    """One of each kind."""
    return [
        lambda: store.create_acls([acl("a")]),
        lambda: store.delete_acls([AclFilter()]),
        lambda: store.alter_quotas({ALICE: {PRODUCER: 5.0}}),
    ]


def test_without_the_right_nothing_is_done(tmp_path: Path) -> None:
    peer = broker(acl("there"), rights=False)
    with store_at(peer, tmp_path) as store:
        for change in changes_of(store):
            code, message = refusal(change)
            assert code == ErrorCode.CLUSTER_AUTHORIZATION_FAILED
            assert "the proxy's principal lacks permissions" in str(message)
        assert shown(store) == (set(), {})
        assert (peer.acl_store.acls, peer.quotas.quotas) == ({acl("there")}, {})


# --- brokers that are away, or lie

UNKNOWN = (ErrorCode.BROKER_NOT_AVAILABLE, PERHAPS)
LIES: dict[str, Body] = {
    "hangs up": hangs_up,
    "says nothing": lambda _version, _body: b"",
    "no results": lambda _version, _body: bytes(4) + b"\x01\x00",
    "billions": lambda _version, _body: bytes(4) + b"\xff\xff\xff\xff\x07",
    "garbage": lambda _version, _body: b"\xff" * 100,
    "much": lambda _version, _body: bytes(4) + b"\xff" * 50_000_000,
}


@pytest.mark.parametrize("lie", LIES)
def test_a_broker_that_does_not_answer_as_kafka_does(tmp_path: Path, lie: str) -> None:
    peer = broker(acl("there"), handlers=dict.fromkeys((CREATE, DELETE, ALTER_QUOTAS), LIES[lie]))
    with store_at(peer, tmp_path) as store:
        assert [refusal(change) for change in changes_of(store)] == [UNKNOWN] * 3
        assert shown(store) == (set(), {})


def test_a_broker_that_is_not_there(tmp_path: Path) -> None:
    """Clients need not know where brokers are."""
    (nobody,) = free_ports(1)
    with store_of(f"127.0.0.1:{nobody}", tmp_path) as store:
        assert refusal(lambda: store.create_acls([acl("a")])) == UNKNOWN
        assert shown(store) == (set(), {})


def test_a_broker_that_is_silent_is_waited_for_no_longer_than_configured(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """And the next change is not told to it after the first."""
    peer = broker(silent={CREATE})
    with store_at(peer, tmp_path, timeout_ms=300) as store:
        assert refusal(lambda: store.create_acls([acl("a")])) == UNKNOWN
        assert "no answer within 0.3 s" in caplog.text
        peer.silent.clear()
        store._brokers._client._timeout_s = PATIENCE_SECONDS  # of a busy machine
        store.create_acls([acl("b")])
        assert peer.acl_store.acls == {acl("b")} == shown(store)[0]


def refuses(error: ErrorCode | int) -> Body:
    """Each creation, in words that are meant for a terminal."""

    def answer(_version: int, _body: bytes) -> bytes:
        said = LIE.encode()
        result = int(error).to_bytes(2) + bytes([len(said) + 1]) + said + b"\0"
        return bytes(4) + b"\x02" + result + b"\0"

    return answer


@pytest.mark.parametrize(
    ("error", "reported"),
    [
        (ErrorCode.POLICY_VIOLATION.value, ("policy_violation", "POLICY_VIOLATION")),
        (
            ErrorCode.SECURITY_DISABLED.value,
            ("security_disabled", "SECURITY_DISABLED: the brokers have no authorizer, so no ACLs"),
        ),
        (999, ("unknown_server_error", "error 999")),
    ],
)
def test_a_client_is_told_in_our_words(
    tmp_path: Path, error: int, reported: tuple[str, str], caplog: pytest.LogCaptureFixture
) -> None:
    """A broker may repeat the password that it received, and the client is not the operator."""
    peer = broker(handlers={CREATE: refuses(error)}, passwords={NAME: PASSWORD})
    with store_at(peer, tmp_path, login=True) as store:
        acls = Acls(store=store, current=lambda: AclIndex([], version=0))
        body = create_body(3, [creation()])
        answer = acl_api.answer(CREATE, 3, body, acls, authorized=True)
        assert isinstance(answer, bytes)
        (result,) = decode(response_type(CREATE, 3), answer).results
        assert (result.error_code.name, result.error_message) == (
            reported[0],
            REFUSED + reported[1],
        )
        assert PASSWORD.encode() not in answer
        assert shown(store) == (set(), {})
    assert caplog.text == ""


def test_a_login_that_is_refused_is_told_without_it(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    peer = broker(passwords={NAME: "another"})
    with store_at(peer, tmp_path, login=True) as store:
        reported = refusal(lambda: store.create_acls([acl("a")]))
        assert reported == UNKNOWN, "it is not the client's login, and told to the operator"
        assert (peer.acl_store.acls, shown(store)) == (set(), (set(), {}))
    assert "the proxy's login failed: " in caplog.text
    assert PASSWORD not in caplog.text


def test_a_broker_that_does_not_know_the_password_gets_no_change(tmp_path: Path) -> None:
    """Another program at its address receives no ACL, and cannot have one mirrored."""
    peer = broker(passwords={NAME: "another"}, lying=True)
    with store_at(peer, tmp_path, login=True) as store:
        refusal(lambda: store.create_acls([acl("a")]))
        assert peer.seen(CREATE) == 0
        assert shown(store) == (set(), {})
