import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.connection.enforcement import EnforcementPolicy, Override
from proxy.rollout import ClientKind, Promotion
from sasl.identity import Identity
from sasl.states import Enforcement, Terms

OBSERVE, PROBE, ENFORCE = Enforcement.OBSERVE, Enforcement.PROBE, Enforcement.ENFORCE
AUTO = Enforcement.AUTO


def exact(
    principal: str, enforcement: Enforcement | None = None, ms: int | None = None
) -> Override:
    return Override(principal=principal, prefixed=False, enforcement=enforcement, max_reauth_ms=ms)


def prefix(
    principal: str, enforcement: Enforcement | None = None, ms: int | None = None
) -> Override:
    return Override(principal=principal, prefixed=True, enforcement=enforcement, max_reauth_ms=ms)


def policy(*overrides: Override) -> EnforcementPolicy:
    return EnforcementPolicy(
        enforcement=ENFORCE,
        max_reauth_ms=1000,
        mechanism_max_reauth_ms={"OAUTHBEARER": 2000},
        overrides=overrides,
    )


short_names = st.text("ab", max_size=4)
overrides = st.builds(
    Override,
    principal=short_names,
    prefixed=st.booleans(),
    enforcement=st.none() | st.sampled_from(Enforcement),
    max_reauth_ms=st.none() | st.integers(0, 9),
)


@given(
    rules=st.lists(overrides, unique_by=lambda o: (o.principal, o.prefixed)),
    principal=short_names,
    mechanism=st.sampled_from(["OAUTHBEARER", "SCRAM-SHA-256"]),
)
def test_it_agrees_with_the_law_read_word_by_word(
    rules: list[Override], principal: str, mechanism: str
) -> None:
    """Exact before prefix, longer before shorter; the order in the file means nothing."""
    matching = sorted(
        (
            rule
            for rule in rules
            if (
                principal.startswith(rule.principal)
                if rule.prefixed
                else principal == rule.principal
            )
        ),
        key=lambda rule: (rule.prefixed, -len(rule.principal)),
    )
    enforcement = next((r.enforcement for r in matching if r.enforcement is not None), ENFORCE)
    lifetime = next(
        (r.max_reauth_ms for r in matching if r.max_reauth_ms is not None),
        2000 if mechanism == "OAUTHBEARER" else 1000,
    )
    if enforcement is AUTO:  # nobody is promoted
        enforcement = PROBE
    expected = Terms(enforcement=enforcement, max_reauth_ms=lifetime)
    assert policy(*rules).terms_for(Identity(principal), mechanism) == expected
    assert policy(*reversed(rules)).terms_for(Identity(principal), mechanism) == expected


@pytest.mark.parametrize(
    ("principal", "groups", "expected"),
    [
        ("User:alice", [], (ENFORCE, 1000)),
        ("User:alice", ["Group:others"], (ENFORCE, 1000)),
        ("User:alice", ["Group:batch"], (OBSERVE, 0)),
        ("User:alice", ["Group:eu-analysts"], (PROBE, 500)),
        # of several groups the strictest, each setting on its own; 0 is the longest
        ("User:alice", ["Group:batch", "Group:eu-analysts"], (PROBE, 500)),
        ("User:alice", ["Group:batch", "Group:strict"], (ENFORCE, 0)),
        # the client's own name first, also by a prefix
        ("User:bob", ["Group:strict", "Group:eu-analysts"], (OBSERVE, 500)),
        ("User:etl-7", ["Group:strict", "Group:eu-analysts"], (ENFORCE, 9000)),
        # a name is of one type
        ("User:batch", [], (ENFORCE, 1000)),
    ],
)
def test_groups_count_where_nothing_is_said_of_the_client(
    principal: str, groups: list[str], expected: tuple[Enforcement, int]
) -> None:
    rules = policy(
        exact("Group:batch", OBSERVE, 0),
        exact("Group:strict", ENFORCE),
        prefix("Group:eu-", PROBE, 500),
        exact("User:bob", OBSERVE),
        prefix("User:etl-", None, 9000),
    )
    terms = rules.terms_for(Identity(principal, groups), "SCRAM-SHA-256")
    assert (terms.enforcement, terms.max_reauth_ms) == expected


@pytest.mark.parametrize(
    ("principal", "groups", "claimed", "expected"),
    [
        ("User:new", [], (None, None, None), (PROBE, 7000)),
        ("User:ready", [], ("app-12", "lib", "1"), (ENFORCE, 3000)),
        # a client that is not ready is probed, with the lifetime of its principal
        ("User:ready", [], ("app-12", "lib", "2"), (PROBE, 3000)),
        ("User:ready", [], (None, None, None), (PROBE, 3000)),
        ("User:all", [], ("app-12", "lib", "2"), (ENFORCE, 1000)),
        # overrides come first, also those of groups, each setting on its own
        ("User:batch", [], ("app-12", "lib", "1"), (PROBE, 1000)),
        ("User:all", ["Group:slow"], (None, None, None), (OBSERVE, 1000)),
        ("User:all", ["Group:slow", "Group:auto"], (None, None, None), (ENFORCE, 1000)),
        ("User:long", [], ("app-12", "lib", "1"), (ENFORCE, 0)),
    ],
)
def test_auto_enforces_ready_clients_of_promoted_principals(
    principal: str,
    groups: list[str],
    claimed: tuple[str | None, str | None, str | None],
    expected: tuple[Enforcement, int],
) -> None:
    ready = Promotion(3000, frozenset({ClientKind("app-*", "lib", "1")}))
    rules = EnforcementPolicy(
        enforcement=AUTO,
        max_reauth_ms=1000,
        mechanism_max_reauth_ms={},
        overrides=[
            prefix("User:bat", PROBE),
            exact("Group:slow", OBSERVE),
            exact("Group:auto", AUTO),
            exact("User:long", None, 0),
        ],
        promotions={
            "User:ready": ready,
            "User:batch": ready,
            "User:long": ready,
            "User:all": Promotion(None, None),
        },
        first_lifetime_ms=7000,
    )
    terms = rules.terms_for(Identity(principal, groups), "SCRAM-SHA-256", claimed)
    assert (terms.enforcement, terms.max_reauth_ms) == expected
    overridden = principal == "User:batch" or expected[0] is OBSERVE
    assert rules.is_automatic(Identity(principal, groups)) is not overridden
