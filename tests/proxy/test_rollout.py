"""Promotion and demotion by evidence (`reauth.enforcement: auto`)."""

from collections.abc import Sequence
from dataclasses import replace

import pytest
from hypothesis import given
from hypothesis import strategies as st

from metrics.rollout import AUTO, MAX_CLIENTS, Stage
from proxy.rollout import (
    MAX_PRINCIPALS,
    ClientKind,
    Decision,
    Evidence,
    Pause,
    Promotion,
    Record,
    Rollout,
    Rules,
    kind_of,
)

HOUR, DAY = 3_600_000, 86_400_000
NOW = 1_000 * DAY
RULES = Rules()
LIB = ClientKind("orders", "librdkafka", "2.3")
OLD = ClientKind("old", "librdkafka", "1.5")
READY = (NOW - DAY, NOW - HOUR, NOW)


def client(*renewed: int, seen: int = NOW, failed: int = 0, longest: int = 0) -> Evidence:
    return Evidence(seen, (failed, "used a session past its end" * bool(failed)), longest, renewed)


def rollout(rules: Rules = RULES, **clients: Evidence | Record) -> Rollout:
    """Return a state with principals by name, each with a client or a whole record."""
    state = Rollout(rules)
    for name, one in clients.items():
        state.add(name, one if isinstance(one, Record) else Record(clients={LIB: one}))
    return state


def promoted(at: int = NOW - HOUR, step: int = 0) -> Decision:
    return Decision(at, False, step, 0, AUTO, "ready")


def due(state: Rollout, now: int = NOW) -> dict[str, Decision]:
    return {name: one.decision for name, one in state.decide(now).records.items()}


@pytest.mark.parametrize(
    ("evidence", "stage", "reason"),
    [
        pytest.param(client(*READY), Stage.READY, "", id="ready"),
        pytest.param(client(), Stage.UNDECIDED, "not re-authenticated yet", id="no renewal"),
        pytest.param(client(NOW, NOW - 1), Stage.CAPABLE, "2 of 3", id="too few"),
        pytest.param(
            client(NOW - DAY + 1, NOW - 1, NOW), Stage.CAPABLE, "of 86400000 ms", id="too short"
        ),
        pytest.param(client(failed=NOW), Stage.SEEN, "past its end", id="cannot"),
        pytest.param(client(*READY, failed=NOW - 2 * DAY), Stage.READY, "", id="recovered"),
        pytest.param(client(*READY, failed=NOW - 2), Stage.CAPABLE, "1 of 3", id="killed between"),
        pytest.param(client(*READY, seen=NOW - 31 * DAY), Stage.UNDECIDED, "recently", id="gone"),
        pytest.param(
            client(NOW - 60 * DAY, NOW - 45 * DAY, NOW), Stage.CAPABLE, "1 of 3", id="old evidence"
        ),
        pytest.param(
            client(NOW - 21 * DAY, NOW - 14 * DAY, NOW - 7 * DAY, seen=NOW - 7 * DAY),
            Stage.READY,
            "",
            id="weekly batch job",
        ),
        pytest.param(client(*READY, NOW + DAY), Stage.UNDECIDED, "future", id="clock set back"),
        pytest.param(client(*READY, NOW + 1_000), Stage.READY, "", id="clocks differ a little"),
    ],
)
def test_a_client_is_judged_by_its_evidence(evidence: Evidence, stage: Stage, reason: str) -> None:
    state = rollout(alice=evidence)
    found = state.standing("alice", NOW)
    assert found.stage is stage
    assert reason in found.reason
    assert (due(state) != {}) == (stage is Stage.READY)


def test_the_client_that_is_farthest_from_ready_decides() -> None:
    def stage_with(other: Evidence) -> Stage:
        return rollout(a=Record(clients={LIB: client(*READY), OLD: other})).standing("a", NOW).stage

    assert stage_with(client(*READY)) is Stage.READY
    assert stage_with(client(NOW)) is Stage.CAPABLE
    assert stage_with(client()) is Stage.UNDECIDED
    assert stage_with(client(failed=NOW)) is Stage.SEEN
    assert stage_with(client(failed=NOW, seen=NOW - 31 * DAY)) is Stage.READY


def test_clients_of_an_enforced_principal_that_are_not_ready_are_probed() -> None:
    clients = {LIB: client(*READY), OLD: client(NOW)}
    state = rollout(a=Record(clients=clients, decision=promoted()), b=client(*READY))
    assert state.promotions(NOW) == {"a": Promotion(None, frozenset({LIB}))}
    by_operator = promoted()._replace(author="root")
    assert rollout(a=Record(clients=clients, decision=by_operator)).promotions(NOW)[
        "a"
    ] == Promotion(None, None)


