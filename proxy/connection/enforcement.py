"""Enforcement mode of a client's sessions: the listener's rule and its overrides.

Rules: each setting is decided separately, by the most specific rule that sets it. An exact
principal beats a prefix, a longer prefix beats a shorter one, the client's own principal beats its
groups, any override beats the mechanism's own lifetime, and that beats the listener's. Of several
groups the strictest decides: `enforce` before `auto`, `probe` and `observe`, and the shortest
lifetime, where 0 is the longest.

`auto` is `enforce` for ready clients of promoted principals, and `probe` for others; its lifetimes
come before the mechanism's.
"""

from collections.abc import Iterable, Mapping, Sequence
from math import inf
from types import MappingProxyType
from typing import Final, NamedTuple

from proxy.rollout import ANY_CLIENT, Claimed, Promotion, Promotions, kind_of
from sasl.identity import Identity
from sasl.states import Enforcement, Terms


class Override(NamedTuple):
    """Override for one principal, or for all with a common prefix; a setting of None is not set."""

    principal: str
    """`User:alice` or `Group:analysts`; a prefix of such names if `prefixed`."""
    prefixed: bool
    enforcement: Enforcement | None = None
    max_reauth_ms: int | None = None


_Said = tuple[Enforcement | None, int | None]
"""Enforcement and lifetime in milliseconds; None if no override sets them."""
_MILDEST_FIRST: Final = list(Enforcement)
_PROBED: Final = Promotion(None, frozenset())


class EnforcementPolicy:
    """Rules of one listener. Immutable: a reload makes a new one."""

    def __init__(
        self,
        *,
        enforcement: Enforcement,
        max_reauth_ms: int,
        mechanism_max_reauth_ms: Mapping[str, int],
        overrides: Iterable[Override],
        enforces_token_expiry: bool = True,
        promotions: Promotions = MappingProxyType({}),
        first_lifetime_ms: int | None = None,
    ) -> None:
        """`promotions` and `first_lifetime_ms`, the lifetime for principals that are not promoted,
        apply to `auto`; None if `auto` sets no lifetimes."""
        self._promotions = promotions
        self._probed = _PROBED._replace(max_reauth_ms=first_lifetime_ms)
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
        """Terms without an override, by mechanism."""

    def terms_for(self, identity: Identity, mechanism: str, claimed: Claimed = ANY_CLIENT) -> Terms:
        """Return the terms of a session of this client, authenticated with `mechanism`.

        The cost grows with the number of different prefix lengths, not of overrides.
        """
        enforcement, max_reauth_ms = self._said_of_client(identity)
        if enforcement is None:
            enforcement = self._enforcement
            is_usual = max_reauth_ms is None and enforcement is not Enforcement.AUTO
        else:
            is_usual = False
        if is_usual and mechanism in self._usual:
            return self._usual[mechanism]
        if enforcement is Enforcement.AUTO:
            promotion = self._promotions.get(identity.principal, self._probed)
            is_ready = promotion.clients is None or (
                bool(promotion.clients) and kind_of(claimed) in promotion.clients
            )
            enforcement = Enforcement.ENFORCE if is_ready else Enforcement.PROBE
            max_reauth_ms = promotion.max_reauth_ms if max_reauth_ms is None else max_reauth_ms
        if max_reauth_ms is None:
            max_reauth_ms = self._mechanism_max_reauth_ms.get(mechanism, self._max_reauth_ms)
        terms = Terms(
            enforcement=enforcement,
            max_reauth_ms=max_reauth_ms,
            enforces_token_expiry=self._enforces_token_expiry,
        )
        if is_usual:
            self._usual[mechanism] = terms
        return terms

    def is_automatic(self, identity: Identity) -> bool:
        """Return whether `auto` applies to this client."""
        enforcement, _ = self._said_of_client(identity)
        return (enforcement or self._enforcement) is Enforcement.AUTO

    def _said_of_client(self, identity: Identity) -> _Said:
        """Return the settings that the overrides have for a client or its groups."""
        enforcement, max_reauth_ms = self._said_of(identity.principal)
        if identity.groups and (enforcement is None or max_reauth_ms is None):
            of_groups = _strictest([self._said_of(group) for group in identity.groups])
            enforcement = of_groups[0] if enforcement is None else enforcement
            max_reauth_ms = of_groups[1] if max_reauth_ms is None else max_reauth_ms
        return enforcement, max_reauth_ms

    def _said_of(self, principal: str) -> _Said:
        """Return the settings that the overrides have for one principal."""
        enforcement: Enforcement | None = None
        max_reauth_ms: int | None = None
        for override in self._most_specific_first(principal):
            if enforcement is None:
                enforcement = override.enforcement
            if max_reauth_ms is None:
                max_reauth_ms = override.max_reauth_ms
        return enforcement, max_reauth_ms

    def _most_specific_first(self, principal: str) -> list[Override]:
        matching = []
        if exact := self._exact.get(principal):
            matching.append(exact)
        for length, by_prefix in self._prefixes_longest_first:
            if prefix := by_prefix.get(principal[:length]):
                matching.append(prefix)
        return matching


def _strictest(said: Sequence[_Said]) -> _Said:
    """Return the strictest setting of any group."""
    enforcements = [enforcement for enforcement, _ in said if enforcement is not None]
    lifetimes = [max_reauth_ms for _, max_reauth_ms in said if max_reauth_ms is not None]
    return (
        max(enforcements, key=_MILDEST_FIRST.index, default=None),
        min(lifetimes, key=lambda ms: ms or inf, default=None),
    )
