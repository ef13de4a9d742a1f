r"""Principals of clients without a SASL login at the proxy: certificates, rules, opaque names.

Rules:

- A certificate is used only if it was requested, and therefore verified in the handshake.
- A client without a certificate is `User:ANONYMOUS`, as in Kafka. A connection whose certificate
  has no usable name is closed.

The subject of a certificate has the same text as Java's `X500Principal.getName()`. That is RFC 2253
with three peculiarities of Java: a type without a keyword of RFC 2253 is written as a dotted number
with the hexadecimal DER as its value; `=` and `#` are always escaped; and a value without one of
the string types that Java reads is hexadecimal too. ACLs compare these texts character by
character. The client chooses the name even if an authority has signed it, so a subject that cannot
be parsed, is too long, or has control characters is refused.

`ssl.principal.mapping.rules` (KIP-371) turns the subject into a name:

    DEFAULT                                  the subject as it is
    RULE:pattern/replacement/[LU]            where `pattern` matches the whole subject, every match
                                             of it is replaced; then lower or upper case

The first matching rule determines the name; without a match, the certificate is rejected. Between
the slashes, a backslash escapes the next character.

Patterns use the subset of `java.util.regex` that has the same meaning in Python's `re`: characters,
escaped punctuation, `.`, `\d \w \s` and their opposites, classes, groups, alternatives,
quantifiers, `^`, `$`, and `(?i)` at the beginning. Any other pattern is refused, because a
different meaning would give a client the wrong principal.
"""

import re
import ssl
import unicodedata
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final, NamedTuple

from proxy.errors import ClientFault
from sasl.identity import USER_TYPE

MAX_CHARACTERS: Final = 512
"""Maximum length of a name in characters. The limits of RFC 5280 appendix A.1 for a common name, a
unit, an organization, a place, a state and a country add up to less. A bound is needed because the
time for a pattern is a power of the length."""

_KEYWORDS: Final = {
    "2.5.4.3": "CN",
    "2.5.4.6": "C",
    "2.5.4.7": "L",
    "2.5.4.8": "ST",
    "2.5.4.9": "STREET",
    "2.5.4.10": "O",
    "2.5.4.11": "OU",
    "0.9.2342.19200300.100.1.1": "UID",
    "0.9.2342.19200300.100.1.25": "DC",
}
"""Keywords of attribute types, by object identifier (RFC 2253 section 2.3)."""
_ENCODINGS: Final = {
    0x0C: "utf-8",  # UTF8String
    0x13: "utf-8",  # PrintableString
    0x14: "utf-8",  # T61String
    0x16: "utf-8",  # IA5String
    0x1B: "utf-8",  # GeneralString
    0x1E: "utf-16-be",  # BMPString
}
"""Encodings with which Java reads a value, by its tag. Any other value is written in
hexadecimal."""
_ESCAPED: Final = frozenset(',=+<>#;"\\')
_MAX_BYTES: Final = 8 * MAX_CHARACTERS
"""Maximum length of a subject in bytes: a longer one cannot be a name of so few characters."""
_UNPRINTABLE: Final = frozenset({"Cc", "Cs", "Zl", "Zp"})
"""Unicode's categories of control characters, surrogates, and line and paragraph separators."""

_TOO_LONG: Final = f"has more than {MAX_CHARACTERS} characters"

_OID: Final = 0x06
_SEQUENCE: Final = 0x30
_SET: Final = 0x31
_VERSION: Final = 0xA0
"""Tags of DER (X.690); `_VERSION` is the tag of a certificate's version (RFC 5280 section 4.1)."""
_LONG_LENGTH: Final = 0x80
_MAX_LENGTH_BYTES: Final = 3


class NamelessError(ClientFault):
    """The certificate has no usable name; the text has the reason, and quotes nothing from the
    certificate."""


