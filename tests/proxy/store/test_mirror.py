"""A file that shows what brokers keep: the laws of `proxy.store.sqlite.mirror`."""

from contextlib import closing
from dataclasses import dataclass, field
from pathlib import Path
from time import monotonic
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.acl.model import Acl, AclFilter, Operation, exactly
from proxy.quota.model import DEFAULT, QuotaEntity, QuotaKey, Quotas, altered
from proxy.store import open_store
from proxy.store.interface import Mirror, StoreError
from proxy.store.sqlite import acls as acls_module
from proxy.store.sqlite.mirror import SETTLES_WITHIN, SqliteMirror, Versions
from sasl.credentials import ScramCredential, ScramMechanism
from tests.support.acls import acl
from tests.support.broker_store import ALICE, BOB, PRODUCER, shown

CONSUMER = QuotaKey.CONSUMER_BYTE_RATE
LIMITED: Quotas = {ALICE: {PRODUCER: 5.0}}


def take_over(mirror: SqliteMirror, asked_at: float, *acls: Acl, quotas: Quotas) -> Versions | None:
    return mirror.take_over(asked_at=asked_at, new_acls=acls, new_quotas=quotas)


# --- the beginning


def test_nothing_is_known_at_a_start_whatever_is_in_the_file(
    mirror: SqliteMirror, path: Path
) -> None:
    """Content that was shown stays: workers may be asked before the brokers are."""
    assert mirror.mirror() == Mirror(asked_at=None, problem=None)
    assert take_over(mirror, 50.0, acl(), quotas=LIMITED)
    mirror.note_problem("gone")
    assert mirror.mirror() == Mirror(asked_at=50.0, problem="gone")
    again = open_store(f"broker:{path}")
    again.begin()
    again.close()
    assert mirror.mirror() == Mirror(asked_at=None, problem=None)
    assert shown(mirror) == ([acl()], LIMITED)


def test_the_clock_of_an_earlier_start_counts_no_more(mirror: SqliteMirror) -> None:
    """The clock restarts with the machine: an earlier change would never be old enough."""
    mirror.note_acls(1_000_000.0, [acl("new")], created=True)
    mirror.note_quotas(1_000_000.0, LIMITED)
    mirror.begin()
    assert take_over(mirror, 5.0, acl(), quotas={})
    assert shown(mirror) == ([acl()], {})


def test_a_proxy_that_takes_over_leaves_a_copy_as_it_is(mirror: SqliteMirror, path: Path) -> None:
    """The one that runs judges by it, and has made a change that brokers may not show yet."""
    take_over(mirror, 50.0, acl("a"), quotas=LIMITED)
    mirror.note_acls(50.5, [acl("a")], created=False)
    with closing(SqliteMirror(path)) as joining, closing(SqliteMirror(path, joining.join())) as new:
        assert mirror.mirror() == Mirror(asked_at=50.0)
        assert new.mirror() == Mirror(), "the one that takes over asks for itself"
        assert take_over(new, 51.0, acl("a"), acl("b"), quotas={}) is None
    assert shown(mirror) == ([acl("b")], {})


def test_the_answer_of_another_boot_is_not_later(mirror: SqliteMirror) -> None:
    take_over(mirror, monotonic() + 1_000.0, acl("old"), quotas=LIMITED)
    assert take_over(mirror, 49.0, acl("new"), quotas={})
    assert shown(mirror) == ([acl("new")], {})


def test_a_proxy_that_takes_over_uses_the_store_as_the_one_that_runs(path: Path) -> None:
    """A change of `store.url` would take the store away from the one that runs."""
    with closing(SqliteMirror(path)) as mirror, closing(open_store(f"sqlite:{path}")) as own:
        own.join()
        with pytest.raises(StoreError, match="another kind of"):
            mirror.join()
        mirror.begin()
        mirror.join()
        with pytest.raises(StoreError, match="another kind of"):
            own.join()
        assert own.mirror() == Mirror()


