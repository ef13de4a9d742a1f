"""Sources of the proxy's own credentials: files, token endpoints, and content on a schedule.

No error or log line of this module repeats a token or a secret.
"""

import asyncio
import base64
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, TypeVar
from urllib.parse import quote_plus

from proxy.config.values import Secret
from proxy.errors import ProxyError
from proxy.net.identity_provider import ask, describe_status, failure_of, read_file, without_secrets
from sasl.jwks import RefreshSchedule
from sasl.login import LoginError
from sasl.token_cache import MAX_ANSWER_BYTES, TokenCache, expiry_claim, read_refusal, read_token
from sasl.untrusted import fit_for_log, unverified_claims

log = logging.getLogger(__name__)

FETCH_TIMEOUT: Final = 10.0
"""Timeout of one attempt in seconds, which bounds a client's wait for keys or credentials."""
_TRANSIENT: Final = frozenset({408, 425, 429})
"""HTTP statuses 4xx that may change soon (RFC 9110, RFC 8470, RFC 6585); all others are final."""


T = TypeVar("T")


class TokenUnavailable(LoginError, ProxyError):
    """No token is available for the login."""


async def read_in_time(read: Callable[[], T], source: object) -> T:
    """Return the result of `read`, which is called in a thread: a file may be on a disk that hangs.
    Raises LoginError."""
    try:
        async with asyncio.timeout(FETCH_TIMEOUT):
            return await asyncio.to_thread(read)
    except TimeoutError:
        raise LoginError(f"{source} was not read within {FETCH_TIMEOUT:g} seconds") from None