@pytest.mark.parametrize("freezes", [False, True])
def test_kills_demote_or_freeze(freezes: bool) -> None:
    rules = RULES._replace(max_kills=1, on_kills="freeze" if freezes else "demote")
    before = Record(clients={LIB: client(*READY)}, decision=promoted())

    def with_kills(*kills: int) -> Rollout:
        return rollout(rules, a=replace(before, kills=kills), b=client(*READY))

    assert with_kills(NOW - 1).decide(NOW).records["b"].decision.probes is False
    assert "a" not in due(with_kills(NOW - 2 * HOUR, NOW - 1))
    assert "a" not in due(with_kills(NOW - 2, NOW - 1), NOW + HOUR)
    state = with_kills(NOW - 2, NOW - 1)
    decided = state.decide(NOW)
    if freezes:
        assert (decided.pause, decided.records) == (
            Pause(NOW, True, AUTO, "a: sessions killed within 3600000 ms: 2"),
            {},
        )
        state.merge(decided)
        assert state.decide(NOW + 1).is_empty
        state.pause = Pause(NOW + 2, False, "root")
        assert due(state, NOW + 3).keys() == {"b"}
    else:
        state.merge(decided)
        assert state.standing("a", NOW).stage is Stage.DEMOTED
        assert "a" not in state.promotions(NOW)
        later = NOW + 2 * DAY
        state.note("a", LIB, client(NOW + HOUR, NOW + DAY, seen=later))
        assert "a" not in due(state, later)
        state.note("a", LIB, client(later, seen=later))
        assert due(state, later)["a"].since_ms == NOW


def test_an_operators_demotion_stays() -> None:
    decision = Decision(NOW - DAY, True, 0, 0, "root", "wait for the release")
    state = rollout(a=Record(clients={LIB: client(*READY)}, decision=decision))
    assert due(state) == {}
    assert state.standing("a", NOW) == (Stage.DEMOTED, "wait for the release")
    assert state.forget(NOW + 60 * DAY) == ["a"]
    assert state.records["a"].decision == decision


def test_promotions_have_a_rate_and_can_be_paused() -> None:
    """Principals with few kinds of clients come first."""
    rules = RULES._replace(promotions_per_hour=2)
    state = rollout(
        rules,
        a=Record(clients={LIB: client(*READY), OLD: client(*READY)}),
        b=client(*READY),
        c=client(*READY),
        d=Record(decision=promoted(NOW - 2 * HOUR)),
    )
    assert due(state).keys() == {"b", "c"}
    state.merge(state.decide(NOW))
    assert due(state, NOW + HOUR - 1) == {}
    assert due(state, NOW + HOUR).keys() == {"a"}
    state.pause = Pause(NOW, True, "root")
    assert due(state, NOW + HOUR) == {}
    state.pause = Pause()
    state.rules = rules._replace(pause=True)
    assert due(state, NOW + HOUR) == {}


