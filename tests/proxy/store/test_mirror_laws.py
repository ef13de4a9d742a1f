"""A mirror through any sequence of answers and changes, beside a plain reading of its laws."""

from dataclasses import dataclass, field
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from proxy.acl.model import Acl, exactly
from proxy.quota.model import DEFAULT, QuotaEntity, QuotaKey, Quotas, altered
from proxy.store import Mirror
from proxy.store.sqlite import acls as acls_module
from proxy.store.sqlite.mirror import SqliteMirror
from tests.support.acls import acl
from tests.support.broker_store import ALICE, PRODUCER, shown

CONSUMER = QuotaKey.CONSUMER_BYTE_RATE
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
    """What was done through the proxy, and when."""

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