def subject_of(certificate: bytes) -> str:
    """Return the subject's name in a certificate (DER). Raises NamelessError."""
    try:
        # The outermost name is the last one.
        names = [_relative_name(one) for one in _subject(certificate)]
        name = ",".join(reversed(names))
    except (ValueError, IndexError):  # UnicodeError is a ValueError
        raise NamelessError("its subject cannot be read") from None
    return checked(name)


def checked(name: str, what: str = "its subject") -> str:
    """Return the name if a principal may have it. Raises NamelessError, which calls the name
    `what`."""
    if not name:
        raise NamelessError(f"{what} is empty")
    if len(name) > MAX_CHARACTERS:
        raise NamelessError(f"{what} {_TOO_LONG}")
    if not name.isprintable() and any(unicodedata.category(one) in _UNPRINTABLE for one in name):
        raise NamelessError(f"{what} has control characters")
    return name


def _subject(certificate: bytes) -> Iterator[memoryview]:
    """Yield the relative names (X.501 RelativeDistinguishedName) of a certificate's subject."""
    ((_, whole),) = _items(memoryview(certificate), _SEQUENCE)
    (_, signed), *_ = _items(whole)
    fields = list(_items(signed))
    # Fields: version (optional), serial number, signature, issuer, validity, subject
    tag, subject = fields[5 if fields[0][0] == _VERSION else 4]
    if tag != _SEQUENCE:
        raise ValueError
    if len(subject) > _MAX_BYTES:
        raise NamelessError(f"its subject {_TOO_LONG}")
    for _, relative in _items(subject, _SET):
        yield relative


def _items(data: memoryview, tag: int | None = None) -> Iterator[tuple[int, memoryview]]:
    """Yield the tag and the content of each value in `data`. Raises ValueError unless all have
    `tag`."""
    pos = 0
    while pos < len(data):
        its_tag, size = data[pos], data[pos + 1]
        pos += 2
        if size & _LONG_LENGTH:
            width = size & ~_LONG_LENGTH
            if not 0 < width <= _MAX_LENGTH_BYTES:
                raise ValueError
            size = int.from_bytes(data[pos : pos + width], "big")
            pos += width
            if size < _LONG_LENGTH or size.bit_length() <= 8 * (width - 1):
                raise ValueError  # DER has exactly one encoding of a length
        if pos + size > len(data) or tag not in (None, its_tag):
            raise ValueError
        yield its_tag, data[pos : pos + size]
        pos += size


def _relative_name(attributes: memoryview) -> str:
    """Return one relative name as text. It usually has one attribute; several are joined in
    order."""
    return "+".join(_attribute(one) for _, one in _items(attributes, _SEQUENCE))


def _attribute(attribute: memoryview) -> str:
    (oid_tag, oid), (tag, value) = _items(attribute)
    if oid_tag != _OID:
        raise ValueError
    number = _dotted(bytes(oid))
    keyword, encoding = _KEYWORDS.get(number), _ENCODINGS.get(tag)
    if keyword is None or encoding is None:
        whole = attribute[len(attribute) - _size_with_head(value) :]
        return f"{keyword or number}=#{whole.hex()}"
    return f"{keyword}={_escaped(str(value, encoding))}"