@pytest.mark.parametrize("has", ["ACLs", "quotas", "both"])
def test_a_file_with_something_of_its_own_is_refused_and_stays_as_it_is(
    path: Path, has: str
) -> None:
    """The brokers' would replace it, and nobody has it anywhere else."""
    own = open_store(f"sqlite:{path}")
    if has != "quotas":
        own.create_acls([acl()])
    if has != "ACLs":
        own.alter_quotas(LIMITED)
    before = shown(own)
    refused = open_store(f"broker:{path}")
    with pytest.raises(StoreError) as reported:
        refused.begin()
    assert str(reported.value).startswith(f"{path}: already has ACLs or quotas")
    assert (own.mirror(), shown(own)) == (None, before)
    own.begin()
    for one in (own, refused):
        one.close()


def test_verifiers_are_the_files_own_and_no_hindrance(path: Path) -> None:
    """Brokers reveal theirs to nobody."""
    own = open_store(f"sqlite:{path}")
    made = ScramCredential.from_password(ScramMechanism.SCRAM_SHA_256, "secret", b"salt", 4096)
    own.alter_credentials(upsert={("alice", ScramMechanism.SCRAM_SHA_256): made})
    secret = own.scram_fake_secret()
    own.close()
    mirror = SqliteMirror(path)
    mirror.begin()
    take_over(mirror, 5.0, acl(), quotas=LIMITED)
    assert [user for user, _ in mirror.credential_snapshot().credentials] == ["alice"]
    assert mirror.scram_fake_secret() == secret
    mirror.close()


def test_a_copy_becomes_its_own_when_the_proxy_starts_so(mirror: SqliteMirror, path: Path) -> None:
    """Who leaves the brokers' ACLs behind begins with theirs; the way back is not by accident."""
    take_over(mirror, 50.0, acl(), quotas=LIMITED)
    own = open_store(f"sqlite:{path}")
    assert own.mirror() is not None, "to look at it changes nothing"
    own.begin()
    assert own.mirror() is None
    assert shown(own) == ([acl()], LIMITED)
    with pytest.raises(StoreError, match="already has ACLs or quotas"):
        mirror.begin()
    own.delete_acls([AclFilter()])
    own.alter_quotas({ALICE: {PRODUCER: None}})
    mirror.begin()
    assert own.mirror() == Mirror()
    own.close()


def test_a_copy_that_nobody_confirmed_does_not_become_ones_own(
    mirror: SqliteMirror, path: Path
) -> None:
    """It may be of long ago, or empty: then everything may be allowed."""
    take_over(mirror, 50.0, acl(), quotas=LIMITED)
    mirror.begin()
    with closing(open_store(f"sqlite:{path}")) as own:
        with pytest.raises(StoreError, match="was not updated since the last start"):
            own.begin()
        assert own.mirror() == Mirror()


# --- what is shown


@pytest.mark.parametrize(
    ("after", "settled"),
    [(-5.0, False), (0.0, False), (SETTLES_WITHIN - 2**-20, False), (SETTLES_WITHIN, True)],
)
def test_what_may_not_have_a_change_yet_does_not_undo_it(
    mirror: SqliteMirror, after: float, settled: bool
) -> None:
    """The broker that is asked fetches the change from the one that made it. Only the change is
    kept: a client that may change ACLs must not keep a permission by creating it again."""
    take_over(mirror, 16.0, acl("gone"), acl("taken away"), quotas={})
    mirror.note_acls(32.0, [acl("new")], created=True)
    mirror.note_acls(32.0, [acl("gone")], created=False)
    mirror.note_quotas(32.0, {ALICE: {PRODUCER: 6.0, CONSUMER: None}})
    answer = (acl("gone"), acl("old"))
    limits: Quotas = {ALICE: {PRODUCER: 5.0, CONSUMER: 5.0}, BOB: {PRODUCER: 1.0}}
    versions = take_over(mirror, 32.0 + after, *answer, quotas=limits)
    assert mirror.mirror() == Mirror(asked_at=32.0 + after)
    if settled:
        assert versions == (mirror.acl_version(), mirror.quota_version())
        assert shown(mirror) == ([*answer], limits)
    else:
        assert versions is None, "it must be looked again, whatever the answer is"
        changed = {ALICE: {PRODUCER: 6.0}, BOB: {PRODUCER: 1.0}}
        assert shown(mirror) == ([acl("new"), acl("old")], changed)


