"""Logins to brokers as the client (`upstream.identity`).

Rules:

- A login is made only for an authentication that succeeded (`Authenticated`), never for a name.
- If `upstream.identity.allow` and its relatives do not allow a client's principal, the client is
  refused. It never gets another identity, least of all the proxy's.
- Rules apply to the principal at brokers, and are judged again at each login, including renewals.
"""

from collections import Counter
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import quote

from metrics import registry
from metrics.snapshot import Snapshot
from proxy import config
from proxy.acl.principals import ANONYMOUS, PrincipalMapping
from proxy.brokers.access import Access, PasswordIdentity, TokenIdentity
from proxy.brokers.delegation_tokens import LimitError, TokenLogins
from proxy.brokers.service_connection import ask
from proxy.brokers.token_source import FileTokens
from proxy.config.security import UpstreamIdentity
from proxy.config.values import Secret
from proxy.errors import BrokerFault
from sasl.identity import USER_TYPE
from sasl.login import ClientExchange, LoginError
from sasl.states import Authenticated
from sasl.untrusted import fit_for_log

if TYPE_CHECKING:
    from proxy.brokers.signed_tokens import MintedLogins

MAX_KEPT: Final = 4_096
"""Maximum number of principals with cached keys; a cached key saves SCRAM's iterations."""


class ClientRefused(LoginError):
    """A client has no login at brokers; the reason names it."""


class BrokerPrincipals:
    """The principals at brokers that clients may have."""

    def __init__(self, settings: config.Listener, own: str | None) -> None:
        """`own` is the proxy's own user name; None if it is unknown."""
        rules = settings.upstream_identity_principal_mapping_rules
        self._mapping = None if rules is None else PrincipalMapping(rules)
        self._allowed = frozenset(settings.upstream_identity_allow)
        self._allowed_prefixes = settings.upstream_identity_allow_prefixes
        self._denied = frozenset(settings.upstream_identity_deny)
        self._privileged = frozenset(settings.upstream_identity_super_users or ())
        if own is not None:
            self._privileged |= {USER_TYPE + own}

    def name(self, client: Authenticated) -> str:
        """Return the name of the client's principal at brokers, without its type.

        Raises ClientRefused if the rules do not allow the client a principal.
        """
        if client.principal == ANONYMOUS or not client.principal.startswith(USER_TYPE):
            raise _refused(client, "it is not a user that was authenticated")
        name = self.name_of(client.principal.removeprefix(USER_TYPE))
        if not name:
            raise _refused(client, "no rule of upstream.identity.principal.mapping.rules matches")
        principal = USER_TYPE + name
        if principal == ANONYMOUS:
            raise _refused(client, f"it would be {ANONYMOUS}")
        if principal in self._denied:
            raise _refused(client, "upstream.identity.deny", principal)
        if principal in self._allowed:
            return name
        if principal in self._privileged:
            raise _refused(
                client, "a super user must be named in upstream.identity.allow", principal
            )
        if not principal.startswith(self._allowed_prefixes):
            raise _refused(client, "upstream.identity.allow does not name it", principal)
        return name

    def name_of(self, user: str) -> str | None:
        """Return the name at brokers of the client `User:user`, allowed or not; None without
        one."""
        return user if self._mapping is None else self._mapping.try_name_of(user)


def _refused(client: Authenticated, reason: str, principal: str | None = None) -> ClientRefused:
    at_brokers = "" if principal is None else f" as {_quoted(principal)}"
    return ClientRefused(f"{_quoted(client.principal)} may not log in{at_brokers}: {reason}")


def _quoted(text: str) -> str:
    return f"'{fit_for_log(text, ())}'"


class MappedLogins:
    """Logins with the credentials that a directory has for each principal.

    A principal's files are in a directory of its name, percent-encoded as in a URL (RFC 3986
    section 2.1) except for letters, digits and `-_.~`; a leading dot is encoded, too.
    """

    def __init__(self, directory: Path, mechanism: str) -> None:
        self._directory, self._mechanism = directory, mechanism
        self._kept: dict[str, PasswordIdentity] = {}

    async def exchange(self, name: str, _broker: tuple[str, int]) -> ClientExchange:
        """Begin a login for `User:name`. Raises LoginError if there are no credentials for it."""
        try:
            encoded = quote(name, safe="")
        except UnicodeError:
            raise LoginError(f"{_quoted(name)} is not text") from None
        if encoded.startswith("."):
            encoded = f"%2E{encoded[1:]}"
        entry = self._directory / encoded
        if self._mechanism == "OAUTHBEARER":
            return await TokenIdentity(FileTokens(entry / "token")).exchange()
        login = self._kept.pop(name, None)
        if login is None:
            user, password = Secret(entry / "username", None), Secret(entry / "password", None)
            login = PasswordIdentity(self._mechanism, user, password)
        exchange = await login.exchange()
        while len(self._kept) >= MAX_KEPT:
            del self._kept[next(iter(self._kept))]
        self._kept[name] = login  # last, so that the least recently used one goes first
        return exchange