def read_bounded(path: Path) -> bytes:
    """Return a file of at most MAX_ANSWER_BYTES. Raises LoginError."""
    try:
        content = read_file(path, MAX_ANSWER_BYTES)
    except OSError as error:
        raise LoginError(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_ANSWER_BYTES:
        raise LoginError(f"{path} is larger than {MAX_ANSWER_BYTES} bytes")
    return content


def read_secret(secret: Secret, what: str) -> str:
    """Return a secret; `what` is its name in errors, such as "password". Raises LoginError."""
    try:
        text = secret.read()
        text.encode()  # the environment may have bytes that are not text
    except OSError as error:
        raise LoginError(f"{secret} cannot be read: {error.strerror}") from None
    except UnicodeError:
        raise LoginError(f"{secret} is not text") from None
    except ValueError as error:
        raise LoginError(str(error)) from None
    if not text or "\0" in text:
        raise LoginError(f"{secret} holds no {what}")
    return text


class FileTokens:
    """Token in a file that another program renews, such as a projected token of Kubernetes."""

    def __init__(self, path: Path) -> None:
        """Read `path` for each login."""
        self._path = path
        self.refresh_failures = 0
        """Number of reads since the start that found no token."""
        self.expires_at: float | None = None
        """Expiry of the last token, from its `exp` claim, in Unix time; None if unknown."""

    async def current(self) -> str:
        """Return the token that is in the file now, even if it is expired: the broker decides.

        Raises LoginError.
        """
        try:
            token = await read_in_time(self._read, self._path)
        except LoginError:
            self.refresh_failures += 1
            raise
        self.expires_at = expiry_claim(token)
        return token

    def _read(self) -> str:
        token = read_token(read_bounded(self._path))
        if token is None:
            raise LoginError(f"{self._path} holds no bearer token")
        return token


class Fetched:
    """Content that is fetched on a schedule; a subclass fetches it."""

    def __init__(self, schedule: RefreshSchedule) -> None:
        self._schedule = schedule
        self._fetching: asyncio.Task[None] | None = None
        self._secrets: tuple[str, ...] = ()
        """Values that must not be logged, of the current attempt or of all."""

    async def run(self) -> None:
        """Fetch on schedule, forever."""
        loop = asyncio.get_running_loop()
        while True:
            if self._schedule.wants_refresh(loop.time()):
                await self.refresh()
            await asyncio.sleep(max(0.01, self._schedule.next_refresh(loop.time()) - loop.time()))

    async def refresh(self) -> None:
        """Fetch now; concurrent calls share one attempt."""
        if self._fetching is None or self._fetching.done():
            self._fetching = asyncio.get_running_loop().create_task(self._attempt())
        await asyncio.shield(self._fetching)

    async def _attempt(self) -> None:
        known_error = self._schedule.last_error
        error = await failure_of(self._fetch(), FETCH_TIMEOUT, lambda: self._secrets)
        if error is not None:
            self._schedule.failed(error, asyncio.get_running_loop().time())
        self._log_changes(known_error)

    async def _fetch(self) -> None:
        """Fetch and keep the content; any exception is a failure."""
        raise NotImplementedError

    def _log_changes(self, known_error: str | None) -> None:
        """Log the result of an attempt if it differs from that of the one before."""
        raise NotImplementedError


class RenewedTokens(Fetched):
    """Tokens that are replaced early, each in use until it expires; a subclass loads them."""

    def __init__(self, name: str) -> None:
        """`name` is the source's name in messages, without parts that may be secret."""
        self._name = name
        self._cache = TokenCache()
        super().__init__(self._cache)

    async def current(self) -> str:
        """Return the current token, or wait for the one that is being loaded.

        Raises TokenUnavailable: at once if an attempt failed and the next one is not due, so that
        the source gets no more requests than `run` makes, however many clients connect.
        """
        loop = asyncio.get_running_loop()
        if (token := self._cache.token(loop.time())) is not None:
            return token
        is_fetching = self._fetching is not None and not self._fetching.done()
        if is_fetching or self._cache.wants_refresh(loop.time()):
            await self.refresh()
        if (token := self._cache.token(loop.time())) is None:
            reason = self._cache.last_error or "no token was requested yet"
            raise TokenUnavailable(f"no token from {self._name}: {reason}")
        return token

    async def who(self) -> str:
        """Return the principal's name, for a person. Raises TokenUnavailable."""
        subject = (unverified_claims(await self.current()) or {}).get("sub")
        return subject if isinstance(subject, str) else "unknown"

    @property
    def expires_at(self) -> float | None:
        """Expiry of the last token in Unix time; None if unknown, or before the first token."""
        return self._cache.expires_at

    @property
    def refresh_failures(self) -> int:
        """Number of attempts since the start that failed, or had an invalid result."""
        return self._cache.refresh_failures

    async def _load(self) -> bytes | tuple[object, float | None] | None:
        """Return a response with a token, or a token and its expiry (`TokenCache.loaded`); None
        after a failure that the cache knows.

        Any exception is a failure.
        """
        raise NotImplementedError

    async def _fetch(self) -> None:
        # The times of the request: the lifetime then never seems longer than it is
        now, wall_now = asyncio.get_running_loop().time(), time.time()
        if (found := await self._load()) is not None:
            jitter = random.random()  # noqa: S311 - spreads the requests of several proxies
            self._cache.loaded(found, now=now, wall_now=wall_now, jitter=jitter)

    def _log_changes(self, known_error: str | None) -> None:
        error = self._cache.last_error
        if error is not None and known_error is None:
            log.warning(
                "No token from %s: %s; the current token is used until it expires",
                self._name,
                error,
            )
        elif error is None and known_error is not None:
            log.info("%s: issues tokens again", self._name)


class TokenEndpoint(RenewedTokens):
    """Tokens from a token endpoint (RFC 6749 section 3.2); a subclass proves who the client is."""

    def __init__(self, url: str, scope: str | None) -> None:
        """Request tokens from `url`; without `scope`, it chooses one."""
        super().__init__(without_secrets(url))
        self._url = url
        self._scope = {"scope": scope} if scope else {}

    async def _load(self) -> bytes | None:
        headers, form = await self._request()
        headers["Accept"] = "application/json"
        status, answer = await ask(
            "POST", self._url, max_bytes=MAX_ANSWER_BYTES, headers=headers, form=form | self._scope
        )
        if status in (200, 201):  # RFC 6749 section 5.1 has 200 only; Kafka accepts both
            return answer
        refused = 300 <= status < 500 and status not in _TRANSIENT
        text = fit_for_log(_refusal(status, answer), self._secrets)
        self._cache.failed(text, asyncio.get_running_loop().time(), refused=refused)
        return None

    async def _request(self) -> tuple[dict[str, str], dict[str, str]]:
        """Return the headers and fields of a request; keep what must not be logged in `_secrets`.

        Raises LoginError.
        """
        raise NotImplementedError


class EndpointTokens(TokenEndpoint):
    """Tokens from a token endpoint, with the client credentials grant (RFC 6749 section 4.4)."""

    def __init__(
        self,
        url: str,
        *,
        client_id: str,
        client_secret: Callable[[], str],
        scope: str | None = None,
        header_urlencode: bool = False,
    ) -> None:
        """Request tokens from `url` as `client_id`.

        `client_secret` is called in a thread for each request, so that a replaced secret is used;
        it may raise LoginError. `header_urlencode` is Kafka's `sasl.oauthbearer.header.urlencode`:
        encode id and secret before they are joined, as RFC 6749 section 2.3.1 requires and many
        endpoints do not accept.
        """
        super().__init__(url, scope)
        self._client_id = client_id
        self._client_secret = client_secret
        self._header_urlencode = header_urlencode

    async def _request(self) -> tuple[dict[str, str], dict[str, str]]:
        secret = await asyncio.to_thread(self._client_secret)
        pair = [self._client_id, secret]
        if self._header_urlencode:
            pair = [quote_plus(part) for part in pair]
        # The alphabet with + and / (RFC 7617 section 2, RFC 4648 section 4).
        credentials = base64.b64encode(":".join(pair).encode()).decode()
        self._secrets = (secret, quote_plus(secret), credentials)
        headers = {"Authorization": f"Basic {credentials}"}
        return headers, {"grant_type": "client_credentials"}


def _refusal(status: int, answer: bytes) -> str:
    reason = None if 300 <= status < 400 else read_refusal(answer)
    return f"{describe_status(status)}: {reason}" if reason else describe_status(status)
