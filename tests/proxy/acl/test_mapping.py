"""`ssl.principal.mapping.rules`: who somebody is must not depend on how a pattern is read."""

import re
import time
from contextlib import suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from proxy.acl.principals import DEFAULT, MAX_CHARACTERS, NamelessError, PrincipalMapping
from tests.support.certificates import DUKE, EMPTIED, REFUSED, REFUSED_HERE, RULES


@pytest.mark.parametrize(("rules", "subject", "expected"), RULES)
def test_rules_as_kafka_reads_them(rules: str, subject: str, expected: str | None) -> None:
    mapping = PrincipalMapping(rules)
    if expected is not None:
        assert mapping.name_of(subject) == expected
        return
    with pytest.raises(NamelessError, match="no rule of ssl"):
        mapping.name_of(subject)


@pytest.mark.parametrize(("rules", "problem"), [*REFUSED, *REFUSED_HERE])
def test_rules_that_are_refused(rules: str, problem: str) -> None:
    with pytest.raises(ValueError, match=rf"^{re.escape(problem)}.*\Z"):
        PrincipalMapping(rules)


@pytest.mark.parametrize(("rules", "subject"), EMPTIED)
def test_an_empty_name_is_nobody(rules: str, subject: str) -> None:
    """To Kafka all of them would be one principal, `User:`."""
    with pytest.raises(NamelessError, match="is empty"):
        PrincipalMapping(rules).name_of(subject)


def test_an_empty_match_within_a_character_names_nobody() -> None:
    """Java also replaces between the halves of a character above U+FFFF."""
    with pytest.raises(NamelessError, match="a character that Java replaces by halves"):
        PrincipalMapping("RULE:.*?/-/,DEFAULT").name_of("a😀")
    assert PrincipalMapping("DEFAULT,RULE:.*?/-/").name_of("a😀") == "a😀", "a rule before decides"


def test_a_name_that_grows_too_long_is_nobody() -> None:
    with pytest.raises(NamelessError, match="has more than 512 characters"):
        PrincipalMapping("RULE:^(.*)$/$1$1/").name_of("x" * 300)


def test_the_default_leaves_every_subject_as_it_is() -> None:
    assert PrincipalMapping(DEFAULT).name_of(DUKE) == DUKE


@given(st.text(alphabet="RULEDFAT:/\\$1(),.*?[]^ab{}<>", max_size=30))
def test_a_rule_is_read_or_refused(rules: str) -> None:
    """Nothing but a ValueError: an operator is told in one line."""
    try:
        mapping = PrincipalMapping("RULE:" + rules)
    except ValueError:
        return
    with suppress(NamelessError):
        assert mapping.name_of("CN=a,OU=b")


def test_how_long_the_rules_of_the_kip_take_is_bounded() -> None:
    """The subject is the client's choice: this one makes five groups try all their ends."""
    rules = "RULE:^CN=(.*?),OU=(.*?),O=(.*?),L=(.*?),ST=(.*?),C=(.*?)$/$1@$2/"
    each = (MAX_CHARACTERS - 10) // 20
    subject = "CN=" + ",OU=" * each + ",O=" * each + ",L=" * each + ",ST=" * each
    assert len(subject) <= MAX_CHARACTERS
    began = time.process_time()
    with pytest.raises(NamelessError):
        PrincipalMapping(rules).name_of(subject)
    assert time.process_time() - began < 10
