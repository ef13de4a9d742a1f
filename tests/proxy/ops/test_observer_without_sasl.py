"""What is reported of a client without SASL: that it is connected, and what it is denied."""

from dataclasses import replace

from metrics import registry
from metrics.tally import Tally
from proxy.acl.authorizer import DenialNotice
from proxy.connection.commands import CloseReason
from proxy.ops.status.recent import Incident
from proxy.wire.apis import FETCH, PRODUCE
from sasl.identity import Identity
from tests.support.frames import request
from tests.support.metrics import read
from tests.support.observer import DENIAL, observer_of
from tests.support.playbook import Playbook, everything
from tests.support.sasl import NOW

ALICE = "User:CN=alice"


def test_versions_that_kafka_4_dropped_are_reported_by_name() -> None:
    reported: list[str] = []
    observer = observer_of(emit=reported.append)
    play = Playbook(offer=everything(enforces_acls=False))
    observer.opened(play.connection, NOW)
    play.call(lambda connection, now: connection.admit(Identity(ALICE), now))
    observer.authenticated(play.connection, play.session)
    play.client(request(PRODUCE, 2, 3, b"\xff\xff"), request(FETCH, 3, 4), request(FETCH, 4, 5))
    observer.closed(play.connection, CloseReason.CLIENT_CLOSED, NOW + 1)
    (event,) = map(read, reported)
    assert (event.kind, event.principal, event.client_id) == ("closed", ALICE, "app")
    versions = [(one.api, one.version) for one in event.dropped_versions or ()]
    assert versions == [("Produce", 2), ("Fetch", 3)]


def test_no_metric_of_kip_368_counts_it_and_no_event_but_a_denial_tells_of_it() -> None:
    reported: list[str] = []
    noted: list[Incident] = []
    tally = Tally(run="r")
    observer = observer_of(emit=reported.append, note=noted.append, tally=tally)
    play = Playbook()
    observer.opened(play.connection, NOW)
    play.call(lambda connection, now: connection.admit(Identity(ALICE), now))
    observer.authenticated(play.connection, play.session)
    denial = replace(DENIAL, principal=ALICE)
    observer.denied(play.connection, DenialNotice(denial=denial, count=1), NOW)
    observer.sweep(play.connection, NOW + 100_000)
    observer.closed(play.connection, CloseReason.CLIENT_CLOSED, NOW + 100_001)

    (event,) = map(read, reported)
    assert (event.kind, event.principal) == ("denied", ALICE)
    (incident,) = noted
    assert (incident.kind, incident.principal) == ("denied", ALICE)
    counters = tally.snapshot().values
    assert {name for name, sets in counters.items() if any(sets.values())} == {
        registry.CONNECTIONS_OPENED.name,
        registry.CONNECTIONS_CLOSED.name,
    }
