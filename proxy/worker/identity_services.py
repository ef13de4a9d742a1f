"""Services that keep the identities of a listener's clients current: signing keys, memberships."""

import asyncio
import logging
from collections.abc import Awaitable, Callable, Iterator, Mapping
from functools import partial
from pathlib import Path
from typing import Final, Generic, TypeVar
from urllib.parse import urlsplit

from proxy import config
from proxy.acl.memberships import MAX_BYTES, BadMemberships, Memberships
from proxy.acl.principals import PrincipalMapping
from proxy.brokers.token_source import Fetched, FileTokens
from proxy.errors import ConfigError
from proxy.net.identity_provider import Refused, ask, describe_status, read_file, without_secrets
from proxy.scheduling.file_signature import Signature, signature_of
from sasl.json_web_token import TrustedIssuer, TrustedIssuers
from sasl.jwks import MAX_DOCUMENT_BYTES, KeyCache, KeyCacheSettings
from sasl.jwt_claims import OAuthBearerSettings
from sasl.plain import MAX_FILE_BYTES, BadPasswordFile, PasswordFile

log = logging.getLogger(__name__)

_ACCEPT: Final = "application/jwk-set+json, application/json, */*;q=0.5"
"""Media types of a JWKS (RFC 7517 section 8.5.2): the API server of Kubernetes answers a request
that does not accept the first with 406."""


class KeyService(Fetched):
    """Service that keeps a `KeyCache` fresh: on schedule, and when a token names an unknown key."""

    def __init__(
        self, cache: KeyCache, source: Path | str, authorization_file: Path | None = None
    ) -> None:
        """Read `source`, a file or an http(s) URL, into `cache`.

        `authorization_file` has a bearer token (RFC 6750) for the requests, and is read for each
        one; only with an https URL. None if requests have no token.

        Kafka's client follows redirects (`java.net.HttpURLConnection`); this one does not, for the
        reasons in `proxy/net/identity_provider.py`.
        """
        super().__init__(cache)
        self.cache = cache
        self._source = source
        self._tokens = None if authorization_file is None else FileTokens(authorization_file)
        parts = urlsplit(source if isinstance(source, str) else "")
        self._name = without_secrets(source) if isinstance(source, str) else str(source)
        """The name of the source in the log."""
        self._secrets = tuple(filter(None, (parts.password, parts.query)))
        """Parts of the URL that may be secret: `/readyz` shows errors."""
        self._are_too_old = False
        """True if it was logged that the keys are too old."""

    def _log_changes(self, known_error: str | None) -> None:
        now = asyncio.get_running_loop().time()
        error = self.cache.last_error
        if error is not None and error != known_error:
            log.warning("JWKS %s: %s", self._name, error)
        elif error is None and known_error is not None:
            log.info("JWKS %s: read again", self._name)
        were_too_old = self._are_too_old
        self._are_too_old = self.cache.key_count > 0 and not self.cache.are_usable(now)
        if self._are_too_old and not were_too_old:
            log.error(
                "JWKS %s: the keys are too old, every token is refused until they are read again",
                self._name,
            )

    def not_ready(self, now: float) -> str | None:
        """Return why no token can be verified now; None if tokens can be."""
        if self.cache.are_usable(now):
            return None
        age = self.cache.age_seconds(now)
        what = "were never read" if age is None else f"are too old, read {age:.0f} s ago"
        return f"signing keys {what}: {self.cache.last_error or 'no answer yet'}"

    async def _fetch(self) -> None:
        self.cache.loaded(await self._document(), asyncio.get_running_loop().time())

    async def _document(self) -> bytes:
        if isinstance(self._source, Path):
            return await asyncio.to_thread(read_file, self._source, MAX_DOCUMENT_BYTES)
        headers = {"Accept": _ACCEPT}
        if self._tokens is not None:
            headers["Authorization"] = f"Bearer {await self._tokens.current()}"
        status, body = await ask("GET", self._source, max_bytes=MAX_DOCUMENT_BYTES, headers=headers)
        if status != 200:
            raise Refused(describe_status(status))
        return body


INTERVAL: Final = 1.0
"""Seconds between two checks of the file."""


T = TypeVar("T")


class FileService(Generic[T]):
    """Service that reads a file again when it changes; the last valid content is in force."""

    def __init__(
        self,
        path: Path,
        read: Callable[[], T],
        changed: Callable[[], Awaitable[None]],
        *,
        interval: float = INTERVAL,
    ) -> None:
        """Read the file with `read`, and await `changed` after each change of it. Raises
        ConfigError.

        `interval` is the time between two checks in seconds.
        """
        self._path = path
        self._read_file = read
        self._changed = changed
        self._interval = interval
        self._signature: Signature = None
        self.problem: str | None = None
        """Reason why the content of the file is not in force; None if it is."""
        self.current = self._read()
        """The content in force."""

    async def run(self) -> None:
        """Check the file periodically, forever."""
        while True:
            await asyncio.sleep(self._interval)
            await self.refresh()

    async def refresh(self) -> None:
        """Read the file again if it has changed, or could not be read."""
        signature = await asyncio.to_thread(signature_of, self._path)
        if signature == self._signature and self.problem is None:
            return
        try:
            current = await asyncio.to_thread(self._read)
        except ConfigError as error:
            if error.problem != self.problem:
                log.error("%s; its last content applies", error.problem)
            self.problem = error.problem
        else:
            self.current, self.problem = current, None
            log.info("%s: read again, %s", self._path, current)
            await self._changed()

    def _read(self) -> T:
        self._signature = signature_of(self._path)
        return self._read_file()


