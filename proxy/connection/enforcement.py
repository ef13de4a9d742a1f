"""Enforcement mode of a principal's sessions: the listener's rule and its overrides.

Laws: each setting is decided on its own, by the most specific rule that says something about it.
An exact principal beats a prefix, a longer prefix beats a shorter one, any exception beats the
mechanism's own lifetime, and that beats the listener's.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from sasl.states import Enforcement, Terms


@dataclass(frozen=True, slots=True, kw_only=True)
class Override:
    """An exception for one principal or for all whose name begins alike; None: not set."""

    principal: str
    """`User:alice`, or the prefix of such names if `prefixed`."""
    prefixed: bool
    enforcement: Enforcement | None = None
    max_reauth_ms: int | None = None


class EnforcementPolicy:
    """The rules of one listener. Immutable: a reload makes another one."""

    def __init__(
        self,
        *,
        enforcement: Enforcement,
        max_reauth_ms: int,
        mechanism_max_reauth_ms: Mapping[str, int],
        overrides: Iterable[Override],
        enforces_token_expiry: bool = True,
    ) -> None:
        self._enforces_token_expiry = enforces_token_expiry
        self._enforcement = enforcement
        self._max_reauth_ms = max_reauth_ms
        self._mechanism_max_reauth_ms = dict(mechanism_max_reauth_ms)
        self._exact: dict[str, Override] = {}
        prefixes: dict[int, dict[str, Override]] = {}
        for override in overrides:
            if override.prefixed:
                prefixes.setdefault(len(override.principal), {})[override.principal] = override
            else:
                self._exact[override.principal] = override
        self._prefixes_longest_first = sorted(prefixes.items(), reverse=True)
        self._usual: dict[str, Terms] = {}
        """By mechanism: what holds for those whom no exception names."""

    def terms_for(self, principal: str, mechanism: str) -> Terms:
        """Return the rule for an authentication of `principal` (`User:alice`) by `mechanism`.

        The cost grows with the number of different prefix lengths, not with the exceptions.
        """
        overrides = self._most_specific_first(principal)
        if not overrides and mechanism in self._usual:
            return self._usual[mechanism]
        enforcement: Enforcement | None = None
        max_reauth_ms: int | None = None
        for override in overrides:
            if enforcement is None:
                enforcement = override.enforcement
            if max_reauth_ms is None:
                max_reauth_ms = override.max_reauth_ms
        if enforcement is None:
            enforcement = self._enforcement
        if max_reauth_ms is None:
            max_reauth_ms = self._mechanism_max_reauth_ms.get(mechanism, self._max_reauth_ms)
        terms = Terms(
            enforcement=enforcement,
            max_reauth_ms=max_reauth_ms,
            enforces_token_expiry=self._enforces_token_expiry,
        )
        if not overrides:
            self._usual[mechanism] = terms
        return terms

    def _most_specific_first(self, principal: str) -> list[Override]:
        matching = []
        if exact := self._exact.get(principal):
            matching.append(exact)
        for length, by_prefix in self._prefixes_longest_first:
            if prefix := by_prefix.get(principal[:length]):
                matching.append(prefix)
        return matching