def test_a_file_that_another_proxy_took_is_no_mirror(mirror: SqliteMirror, path: Path) -> None:
    """It would be written into somebody else's data."""
    take_over(mirror, 5.0, quotas={})
    own = open_store(f"sqlite:{path}")
    own.begin()
    own.create_acls([acl("own")])
    with pytest.raises(StoreError, match="is not a copy of brokers' ACLs and quotas"):
        take_over(mirror, 9.0, quotas={})
    assert shown(own)[0] == [acl("own")]
    assert "a proxy with sqlite: made it its own store" in str(mirror.mirror().problem)
    own.close()


WRONG_ACLS = [acl("good"), acl("bad\ud800")]
WRONG_QUOTAS: Quotas = {ALICE: {CONSUMER: 6.0, PRODUCER: float("nan")}}


@pytest.mark.parametrize(
    ("acls", "quotas"),
    [(WRONG_ACLS, {}), ([acl("good")], WRONG_QUOTAS), (WRONG_ACLS, WRONG_QUOTAS)],
    ids=["an ACL that cannot be written", "a quota that cannot", "both"],
)
def test_what_cannot_be_taken_over_leaves_everything_as_it_was(
    mirror: SqliteMirror, acls: list[Acl], quotas: Quotas
) -> None:
    """ACLs and quotas both: they are one step, and nobody may see half of it."""
    take_over(mirror, 5.0, acl("a"), acl("b"), quotas=LIMITED)
    mirror.note_problem("gone")
    versions = mirror.acl_version(), mirror.quota_version()
    with pytest.raises(StoreError, match=r"state\.db: "):
        take_over(mirror, 9.0, *acls, quotas=quotas)
    assert shown(mirror) == ([acl("a"), acl("b")], LIMITED)
    assert (mirror.acl_version(), mirror.quota_version()) == versions
    assert mirror.mirror() == Mirror(asked_at=5.0, problem="gone")
    changes = mirror.acl_changes(versions[0])
    assert changes is not None
    assert (changes.created, changes.deleted) == ((), ())
    assert take_over(mirror, 10.0, quotas={})


def test_what_could_not_be_read_again_is_not_taken_over(mirror: SqliteMirror) -> None:
    """Callers leave it out; one such row would make the whole file unusable."""
    take_over(mirror, 5.0, acl(), quotas={})
    with pytest.raises(AssertionError):
        take_over(mirror, 6.0, acl(operation=Operation.UNKNOWN), quotas={})
    assert shown(mirror) == ([acl()], {})


ACLS = st.lists(
    st.builds(acl, st.sampled_from(["*", "a", "ab", "a\0b"]), st.sampled_from(["User:a", "X:b"])),
    max_size=6,
)
ENTITIES = st.sampled_from(
    [ALICE, QuotaEntity(user=DEFAULT), QuotaEntity(user="é/\0", client_id="<default>")]
)
KEYS = st.sampled_from([PRODUCER, CONSUMER])
LIMITS = st.sampled_from([1.0, 2.0])
QUOTAS = st.dictionaries(ENTITIES, st.dictionaries(KEYS, LIMITS, min_size=1), max_size=3)
CHANGES = st.dictionaries(
    ENTITIES, st.dictionaries(KEYS, st.none() | LIMITS, min_size=1), max_size=2
)
MOMENTS = st.integers(0, 16).map(lambda quarters: quarters / 4)
LATER = MOMENTS.map(lambda moment: moment + 100)
STEPS_TAKEN = st.lists(
    st.one_of(
        st.tuples(st.just("take_over"), MOMENTS, st.none() | ACLS, st.none() | QUOTAS),
        st.tuples(st.just("take_over"), LATER, ACLS, QUOTAS),
        st.tuples(st.just("create"), MOMENTS, ACLS),
        st.tuples(st.just("delete"), MOMENTS, ACLS),
        st.tuples(st.just("alter"), MOMENTS, CHANGES),
        st.tuples(st.just("problem"), st.sampled_from(["gone", "silent"])),
    ),
    min_size=1,
    max_size=10,
)


