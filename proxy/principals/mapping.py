r"""`ssl.principal.mapping.rules` (KIP-371): from a certificate's subject to a name; pure.

    DEFAULT                                  the subject as it is
    RULE:pattern/replacement/[LU]            where `pattern` matches the whole subject, every match
                                             of it is replaced; then lower or upper case

The first rule that matches determines the name; if none does, the certificate is rejected. Between
the slashes, a backslash escapes the next character.

The patterns are Java's, translated to Python's `re` by `proxy.principals.java_patterns`.
"""

import re
import warnings
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import Final

from proxy.principals.java_patterns import translated
from proxy.principals.subject import MAX_CHARACTERS, NamelessError, checked

DEFAULT: Final = "DEFAULT"
_RULE: Final = "RULE:"
_SPACE: Final = " \t\n\v\f\r"
_CASES: Final[dict[str, Callable[[str], str]]] = {"": str, "L": str.lower, "U": str.upper}

_REFERENCE: Final = re.compile(r"[0-9]+|\{([A-Za-z][A-Za-z0-9]*)\}")


@dataclass(frozen=True, slots=True)
class Rule:
    """One `RULE:` of the list."""

    pattern: re.Pattern[str]
    replacement: tuple[str | int, ...]
    """Replacement as literal texts and numbers of capturing groups, in order."""
    case: Callable[[str], str]
    doubtful: re.Pattern[str] | None
    """Pattern that finds subjects for which Java's versions may disagree about a match; None if
    there are none."""

    def apply(self, subject: str) -> str | None:
        """Return the name, or None if the rule does not match. Raises NamelessError."""
        if self.doubtful is not None and self.doubtful.search(subject):
            raise NamelessError(
                "its subject has a character on whose class Java's versions disagree"
            )
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
        read = translated(pattern)
        with warnings.catch_warnings():
            warnings.simplefilter("error")  # constructs whose meaning may change in a later Python
            compiled = re.compile(read.pattern, re.ASCII)
    except RecursionError:
        raise ValueError(f"has a pattern that is nested too deeply, {pattern!a:.60}") from None
    except (re.error, Warning, OverflowError) as error:
        raise ValueError(f"has a pattern that cannot be used, {pattern!a:.60}: {error}") from None
    return Rule(compiled, tuple(_parts(replacement, compiled)), _CASES[case], read.doubtful)


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
    found = _REFERENCE.match(replacement, pos)
    group = None
    if found and found[1]:
        group = pattern.groupindex.get(found[1])
        pos = found.end()
    elif found:
        group, pos = int(replacement[pos]), pos + 1
        # `$12` is group 12 if there are as many, else group 1 followed by a 2
        while replacement[pos : pos + 1] in tuple("0123456789"):
            longer = 10 * group + int(replacement[pos])
            if longer > pattern.groups:
                break
            group, pos = longer, pos + 1
    if group is None or group > pattern.groups:
        raise ValueError(f"has a replacement that refers to a missing group: {replacement!a:.60}")
    return group, pos
