"""Source of the proxy's own bearer token: a file, a token endpoint, or a program of the operator's.

No error or log line of this module repeats a token or a secret.
"""

import asyncio
import base64
import logging
import random
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final
from urllib.parse import quote_plus

from proxy.errors import ProxyError
from proxy.net.identity_provider import (
    ask,
    describe_status,
    failure_of,
    read_file,
    without_secrets,
)
from sasl.login import LoginError
from sasl.token_cache import (
    MAX_ANSWER_BYTES,
    TokenCache,
    expiry_claim,
    read_refusal,
    read_token,
    unverified_claims,
)
from sasl.untrusted import fit_for_log

log = logging.getLogger(__name__)

FETCH_TIMEOUT: Final = 10.0
"""Timeout of one attempt in seconds, which bounds the wait for a token."""
_TRANSIENT: Final = frozenset({408, 425, 429})
"""HTTP statuses 4xx that may change soon (RFC 9110, RFC 8470, RFC 6585); all others are final."""


class TokenUnavailable(LoginError, ProxyError):
    """No token is available for the login."""


def read_bounded(path: Path) -> bytes:
    """Return a file of at most MAX_ANSWER_BYTES. Raises TokenUnavailable."""
    try:
        content = read_file(path, MAX_ANSWER_BYTES)
    except OSError as error:
        raise TokenUnavailable(f"{path} cannot be read: {error.strerror}") from None
    if len(content) > MAX_ANSWER_BYTES:
        raise TokenUnavailable(f"{path} is larger than {MAX_ANSWER_BYTES} bytes")
    return content


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
        """Return the token that is in the file now. Raises TokenUnavailable."""
        try:
            token = await self._read()
        except TokenUnavailable:
            self.refresh_failures += 1
            raise
        self.expires_at = expiry_claim(token)
        return token

    async def _read(self) -> str:
        """Return the token, even if it is expired: the broker decides."""
        try:
            async with asyncio.timeout(FETCH_TIMEOUT):
                token = read_token(await asyncio.to_thread(read_bounded, self._path))
        except TimeoutError:
            problem = f"was not read within {FETCH_TIMEOUT:g} seconds"
            raise TokenUnavailable(f"{self._path} {problem}") from None
        if token is None:
            raise TokenUnavailable(f"{self._path} holds no bearer token")
        return token


class RenewedTokens:
    """Tokens that are replaced early, each in use until it expires; a subclass loads them."""

    def __init__(self, name: str) -> None:
        """`name` is the source's name in messages, without parts that may be secret."""
        self._name = name
        self._cache = TokenCache()
        self._loading: asyncio.Task[None] | None = None
        self._secrets: tuple[str, ...] = ()
        """Values of the current attempt that must not be logged."""

    async def run(self) -> None:
        """Load tokens on schedule, forever."""
        loop = asyncio.get_running_loop()
        while True:
            if self._cache.wants_refresh(loop.time()):
                await self._refresh()
            await asyncio.sleep(max(0.01, self._cache.next_refresh(loop.time()) - loop.time()))

    async def current(self) -> str:
        """Return the current token, or wait for the one that is being loaded.

        Raises TokenUnavailable: at once if an attempt failed and the next one is not due, so that
        the source gets no more requests than `run` makes, however many clients connect.
        """
        loop = asyncio.get_running_loop()
        if (token := self._cache.token(loop.time())) is not None:
            return token
        is_loading = self._loading is not None and not self._loading.done()
        if is_loading or self._cache.wants_refresh(loop.time()):
            await self._refresh()
        if (token := self._cache.token(loop.time())) is None:
            reason = self._cache.last_error or "no token was requested yet"
            raise TokenUnavailable(f"no token from {self._name}: {reason}")
        return token

    async def who(self) -> str:
        """Return the principal's name, for a person. Raises TokenUnavailable."""
        subject = unverified_claims(await self.current()).get("sub")
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

    async def _take(self) -> None:
        # The times of the request: the lifetime then never seems longer than it is
        now, wall_now = asyncio.get_running_loop().time(), time.time()
        if (found := await self._load()) is not None:
            jitter = random.random()  # noqa: S311 - spreads the requests of several proxies
            self._cache.loaded(found, now=now, wall_now=wall_now, jitter=jitter)

    async def _refresh(self) -> None:
        """Load a token; concurrent calls share one attempt."""
        if self._loading is None or self._loading.done():
            self._loading = asyncio.get_running_loop().create_task(self._attempt())
        await asyncio.shield(self._loading)

    async def _attempt(self) -> None:
        loop, cache = asyncio.get_running_loop(), self._cache
        known_error = cache.last_error
        error = await failure_of(self._take(), FETCH_TIMEOUT, lambda: self._secrets)
        if error is not None:
            cache.failed(error, loop.time())
        error_now = cache.last_error
        if error_now is not None and known_error is None:
            log.warning(
                "No token from %s: %s; the current token is used until it expires",
                self._name,
                error_now,
            )
        elif error_now is None and known_error is not None:
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

        Raises TokenUnavailable.
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
        it raises OSError or ValueError, which do not repeat the secret. `header_urlencode` is
        Kafka's `sasl.oauthbearer.header.urlencode`: encode id and secret before they are joined,
        as RFC 6749 section 2.3.1 requires and many endpoints do not accept.
        """
        super().__init__(url, scope)
        self._client_id = client_id
        self._client_secret = client_secret
        self._header_urlencode = header_urlencode

    async def _request(self) -> tuple[dict[str, str], dict[str, str]]:
        try:
            secret = await asyncio.to_thread(self._client_secret)
            credentials = self._basic(secret)
        except OSError as error:
            raise TokenUnavailable(f"the client secret cannot be read: {error.strerror}") from None
        except UnicodeError:
            raise TokenUnavailable("the client secret is not text") from None
        except ValueError as error:
            raise TokenUnavailable(f"no client secret: {error}") from None
        self._secrets = (secret, quote_plus(secret), credentials)
        headers = {"Authorization": f"Basic {credentials}"}
        return headers, {"grant_type": "client_credentials"}

    def _basic(self, secret: str) -> str:
        if not secret:
            raise ValueError("it is empty")
        pair = [self._client_id, secret]
        if self._header_urlencode:
            pair = [quote_plus(part) for part in pair]
        # The alphabet with + and / (RFC 7617 section 2, RFC 4648 section 4).
        return base64.b64encode(":".join(pair).encode()).decode()


def _refusal(status: int, answer: bytes) -> str:
    reason = None if 300 <= status < 400 else read_refusal(answer)
    return f"{describe_status(status)}: {reason}" if reason else describe_status(status)