@dataclass
class Plain:
    """The laws, read plainly."""

    acls: set[Acl] = field(default_factory=set)
    quotas: Quotas = field(default_factory=dict)
    known: Mirror = field(default_factory=Mirror)
    recent: list[tuple[float, str, Any]] = field(default_factory=list)
    """Changes made through the proxy, and their times."""

    def step(self, name: str, arguments: tuple[Any, ...]) -> None:
        match name:
            case "take_over":
                self._take_over(*arguments)
            case "problem":
                self.known = Mirror(asked_at=self.known.asked_at, problem=arguments[0])
            case _:
                at, what = arguments
                self.recent.append((at, name, what))
                self._apply(name, what)

    def _apply(self, name: str, what: Any) -> None:
        if name == "create":
            self.acls = {*self.acls, *what}
        elif name == "delete":
            self.acls = self.acls - {*what}
        else:
            self.quotas = altered(self.quotas, what)

    def _take_over(self, at: float, acls: list[Acl] | None, quotas: Quotas | None) -> None:
        if self.known.asked_at is not None and at < self.known.asked_at:
            return  # two followers, and the earlier answer comes last
        self.known = Mirror(asked_at=at)
        for kind, answer in ((("create", "delete"), acls), (("alter",), quotas)):
            if answer is None:
                continue
            if isinstance(answer, list):
                self.acls = {*answer}
            else:
                self.quotas = answer
            self.recent = [one for one in self.recent if one[1] not in kind or at - one[0] < 1]
            for _, name, what in sorted(self.recent, key=lambda one: one[0]):
                if name in kind:
                    self._apply(name, what)


def do(mirror: SqliteMirror, name: str, arguments: tuple[Any, ...]) -> None:
    """What a follower does, and what a store of the brokers' does when they have done it."""
    match name:
        case "take_over":
            at, acls, quotas = arguments
            mirror.take_over(asked_at=at, new_acls=acls, new_quotas=quotas)
        case "create":
            mirror.note_acls(*arguments, created=True)
            mirror.create_acls(arguments[1])
        case "delete":
            mirror.note_acls(*arguments, created=False)
            mirror.delete_acls([exactly(one) for one in arguments[1]])
        case "alter":
            mirror.note_quotas(*arguments)
            mirror.alter_quotas(arguments[1])
        case "problem":
            mirror.note_problem(*arguments)


@settings(max_examples=80, deadline=None)
@given(steps=STEPS_TAKEN, limit=st.sampled_from([3, 1000]))
def test_it_shows_what_it_must_and_its_log_leads_there_from_any_version(
    tmp_path_factory: pytest.TempPathFactory, steps: list[tuple[Any, ...]], limit: int
) -> None:
    """Versions grow with changes that can be seen, and with no others."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(acls_module, "_MAX_CHANGES", limit)
        mirror = SqliteMirror(tmp_path_factory.mktemp("store") / "state.db")
        mirror.begin()
        plain = Plain()
        history: dict[int, frozenset[Acl]] = {mirror.acl_version(): frozenset()}
        for name, *arguments in steps:
            before = plain.acls, plain.quotas
            versions = mirror.acl_version(), mirror.quota_version()
            do(mirror, name, tuple(arguments))
            plain.step(name, tuple(arguments))
            assert shown(mirror) == (sorted(plain.acls), plain.quotas)
            assert mirror.mirror() == plain.known
            assert (mirror.acl_version() > versions[0]) is (plain.acls != before[0])
            assert (mirror.quota_version() > versions[1]) is (plain.quotas != before[1])
            assert mirror.acl_version() >= versions[0]
            history[mirror.acl_version()] = frozenset(plain.acls)
        for version, then in history.items():
            changes = mirror.acl_changes(version)
            if changes is None:
                assert limit == 3
            else:
                assert then - {*changes.deleted} | {*changes.created} == plain.acls
                assert changes.version == mirror.acl_version()
        mirror.close()