def read_memberships(path: Path, key: str = "groups.file") -> Memberships:
    """Return the memberships in a file. Raises ConfigError with the setting's `key`."""
    return _parsed(path, key, Memberships.parse, MAX_BYTES)


def read_passwords(path: Path, key: str = "sasl.plain.htpasswd.file") -> PasswordFile:
    """Return the users in a file. Raises ConfigError with the setting's `key`."""
    return _parsed(path, key, PasswordFile.parse, MAX_FILE_BYTES)


def lists_of(listener: config.Listener, key: str) -> Iterator[Callable[[], object]]:
    """Yield a function for each file of a listener's users or groups that reads it once, or raises
    ConfigError. `key` is the listener's in the configuration, such as `listeners[0]`."""
    if listener.groups_file is not None:
        yield partial(read_memberships, listener.groups_file, f"{key}.groups.file")
    if (users := listener.sasl_plain_htpasswd_file) is not None:
        yield partial(read_passwords, users, f"{key}.sasl.plain.htpasswd.file")


def _parsed(path: Path, key: str, parse: Callable[[bytes], T], most: int) -> T:
    try:
        with path.open("rb") as file:
            return parse(file.read(most + 1))
    except OSError as error:
        raise ConfigError(key, f"{path} cannot be read: {error.strerror}") from None
    except (BadMemberships, BadPasswordFile) as bad:
        raise ConfigError(key, f"{path} {bad}") from None


# Of a listener, from its settings


def trusted_issuers(settings: config.Listener, keys: Mapping[str, KeyService]) -> TrustedIssuers:
    """Return the issuers whose tokens a listener accepts. An issuer added by a reload has no keys,
    and waits for a restart."""
    by_name = settings.issuers_by_name()
    return TrustedIssuers(
        TrustedIssuer(name=name, keys=keys[name].cache, settings=_token_settings(settings, issuer))
        for name, issuer in by_name.items()
        if name in keys
    )


def _token_settings(
    settings: config.Listener, issuer: config.IssuerSettings
) -> OAuthBearerSettings:
    """Return the conditions that an issuer's tokens must meet."""
    prefix = _prefix_of(issuer)
    others = {_prefix_of(one) for one in settings.issuers_by_name().values()} - {prefix, ""}
    return OAuthBearerSettings(
        expected_audience=frozenset(issuer.sasl_oauthbearer_expected_audience) or None,
        expected_issuer=issuer.sasl_oauthbearer_expected_issuer,
        clock_skew_seconds=settings.sasl_oauthbearer_clock_skew_seconds,
        scope_claim_name=issuer.sasl_oauthbearer_scope_claim_name,
        sub_claim_name=issuer.sasl_oauthbearer_sub_claim_name,
        groups_claim_name=issuer.sasl_oauthbearer_groups_claim_name,
        name_of=name_of(issuer.sasl_oauthbearer_principal_mapping_rules),
        prefix=prefix,
        reserved=() if prefix else tuple(sorted(others)),
    )


def _prefix_of(issuer: config.IssuerSettings) -> str:
    if isinstance(issuer, config.OauthbearerIssuer):
        return issuer.sasl_oauthbearer_principal_prefix or ""
    return ""


def name_of(rules: str | None) -> Callable[[str], str | None] | None:
    """Return the function that mapping rules mean; None if names stay as they are."""
    return None if rules is None else PrincipalMapping(rules).try_name_of


def key_services(settings: config.Listener) -> dict[str, KeyService]:
    """Return the key services of a listener's issuers, by name; empty if it accepts no tokens."""
    schedule = KeyCacheSettings(
        refresh_ms=settings.sasl_oauthbearer_jwks_endpoint_refresh_ms,
        retry_backoff_ms=settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_ms,
        retry_backoff_max_ms=settings.sasl_oauthbearer_jwks_endpoint_retry_backoff_max_ms,
        max_age_ms=settings.sasl_oauthbearer_jwks_max_stale_ms,
    )
    return {
        name: KeyService(
            KeyCache(schedule), source, issuer.sasl_oauthbearer_jwks_endpoint_authorization_file
        )
        for name, issuer in settings.token_issuers().items()
        if (source := issuer.jwks_source()) is not None
    }
