r"""Translation of Java's patterns (`java.util.regex`) to Python's `re`; pure.

Law: a translated pattern has the same meaning in both languages. Any other is rejected, with the
reason as the end of a sentence, because patterns determine principals. Rejected are, among others:

- a group that is repeated and may match the empty string, or is repeated possessively, and a
  capturing group within an atomic group or a lookaround: after backtracking, the two engines do not
  agree on what a group has captured;
- `\1` for a group that is repeated, or within one that is, for the same reason;
- `\p{…}` of a property that Python does not have, and of letter cases together with `(?i)`;
- nested classes, their intersections, and flags other than `(?i)` at the beginning.

Versions of Java differ on `\b` next to letters outside ASCII, and versions of Unicode on the
letters of some scripts: `Translated.doubtful` finds the subjects for which that matters. Line ends,
on which they differ too, cannot occur in a subject.
"""

import re
from dataclasses import dataclass, field
from typing import Final

from proxy.principals.character_classes import Ranges, complement, named_ranges, written

_SAME_ESCAPES: Final = frozenset("dDwWsStnrf")
"""Letters that mean the same after a backslash, given that Python's are restricted to ASCII.
Characters other than letters and digits stand for themselves in both languages."""
_ZERO_WIDTH_ESCAPES: Final = {"b": r"\b", "B": r"\B", "A": r"\A", "z": r"\Z", "Z": r"\Z"}
_BEYOND_ASCII: Final = r"[^\x00-\x7f]"
_BEYOND_TWO_BYTES: Final = r"[\U00010000-\U0010ffff]"
_LOOKS: Final = ("?=", "?!", "?<=", "?<!")
_GROUPS: Final = ("?:", "?>", *_LOOKS)
"""Prefixes of a group, apart from `(` alone and `(?<name>`."""
_NAMED: Final = re.compile(r"\(\?<([A-Za-z][A-Za-z0-9]*)>")
_NAMED_REFERENCE: Final = re.compile(r"\\k<([A-Za-z][A-Za-z0-9]*)>")
_PROPERTY: Final = re.compile(r"\\[pP](?:\{([A-Za-z_]+)\}|([A-Z]))")
_HEX: Final = re.compile(r"\\(?:x([0-9A-Fa-f]{2})|u([0-9A-Fa-f]{4})|x\{([0-9A-Fa-f]{1,6})\})")
_QUANTIFIER: Final = re.compile(r"(?:[*+?]|\{([0-9]+)(?:(,)([0-9]*))?\})([?+]?)")
_IGNORE_CASE: Final = "(?i)"
_CASES: Final = frozenset({"Lower", "Upper", "Ll", "Lu", "Lt", "IsLowercase", "IsUppercase"})


@dataclass(frozen=True, slots=True)
class Translated:
    """Pattern in Python's syntax."""

    pattern: str
    doubtful: re.Pattern[str] | None
    """Pattern that finds the parts of a subject that not every Java version matches alike; None if
    there are none."""


@dataclass(slots=True)
class _Group:
    """Group, or the whole pattern, as far as it has been read."""

    start: int
    """Number of capturing groups that begin before this one."""
    zero_width: bool = False
    """True for a lookahead or lookbehind."""
    is_sealed: bool = False
    """True if the engine never backtracks into it: a lookaround or an atomic group."""
    may_be_empty: bool = False
    """True if one of the branches read so far may match the empty string."""
    branch_is_empty: bool = True
    """True if the branch being read may match the empty string."""
    refers: bool = False
    """True if it contains a back reference."""

    def end_branch(self) -> None:
        self.may_be_empty = self.may_be_empty or self.branch_is_empty
        self.branch_is_empty = True


def translated(pattern: str) -> Translated:
    """Return a Java pattern in Python's syntax. Raises re.error."""
    return _Translator(pattern).run()