def _logins(
    settings: config.Listener, access: Access, workers: int
) -> "TokenLogins | MintedLogins | MappedLogins":
    if settings.upstream_identity is UpstreamIdentity.DELEGATION_TOKEN:
        return TokenLogins(settings, access, workers)
    if settings.upstream_identity is UpstreamIdentity.MINTED_TOKEN:
        from proxy.brokers.signed_tokens import MintedLogins

        return MintedLogins(settings)
    directory = settings.upstream_identity_directory
    mechanism = settings.upstream_identity_mechanism
    assert directory is not None
    assert mechanism is not None
    return MappedLogins(directory, mechanism)


class ClientLogins:
    """Logins of a listener's clients to brokers. The module docstring has its rules."""

    def __init__(self, settings: config.Listener, access: Access, workers: int = 1) -> None:
        """`access` has the proxy's own login; limits are divided by the number of `workers`."""
        self._own = access.username
        self._access = replace(access, identity=None)
        self._logins = _logins(settings, access, workers)
        self._refused = Counter[str]()
        self.apply(settings)

    def apply(self, settings: config.Listener) -> None:
        """Apply the rules of a reload to later logins, including renewals."""
        self._principals = BrokerPrincipals(settings, self._own)

    async def exchange(
        self, client: Authenticated | None, broker: tuple[str, int]
    ) -> ClientExchange:
        """Begin a login as the client at a broker's host and port. Raises ClientRefused.

        None, a client that is not authenticated any more, is refused.
        """
        try:
            if client is None:
                raise ClientRefused("a client may not log in: it is not authenticated")
            name = self._principals.name(client)
        except ClientRefused:
            self._refused["not_allowed"] += 1
            raise
        try:
            return await self._logins.exchange(name, broker)
        except LoginError as error:
            self._refused["limit" if isinstance(error, LimitError) else "no_login"] += 1
            reason = fit_for_log(error.reason, ())
            who = _quoted(client.principal)
            at_brokers = _quoted(USER_TYPE + name)
            raise ClientRefused(f"{who} has no login as {at_brokers}: {reason}") from None

    async def try_out(self, client: Authenticated, broker: tuple[str, int]) -> None:
        """Log in as the client, with a delegation token that is created and expired for it.

        Raises BrokerFault and LoginError.
        """

        async def log_in(exchange: ClientExchange) -> None:
            async def begun() -> ClientExchange:
                return exchange

            await ask(*broker, self._access, lambda connection: connection.log_in(begun()))

        name = self._principals.name(client)
        if isinstance(self._logins, TokenLogins):
            await self._logins.try_out(name, broker, log_in)
        else:
            await log_in(await self._logins.exchange(name, broker))

    def presents(self, client: Authenticated) -> str | None:
        """Return the client's principal at brokers; None if the rules in force refuse it."""
        try:
            return USER_TYPE + self._principals.name(client)
        except ClientRefused:
            return None

    def collect(self, snapshot: Snapshot, listener: str) -> None:
        """Add the numbers of refused clients, and the values of tokens."""
        for reason, number in self._refused.items():
            snapshot.count(registry.IDENTITY_REFUSED, number, listener, reason)
        if isinstance(self._logins, TokenLogins):
            self._logins.collect(snapshot, listener)

    def failed(self, client: Authenticated | None, broker: tuple[str, int]) -> None:
        """Take note that the broker refused a login as the client."""
        if client is not None and isinstance(self._logins, TokenLogins):
            with suppress(ClientRefused):
                self._logins.failed(self._principals.name(client), broker)

    async def expire_tokens(self, principal: str, broker: tuple[str, int] | None) -> int:
        """Expire a client's delegation tokens at a broker, None if none is ready; return their
        number. Raises BrokerFault."""
        name = self._principals.name_of(principal.removeprefix(USER_TYPE))
        if not (name and isinstance(self._logins, TokenLogins)):
            return 0
        if broker is None:
            raise BrokerFault("no broker is ready")
        return await self._logins.expire(name, broker)
