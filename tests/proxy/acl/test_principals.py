"""Names of certificates, and the rules that map names to principals."""

import re
import time
from contextlib import suppress

import pytest
from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding
from hypothesis import given
from hypothesis import strategies as st

from proxy.acl.principals import (
    DEFAULT,
    MAX_CHARACTERS,
    NamelessError,
    PrincipalMapping,
    subject_of,
)
from tests.support.certificates import (
    ALICE,
    DUKE,
    EMPTIED,
    NAMES,
    NOBODY,
    OTHERWISE,
    REFUSED,
    REFUSED_HERE,
    RULES,
    Authority,
    attribute,
    certificate,
    cn,
    der,
    name,
)


@pytest.mark.parametrize("case", [*NAMES, *OTHERWISE])
def test_names_are_written_as_java_does(case: str) -> None:
    subject, expected = (NAMES | OTHERWISE)[case]
    assert subject_of(certificate(subject)) == expected


@pytest.mark.parametrize("case", NOBODY)
def test_what_names_nobody(case: str) -> None:
    subject, reason = NOBODY[case]
    with pytest.raises(NamelessError) as refused:
        subject_of(certificate(subject))
    assert refused.value.reason == reason


def test_a_real_certificate() -> None:
    pem = Authority().issue("alice").certificate
    whole = x509.load_pem_x509_certificate(pem)
    assert subject_of(whole.public_bytes(Encoding.DER)) == "CN=alice"


def test_a_certificate_of_version_1() -> None:
    """It begins with its serial number."""
    empty = der(0x30)
    fields = (der(0x02, b"\7"), empty, empty, empty, ALICE, empty)
    assert subject_of(der(0x30, der(0x30, *fields), empty)) == "CN=alice,OU=dev,O=Acme,C=DE"


def test_no_part_of_a_certificate_is_taken_for_a_name() -> None:
    whole = certificate(ALICE)
    for end in range(len(whole)):
        with pytest.raises(NamelessError):
            subject_of(whole[:end])
    with pytest.raises(NamelessError):
        subject_of(whole + b"\0\0")


@given(st.binary(max_size=200))
def test_whatever_stands_there_is_a_short_line_or_nobody(subject: bytes) -> None:
    """Only NamelessError is raised: any other error would count as an internal one."""
    try:
        written = subject_of(certificate(der(0x30, subject)))
    except NamelessError:
        return
    assert 0 < len(written) <= MAX_CHARACTERS
    assert len(written.splitlines()) == 1


_TEXT = st.text(st.characters(exclude_categories=["Cc", "Cs", "Zl", "Zp"]), max_size=12)


@given(st.lists(st.tuples(st.sampled_from(["CN", "OU", "O"]), _TEXT), min_size=1, max_size=4))
def test_two_names_are_never_written_alike(attributes: list[tuple[str, str]]) -> None:
    """What an attacker puts into a value cannot look like another attribute."""
    written = subject_of(certificate(name(*(attribute(*one) for one in attributes))))
    found = [(kind, value) for kind, value in map(_read, _split(written))]
    assert list(reversed(found)) == attributes


def _split(written: str) -> list[str]:
    parts, escaped = [""], False
    for one in written:
        if one == "," and not escaped:
            parts.append("")
        else:
            parts[-1] += one
        escaped = one == "\\" and not escaped
    return parts


def _read(part: str) -> tuple[str, str]:
    kind, _, value = part.partition("=")
    plain, escaped = "", False
    for one in value:
        if one == "\\" and not escaped:
            escaped = True
        else:
            plain, escaped = plain + one, False
    return kind, plain


def test_a_hostile_subject_costs_little() -> None:
    """A certificate may have 100 KB before OpenSSL refuses it."""
    began = time.process_time()
    for case in ("60 KB", "a type of 60 KB"):
        with pytest.raises(NamelessError):
            subject_of(certificate(NOBODY[case][0]))
    with pytest.raises(NamelessError):
        subject_of(certificate(name(*([attribute("CN", "x")] * 8_000))))
    assert subject_of(certificate(cn("x"))) == "CN=x"
    assert time.process_time() - began < 5


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
    """Only ValueError is raised: the operator sees one line."""
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
