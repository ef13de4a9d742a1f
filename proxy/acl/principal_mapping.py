r"""`ssl.principal.mapping.rules` (KIP-371): from a certificate's subject to a name; pure.

    DEFAULT                                  the subject as it is
    RULE:pattern/replacement/[LU]            where `pattern` matches the whole subject, every match
                                             of it is replaced; then lower or upper case

The first rule that matches determines the name; if none does, the certificate is rejected. Between
the slashes, a backslash escapes the next character.

Patterns use the subset of `java.util.regex` that Python's `re` reads alike: characters, escaped
punctuation, `.`, `\d \w \s` and their opposites, classes, groups, alternatives, quantifiers, `^`,
`$`, and `(?i)` at the beginning. Any other pattern is refused: it decides who a client is.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from proxy.acl.certificate_subject import MAX_CHARACTERS, NamelessError, checked

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
"""Constructs by their beginnings; the first that fits names one that is refused."""


@dataclass(frozen=True, slots=True)
class Rule:
    """One `RULE:` of the list."""

    pattern: re.Pattern[str]
    replacement: tuple[str | int, ...]
    """Replacement as literal texts and numbers of capturing groups, in order."""
    case: Callable[[str], str]
    may_be_empty: bool
    """True if the pattern matches the empty string: Java finds that within surrogate pairs, too."""

    def apply(self, subject: str) -> str | None:
        """Return the name, or None if the rule does not match. Raises NamelessError."""
        if self.may_be_empty and max(subject, default="") > "\uffff":
            raise NamelessError("its subject has a character that Java replaces by halves")
        if self.pattern.fullmatch(subject) is None:
            return None
        return self.case(self._replaced(subject))

    def _replaced(self, subject: str) -> str:
        """Replace every match as Java does: after an empty match it continues with the next
        character."""
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
        """Parse a comma-separated list of rules. Raises ValueError with the end of a sentence."""
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
        """Return the principal's name for a name of another kind; None if it has none, or is longer
        than a subject may be."""
        if len(name) > MAX_CHARACTERS:
            return None
        try:
            return self.name_of(name)
        except NamelessError:
            return None


def _rules(text: str) -> Iterator[Rule | None]:
    """Yield each rule, and None for DEFAULT; empty items of the list are skipped."""
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
        raise ValueError(f"has a pattern that cannot be used, {pattern!a:.60}: {error}") from None
    parts = tuple(_parts(replacement, compiled))
    return Rule(compiled, parts, _CASES[case], compiled.fullmatch("") is not None)


def _check_pattern(pattern: str) -> None:
    """Raise re.error unless Java and Python read a pattern alike."""
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
        # After backtracking, the engines do not agree on what such a group has captured
        if is_group and may_be_empty and quantifier[0][0] != "?":
            raise re.error("a repeated group that may match the empty string is not supported")
        if pattern[end : end + 1] in _QUANTIFIERS:
            raise re.error(f"{quantifier[0]}{pattern[end]} is not supported")
        may_be_empty |= quantifier[0][0] in "*?" or quantifier[0].startswith("{0")
    groups[-1].branch_is_empty &= may_be_empty
    return end


def _construct(pattern: str, pos: int) -> str:
    """Name the construct at a position."""
    return next(
        (name for begin, name in _REFUSED.items() if pattern.startswith(begin, pos)),
        pattern[pos : pos + 4],
    )


@dataclass(slots=True)
class _Group:
    """Group, or the whole pattern, as far as it has been read."""

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
    """Yield text and groups as Java reads a replacement. Raises ValueError.

    Kafka reads a missing group as text, or fails when it is used; here it is rejected, because all
    clients would get the same name.
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
        # `$12` is group 12 if there are as many, else group 1 followed by a 2
        while replacement[pos : pos + 1] in _DIGITS:
            longer = 10 * group + int(replacement[pos])
            if longer > pattern.groups:
                break
            group, pos = longer, pos + 1
    if group is None or group > pattern.groups:
        raise ValueError(f"has a replacement that refers to a missing group: {replacement!a:.60}")
    return group, pos