@dataclass(slots=True)
class _Translator:
    """Parser that reads a pattern once, and writes it in Python's syntax."""

    pattern: str
    pos: int = 0
    parts: list[str] = field(default_factory=list)
    doubtful: set[str] = field(default_factory=set)
    groups: int = 0
    """Number of capturing groups that have begun."""
    names: dict[str, int] = field(default_factory=dict)
    repeated: set[int] = field(default_factory=set)
    """Numbers of the capturing groups that are repeated, or are within a repeated one."""
    referred: set[int] = field(default_factory=set)
    open: list[_Group] = field(default_factory=lambda: [_Group(0)])
    ignores_case: bool = False

    def run(self) -> Translated:
        if self.pattern.startswith(_IGNORE_CASE):
            self.ignores_case = True
            self._copy(len(_IGNORE_CASE))
        while self.pos < len(self.pattern):
            self._piece()
        if self.repeated & self.referred:
            raise re.error("a back reference to a repeated group")
        self.open[0].end_branch()
        if self.open[0].may_be_empty:  # Java also matches the empty string within a surrogate pair
            self.doubtful.add(_BEYOND_TWO_BYTES)
        doubtful = re.compile("|".join(sorted(self.doubtful))) if self.doubtful else None
        return Translated("".join(self.parts), doubtful)

    def _copy(self, count: int) -> None:
        self.parts.append(self.pattern[self.pos : self.pos + count])
        self.pos += count

    def _piece(self) -> None:
        """Read one item of a branch, with its quantifier if it can have one."""
        match self.pattern[self.pos]:
            case "(":
                self._begin_group()
            case ")":
                self._end_group()
            case "|":
                self.open[-1].end_branch()
                self._copy(1)
            case "^" | "$":
                self._copy(1)
                self._no_quantifier()
            case "\\":
                self._escape()
            case "[":
                self._class()
                self._single()
            case "{" | "*" | "+" | "?":
                raise re.error("nothing to repeat")
            case _:
                self._copy(1)
                self._single()

    # Groups

    def _begin_group(self) -> None:
        group = _Group(self.groups)
        if any(one.is_sealed for one in self.open) and self._captures():
            raise re.error("a capturing group within a lookaround or an atomic group")
        if named := _NAMED.match(self.pattern, self.pos):
            self.groups += 1
            self.names[named[1]] = self.groups
            self.parts.append(f"(?P<{named[1]}>")
            self.pos = named.end()
        elif self.pattern.startswith("(?", self.pos):
            begins = [one for one in _GROUPS if self.pattern.startswith(one, self.pos + 1)]
            if not begins:
                raise re.error(f"{self.pattern[self.pos : self.pos + 4]} is not supported here")
            group.zero_width = begins[0] in _LOOKS
            group.is_sealed = begins[0] != "?:"
            self._copy(1 + len(begins[0]))
        else:
            self.groups += 1
            self._copy(1)
        self.open.append(group)

    def _captures(self) -> bool:
        return not self.pattern.startswith("(?", self.pos) or bool(
            _NAMED.match(self.pattern, self.pos)
        )

    def _end_group(self) -> None:
        if len(self.open) == 1:
            raise re.error("unbalanced parenthesis")
        group = self.open.pop()
        group.end_branch()
        self._copy(1)
        self.open[-1].refers |= group.refers
        if group.zero_width:
            self._no_quantifier()
            return
        optional, repeats = False, False
        if quantifier := _QUANTIFIER.match(self.pattern, self.pos):
            if quantifier[4] == "+":
                raise re.error("a group with a possessive quantifier")
            optional, repeats = _least(quantifier) == 0, not quantifier[0].startswith("?")
            self._copy(len(quantifier[0]))
        if repeats and group.may_be_empty:
            raise re.error("a repeated group that may match the empty string")
        if repeats and group.refers:
            raise re.error("a back reference within a repeated group")
        if repeats:
            self.repeated.update(range(group.start + 1, self.groups + 1))
        if not optional and not group.may_be_empty:
            self.open[-1].branch_is_empty = False

    # Single characters

    def _single(self) -> None:
        """Read the quantifier of a single character."""
        least = 1
        if quantifier := _QUANTIFIER.match(self.pattern, self.pos):
            least = _least(quantifier)
            self._copy(len(quantifier[0]))
        if least:
            self.open[-1].branch_is_empty = False

    def _no_quantifier(self) -> None:
        if self.pattern[self.pos : self.pos + 1] in tuple("*+?{"):
            raise re.error("a quantifier on an item without length")

    def _escape(self) -> None:
        escaped = self.pattern[self.pos + 1 : self.pos + 2]
        if escaped in _ZERO_WIDTH_ESCAPES:
            if escaped in "bB":
                self.doubtful.add(_BEYOND_ASCII)
            self.parts.append(_ZERO_WIDTH_ESCAPES[escaped])
            self.pos += 2
            self._no_quantifier()
        elif escaped in tuple("123456789k"):
            self._reference()
        elif escaped == "Q":
            self._quoted()
        else:
            ranges = self._named_class()
            if ranges is None:
                self._plain_escape()
            else:
                self.parts.append(f"[{written(ranges)}]")
            self._single()

    def _reference(self) -> None:
        """Read a back reference; like Java, take only digits that name a group that has begun."""
        if named := _NAMED_REFERENCE.match(self.pattern, self.pos):
            group, end = self.names.get(named[1], 0), named.end()
        else:
            end = self.pos + 2
            group = int(self.pattern[self.pos + 1 : end] if self.pattern[end - 1] != "k" else "0")
            while self.pattern[end : end + 1] in tuple("0123456789"):
                longer = 10 * group + int(self.pattern[end])
                if longer > self.groups:
                    break
                group, end = longer, end + 1
        if not 0 < group <= self.groups:
            raise re.error("a back reference to a missing group")
        if any(one.zero_width for one in self.open):
            raise re.error("a back reference within a lookaround")
        self.referred.add(group)
        self.open[-1].refers = True
        self.parts.append(f"(?:\\{group})")
        self.pos = end
        if quantifier := _QUANTIFIER.match(self.pattern, self.pos):
            self._copy(len(quantifier[0]))

    def _quoted(self) -> None:
        r"""Read the text between \Q and \E character by character: it may contain anything."""
        begin = self.pos + 2
        end = self.pattern.find("\\E", begin)
        quoted = self.pattern[begin:] if end < 0 else self.pattern[begin:end]
        self.pos = len(self.pattern) if end < 0 else end + 2
        if quoted:
            self.parts.append(re.escape(quoted))
            self._single()

    def _plain_escape(self) -> None:
        """Read an escape that stands for a character, or for a class that both languages have."""
        if found := _HEX.match(self.pattern, self.pos):
            code = int(found[1] or found[2] or found[3], 16)
            if 0xD800 <= code < 0xE000 or code > 0x10FFFF:
                raise re.error(f"{found[0]} is not a character")
            self.parts.append(written([(code, code)]))
            self.pos = found.end()
            return
        escaped = self.pattern[self.pos + 1 : self.pos + 2]
        if escaped not in _SAME_ESCAPES and (not escaped or escaped.isalnum()):
            raise re.error(f"\\{escaped} is not supported here")
        self._copy(2)

    # Classes

    def _named_class(self) -> Ranges | None:
        r"""Read a \p{…} or \P{…}; return None if there is none here."""
        found = _PROPERTY.match(self.pattern, self.pos)
        if found is None:
            return None
        name = found[1] or found[2]
        if self.ignores_case and name.removeprefix("Is") in _CASES | {"Lowercase", "Uppercase"}:
            raise re.error(f"{found[0]} together with (?i)")
        ranges, doubtful = named_ranges(name)
        if doubtful:
            self.doubtful.add(f"[{written(doubtful)}]")
        self.pos = found.end()
        return complement(ranges) if found[0][1] == "P" else ranges

    def _class(self) -> None:
        """Read a class, from its opening to its closing bracket."""
        self._copy(2 if self.pattern.startswith("[^", self.pos) else 1)
        if self.pattern.startswith("]", self.pos):  # a literal, as the first character
            self._copy(1)
        while not self.pattern.startswith("]", self.pos):
            if self.pos >= len(self.pattern):
                raise re.error("an unterminated character class")
            match self.pattern[self.pos]:
                case "[":
                    raise re.error("a nested character class")
                case "&" if self.pattern.startswith("&&", self.pos):
                    raise re.error("an intersection of character classes")
                case "\\":
                    ranges = self._named_class()
                    if ranges is None:
                        self._plain_escape()
                    else:
                        self.parts.append(written(ranges))
                case _:
                    self._copy(1)
        self._copy(1)


def _least(quantifier: re.Match[str]) -> int:
    """Return the minimum number of repetitions."""
    if quantifier[1] is not None:
        return int(quantifier[1])
    return int(quantifier[0].startswith("+"))