def _size_with_head(value: memoryview) -> int:
    size = len(value)
    return size + 2 + (0 if size < _LONG_LENGTH else (size.bit_length() + 7) // 8)


def _dotted(oid: bytes) -> str:
    """Return an object identifier in dotted form (X.690 section 8.19)."""
    if not oid or oid[-1] & 0x80:
        raise ValueError
    numbers, number = [], 0
    for byte in oid:
        number = number << 7 | byte & 0x7F
        if not byte & 0x80:
            numbers.append(number)
            number = 0
    first = min(numbers[0] // 40, 2)
    return ".".join(map(str, (first, numbers[0] - 40 * first, *numbers[1:])))


def _escaped(value: str) -> str:
    """Return the value escaped as in RFC 2253 section 2.4, and as Java does."""
    text = "".join(
        f"\\{one}" if one in _ESCAPED else "\\00" if one == "\0" else one for one in value
    )
    inner = text.strip(" \r")
    begin = len(text) - len(text.lstrip(" \r"))
    spaces_before, spaces_after = text[:begin], text[begin + len(inner) :]
    return _each_escaped(spaces_before) + inner + _each_escaped(spaces_after)


def _each_escaped(spaces: str) -> str:
    return "".join(f"\\{one}" for one in spaces)


DEFAULT: Final = "DEFAULT"
_RULE: Final = "RULE:"
_SPACE: Final = " \t\n\v\f\r"
_CASES: Final[dict[str, Callable[[str], str]]] = {"": str, "L": str.lower, "U": str.upper}

_DIGITS: Final = tuple("0123456789")
_IGNORE_CASE: Final = "(?i)"
_ESCAPE: Final = r"\\(?:[dDwWsS]|[^A-Za-z0-9])"
_ITEM: Final = re.compile(
    rf"{_ESCAPE}|\[\^?(?:{_ESCAPE}|(?!&&|--|~~|\|\|)[^\\\[\]])+\]|[^\\\[(){{}}*+?|^$]"
)
"""A character or a class."""
_GROUP: Final = re.compile(r"\((?:\?:|(?!\?))")
_QUANTIFIER: Final = re.compile(r"(?:[*+?]|\{[0-9]+(?:,[0-9]*)?\})\??")
_QUANTIFIERS: Final = ("*", "+", "?", "{")
_REFUSED: Final = {
    "(?<=": "a lookbehind",
    "(?<!": "a lookbehind",
    "(?=": "a lookahead",
    "(?!": "a lookahead",
    "(?>": "an atomic group",
    "(?<": "a named group",
    "(?": "a flag other than (?i) at the beginning",
    ")": "an unbalanced parenthesis",
    "[": "this character class, with brackets, && or the like in it,",
    "\\p": r"\p{…}",
    "\\P": r"\P{…}",
    "\\b": "a word boundary",
    "\\B": "a word boundary",
    "\\Q": r"\Q…\E",
    "\\k": "a back reference",
}
"""Names of refused constructs, by their beginnings; the first match applies."""


class Rule(NamedTuple):
    """One `RULE:` of the list."""

    pattern: re.Pattern[str]
    replacement: tuple[str | int, ...]
    """Replacement as literal texts and numbers of capturing groups, in order."""
    case: Callable[[str], str]
    may_be_empty: bool
    """True if the pattern matches the empty string, which Java also finds within surrogate
    pairs."""

    def apply(self, subject: str) -> str | None:
        """Return the name, or None if the rule does not match. Raises NamelessError."""
        if self.may_be_empty and max(subject, default="") > "\uffff":
            raise NamelessError("its subject has a character that Java replaces by halves")
        if self.pattern.fullmatch(subject) is None:
            return None
        return self.case(self._replaced(subject))

    def _replaced(self, subject: str) -> str:
        """Replace every match as Java does, which continues with the next character after an empty
        match."""
        parts, copied, pos = [], 0, 0
        while pos <= len(subject) and (found := self.pattern.search(subject, pos)) is not None:
            parts.append(subject[copied : found.start()])
            parts += (one if isinstance(one, str) else found[one] or "" for one in self.replacement)
            copied = pos = found.end()
            pos += found.start() == found.end()
        return "".join((*parts, subject[copied:]))


class PrincipalMapping:
    """Mapping rules of a listener."""

    def __init__(self, rules: str) -> None:
        """Parse a comma-separated list of rules. Raises ValueError, whose text is the end of a
        sentence."""
        self._rules = tuple(_rules(rules))
        if not self._rules:
            raise ValueError(f"must have a rule, such as {DEFAULT}")

    def name_of(self, subject: str) -> str:
        """Return the name for a subject, without the prefix `User:`. Raises NamelessError."""
        for rule in self._rules:
            name = subject if rule is None else rule.apply(subject)
            if name is not None:
                return checked(name, "the result of ssl.principal.mapping.rules for its subject")
        raise NamelessError("no rule of ssl.principal.mapping.rules matches its subject")

    def try_name_of(self, name: str) -> str | None:
        """Return the principal's name for a name of another kind; None if no rule yields a name, or
        if `name` is longer than a subject may be."""
        if len(name) > MAX_CHARACTERS:
            return None
        try:
            return self.name_of(name)
        except NamelessError:
            return None


def _rules(text: str) -> Iterator[Rule | None]:
    """Yield each rule, and None for DEFAULT. Empty items of the list are skipped."""
    pos = 0
    while (pos := _skip_any(text, pos, _SPACE + ",")) < len(text):
        begin = pos
        if text.startswith(_RULE, pos):
            pattern, pos = _up_to_slash(text, pos + len(_RULE))
            replacement, pos = _up_to_slash(text, pos)
            case = text[pos : pos + 1] if text[pos : pos + 1] in ("L", "U") else ""
            pos += len(case)
            yield _rule(pattern, replacement, case)
        elif text.startswith(DEFAULT, pos):
            pos += len(DEFAULT)
            yield None
        after = _skip_any(text, pos, _SPACE)
        if pos == begin or text[after : after + 1] not in ("", ","):
            rest = text[begin:].partition(",")[0]
            raise ValueError(f"must be DEFAULT or RULE:pattern/replacement/[LU], got {rest!a:.60}")
        pos = after


def _skip_any(text: str, pos: int, characters: str) -> int:
    return len(text) - len(text[pos:].lstrip(characters))


def _up_to_slash(text: str, pos: int) -> tuple[str, int]:
    """Return the text before the next slash, and the position after it."""
    begin = pos
    while pos < len(text) and text[pos] != "/":
        pos += 2 if text[pos] == "\\" else 1
    if pos >= len(text):
        raise ValueError(f"has a RULE without its closing slash: {text[begin:]!a:.60}")
    return text[begin:pos], pos + 1


def _rule(pattern: str, replacement: str, case: str) -> Rule:
    try:
        _check_pattern(pattern)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # constructs whose meaning may change in a later Python
            compiled = re.compile(pattern, re.ASCII)
    except RecursionError:
        raise ValueError(f"has a pattern that is nested too deeply, {pattern!a:.60}") from None
    except (re.error, Warning, OverflowError) as error:
        raise ValueError(
            f"has a pattern that cannot be used, {pattern!a:.60}: {error}"
            "; docs/tls.md lists the supported constructs"
        ) from None
    parts = tuple(_parts(replacement, compiled))
    return Rule(compiled, parts, _CASES[case], compiled.fullmatch("") is not None)


def _check_pattern(pattern: str) -> None:
    """Raise re.error unless a pattern has the same meaning in Java and Python."""
    pos = len(_IGNORE_CASE) if pattern.startswith(_IGNORE_CASE) else 0
    groups = [_Group()]
    while pos < len(pattern):
        if begins := _GROUP.match(pattern, pos):
            groups.append(_Group())
            pos = begins.end()
        elif pattern[pos] == "|":
            groups[-1].end_branch()
            pos += 1
        elif pattern[pos] in "^$":
            pos += 1
            if pattern[pos : pos + 1] in _QUANTIFIERS:
                raise re.error(f"a quantifier after {pattern[pos - 1]} is not supported")
        else:
            pos = _check_item(pattern, pos, groups)


def _check_item(pattern: str, pos: int, groups: list["_Group"]) -> int:
    """Check a character, a class or the end of a group, with its quantifier; return its end."""
    is_group = pattern[pos] == ")" and len(groups) > 1
    may_be_empty = False
    if is_group:
        may_be_empty, end = groups.pop().ends_empty(), pos + 1
    elif item := _ITEM.match(pattern, pos):
        end = item.end()
    else:
        raise re.error(f"{_construct(pattern, pos)} is not supported")
    if quantifier := _QUANTIFIER.match(pattern, end):
        end = quantifier.end()
        # After backtracking, the engines disagree about the text that such a group has captured
        if is_group and may_be_empty and quantifier[0][0] != "?":
            raise re.error("a repeated group that may match the empty string is not supported")
        if pattern[end : end + 1] in _QUANTIFIERS:
            raise re.error(f"{quantifier[0]}{pattern[end]} is not supported")
        may_be_empty |= quantifier[0][0] in "*?" or quantifier[0].startswith("{0")
    groups[-1].branch_is_empty &= may_be_empty
    return end


def _construct(pattern: str, pos: int) -> str:
    """Return the name of the construct at a position."""
    return next(
        (name for begin, name in _REFUSED.items() if pattern.startswith(begin, pos)),
        pattern[pos : pos + 4],
    )


@dataclass(slots=True)
class _Group:
    """Group, or the whole pattern, as parsed so far."""

    may_be_empty: bool = False
    """True if a branch before this one may match the empty string."""
    branch_is_empty: bool = True
    """True if the branch being read may match the empty string."""

    def end_branch(self) -> None:
        self.may_be_empty, self.branch_is_empty = self.ends_empty(), True

    def ends_empty(self) -> bool:
        """Return whether the group may match the empty string, if it ends here."""
        return self.may_be_empty or self.branch_is_empty


def _parts(replacement: str, pattern: re.Pattern[str]) -> Iterator[str | int]:
    """Yield the text and groups of a replacement, parsed as in Java. Raises ValueError.

    Kafka treats a missing group as text, or fails when the rule is used. Here it is rejected,
    because all clients would get the same name.
    """
    pos = 0
    while pos < len(replacement):
        one, pos = replacement[pos], pos + 1
        if one == "\\":
            one, pos = replacement[pos : pos + 1], pos + 1
            yield one
        elif one == "$":
            group, pos = _group(replacement, pos, pattern)
            yield group
        else:
            yield one


def _group(replacement: str, pos: int, pattern: re.Pattern[str]) -> tuple[int, int]:
    """Return the group that a `$` refers to, and the position after the reference."""
    group = None
    if replacement[pos : pos + 1] in _DIGITS:
        group, pos = int(replacement[pos]), pos + 1
        # `$12` is group 12 if the pattern has 12 groups, otherwise group 1 followed by a 2
        while replacement[pos : pos + 1] in _DIGITS:
            longer = 10 * group + int(replacement[pos])
            if longer > pattern.groups:
                break
            group, pos = longer, pos + 1
    if group is None or group > pattern.groups:
        raise ValueError(f"has a replacement that refers to a missing group: {replacement!a:.60}")
    return group, pos


ANONYMOUS: Final = "User:ANONYMOUS"
"""Principal of a client without a certificate: Kafka's `KafkaPrincipal.ANONYMOUS`."""


def certified_principal(client: ssl.SSLObject, mapping: PrincipalMapping) -> str:
    """Return the principal of a client after its TLS handshake. Raises NamelessError."""
    if client.context.verify_mode == ssl.CERT_NONE:
        return ANONYMOUS
    certificate = client.getpeercert(binary_form=True)
    if certificate is None:
        return ANONYMOUS
    return USER_TYPE + mapping.name_of(subject_of(certificate))


OPAQUE_TYPE: Final = "Opaque"
"""Type of an opaque principal, which Kafka brokers never use."""


def is_opaque(principal: str) -> bool:
    """Return whether a principal is opaque, because no rule mapped it to a user."""
    return principal.startswith(f"{OPAQUE_TYPE}:")


class OpaqueNames:
    """Names of a listener's opaque principals."""

    def __init__(self, rules: str | None) -> None:
        """Map names with `rules`, as in `ssl.principal.mapping.rules`; None for no mapping."""
        self._mapping = None if rules is None else PrincipalMapping(rules)

    def principal(self, description: str) -> str:
        """Return the principal for a description, e.g. `GSSAPI@192.0.2.1`.

        It is a user if a rule matches, otherwise `Opaque:GSSAPI@192.0.2.1`.
        """
        name = None if self._mapping is None else self._mapping.try_name_of(description)
        return f"{OPAQUE_TYPE}:{description}" if name is None else f"User:{name}"