def test_the_next_lifetime_follows_when_the_longer_one_held() -> None:
    rules = RULES._replace(lifetimes_ms=(HOUR, HOUR // 4))
    since = NOW - DAY - HOUR
    enforced = Record(clients={LIB: client(*READY)}, decision=promoted(since))
    state = rollout(rules, a=enforced, b=replace(enforced, decision=promoted(NOW - HOUR)))
    assert due(rollout(rules, c=client(*READY)))["c"].step == 0
    assert state.promotions(NOW)["a"].max_reauth_ms == HOUR
    assert {name: one.step for name, one in due(state).items()} == {"a": 1}
    state.merge(state.decide(NOW))
    assert state.promotions(NOW)["a"].max_reauth_ms == HOUR // 4
    assert due(state, NOW + 10 * DAY) == {}
    unproven = Record(clients={LIB: client(longest=HOUR // 2), OLD: client(NOW, longest=HOUR)})
    assert rollout(rules, a=unproven).would_be_killed("a") == {HOUR: 0, HOUR // 4: 1}


def test_evidence_from_before_a_jump_of_the_clock_does_not_count() -> None:
    state = rollout(a=client(*READY))
    state.floor_ms = NOW - 1
    assert state.standing("a", NOW).stage is Stage.CAPABLE


@pytest.mark.parametrize(
    ("client_ids", "kind"),
    [
        (["orders"], "orders"),
        (["consumer-1", "consumer-27"], "consumer-*"),
        (["kafka2-orders"], "kafka*-orders"),
        (["orders-7d9f8b6c5d-x2x4z", "orders-bcdfghjklm-bcdfg"], "orders-*"),
        (["app-0b7e5c1a-9a4c-4d0e-8f3b-aa90c7d8e012-consumer"], "app-*-consumer"),
        (["w.x9f3k2.prod"], "w.*.prod"),
        (["x" * 1000], "x" * 128),
        (["1\x00é"], "*\x00é"),
    ],
)
def test_client_ids_are_grouped_by_what_stays(client_ids: Sequence[str], kind: str) -> None:
    assert {kind_of((one, "lib", "1.2.3")) for one in client_ids} == {(kind, "lib", "1.2.3")}


def test_a_flood_is_bounded_and_promotes_nothing() -> None:
    state = Rollout(RULES)
    for number in range(MAX_CLIENTS + 1):
        state.note("a", ClientKind("x" * number, None, None), client(*READY))
    assert len(state.records["a"].clients) == MAX_CLIENTS
    assert state.standing("a", NOW).stage is Stage.UNDECIDED
    for number in range(MAX_PRINCIPALS):
        state.note(f"p{number}", LIB, client())
    assert len(state.records) == MAX_PRINCIPALS
    assert due(state) == {}
    assert len(state.forget(NOW + 31 * DAY)) == MAX_PRINCIPALS
    assert not state.records


# Properties

times = st.integers(0, 40).map(lambda quarter: NOW - quarter * DAY // 4)
evidence = st.builds(
    Evidence,
    times,
    st.tuples(st.just(0) | times, st.sampled_from(["", "a", "b"])),
    st.integers(0, 3),
    st.lists(times, max_size=8).map(lambda found: tuple(sorted(set(found)))),
)
kinds = st.sampled_from([LIB, OLD, ClientKind(None, None, None)])
decisions = st.builds(
    Decision, times, st.booleans(), st.integers(0, 1), st.just(0), st.sampled_from([AUTO, "root"])
)
records = st.builds(
    Record,
    clients=st.dictionaries(kinds, evidence),
    kills=st.lists(times, max_size=4).map(tuple),
    decision=st.just(Decision()) | decisions,
)
small = RULES._replace(reauthentications=2, max_kills=1)
states = st.dictionaries(st.sampled_from("ab"), records).map(lambda found: rollout(small, **found))


def merged(*parts: Rollout) -> dict[str, Record]:
    state = Rollout(small)
    for part in parts:
        state.merge(part)
    return state.records


@given(states, states, states)
def test_merging_is_associative_commutative_and_idempotent(
    a: Rollout, b: Rollout, c: Rollout
) -> None:
    whole = merged(a, b, c)
    assert whole == merged(c, a, b, a) == merged(rollout(small, **merged(b, c)), a)
    stored = Rollout(small)
    rows = rollout(small, **whole).rows(whole)
    assert stored.read({name: text for name, text in rows.items() if text}) == []
    assert stored.records == whole


@given(states, st.data())
def test_missing_data_never_promotes(state: Rollout, data: st.DataObject) -> None:
    """Whatever re-authentications are lost, no other principal is ready."""
    fewer = {}
    for name, record in state.records.items():
        clients = {
            kind: one._replace(renewed=tuple(at for at in one.renewed if data.draw(st.booleans())))
            for kind, one in record.clients.items()
        }
        fewer[name] = replace(record, clients=clients)
    lost = rollout(small, **fewer)

    def ready(one: Rollout) -> set[tuple[str, int]]:
        return {(name, found.step) for name, found in due(one).items() if not found.probes}

    assert ready(lost) <= ready(state)
    for name, (_, enforced) in lost.promotions(NOW).items():
        whole = state.promotions(NOW)[name].clients
        assert enforced == whole or (enforced is not None and enforced <= (whole or enforced))


@given(st.sets(times), st.sets(times), st.just(0) | times)
def test_old_re_authentications_are_dropped_without_a_difference(
    some: set[int], more: set[int], failed: int
) -> None:
    """Thinned evidence is ready whenever all of it would be, if less than a part of the window
    later."""
    rules = RULES._replace(window_ms=2 * DAY)
    state = Rollout(rules)
    for at in sorted(some):
        state.note("a", LIB, client(at))
    state.note("a", LIB, Evidence(NOW, (failed, "x"), 0, tuple(sorted(more))))
    known = sorted(at for at in some | more if at > failed)
    is_ready = len(known) >= 3 and known[-1] - known[0] >= 2 * DAY
    assert (state.standing("a", NOW).stage is Stage.READY) == is_ready


@pytest.mark.parametrize("text", ["", "{", "[]", "null", '[[["a"]], [], 0, []]', "[[], 1, 0]"])
def test_a_damaged_row_is_no_evidence(text: str) -> None:
    state = Rollout(RULES)
    assert state.read({"a": text, "b": rollout(b=client(*READY)).records["b"].text()}) == ["a"]
    assert due(state).keys() == {"b"}
