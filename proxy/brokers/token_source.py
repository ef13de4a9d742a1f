"""Source of the proxy's own bearer token: a file, or a token endpoint.

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
from proxy.net.identity_provider import ask, describe_status, read_file, without_secrets
from sasl.token_cache import (
    MAX_ANSWER_BYTES,
    TokenCache,
    TokenCacheSettings,
    expiry_claim,
    read_refusal,
    read_token,
)
from sasl.untrusted import fit_for_log

log = logging.getLogger(__name__)

FETCH_TIMEOUT: Final = 10.0
"""Timeout of one attempt in seconds, which bounds the wait for a token."""
_TRANSIENT: Final = frozenset({408, 425, 429})
"""HTTP statuses 4xx that may change soon (RFC 9110, RFC 8470, RFC 6585); all others are final."""


class TokenUnavailable(ProxyError):
    """No token is available for the login."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason
        """The reason as one log line; it repeats no secret."""


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
                content = await asyncio.to_thread(read_file, self._path, MAX_ANSWER_BYTES)
        except TimeoutError:
            problem = f"was not read within {FETCH_TIMEOUT:g} seconds"
            raise TokenUnavailable(f"{self._path} {problem}") from None
        except OSError as error:
            problem = f"cannot be read: {error.strerror}"
            raise TokenUnavailable(f"{self._path} {problem}") from None
        if len(content) > MAX_ANSWER_BYTES:
            raise TokenUnavailable(f"{self._path} is larger than {MAX_ANSWER_BYTES} bytes")
        token = read_token(content)
        if token is None:
            raise TokenUnavailable(f"{self._path} holds no bearer token")
        return token


class EndpointTokens:
    """Tokens from a token endpoint, with the client credentials grant (RFC 6749 section 4.4)."""

    def __init__(
        self,
        url: str,
        *,
        client_id: str,
        client_secret: Callable[[], str],
        scope: str | None = None,
        header_urlencode: bool = False,
        settings: TokenCacheSettings | None = None,
    ) -> None:
        """Request tokens from `url` as `client_id`.

        `client_secret` is called in a thread for each request, so that a replaced secret is used;
        it raises OSError or ValueError, which do not repeat the secret. `header_urlencode` is
        Kafka's `sasl.oauthbearer.header.urlencode`: encode id and secret before they are joined,
        as RFC 6749 section 2.3.1 requires and many endpoints do not accept.
        """
        self._url = url
        self._name = without_secrets(url)
        """The endpoint's name in messages, without parts of the URL that may be secret."""
        self._client_id = client_id
        self._client_secret = client_secret
        self._form = {"grant_type": "client_credentials"} | ({"scope": scope} if scope else {})
        self._header_urlencode = header_urlencode
        self._cache = TokenCache(settings)
        self._fetch: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Fetch tokens on schedule, forever."""
        loop = asyncio.get_running_loop()
        while True:
            if self._cache.wants_refresh(loop.time()):
                await self._refresh()
            await asyncio.sleep(max(0.01, self._cache.next_refresh(loop.time()) - loop.time()))

    async def current(self) -> str:
        """Return the current token, or wait for the one that is being fetched.

        Raises TokenUnavailable: at once if a fetch failed and the next one is not due, so that the
        endpoint gets no more requests than `run` makes, however many clients connect.
        """
        loop = asyncio.get_running_loop()
        if (token := self._cache.token(loop.time())) is not None:
            return token
        is_fetching = self._fetch is not None and not self._fetch.done()
        if is_fetching or self._cache.wants_refresh(loop.time()):
            await self._refresh()
        if (token := self._cache.token(loop.time())) is None:
            reason = self._cache.last_error or "no token was requested yet"
            raise TokenUnavailable(f"no token from {self._name}: {reason}")
        return token

    @property
    def expires_at(self) -> float | None:
        """Expiry of the last token in Unix time; None if unknown, or before the first token."""
        return self._cache.expires_at

    @property
    def refresh_failures(self) -> int:
        """Number of requests since the start that failed, or had an invalid response."""
        return self._cache.refresh_failures

    async def _refresh(self) -> None:
        """Fetch a token; concurrent calls share one attempt."""
        if self._fetch is None or self._fetch.done():
            self._fetch = asyncio.get_running_loop().create_task(self._attempt())
        await asyncio.shield(self._fetch)

    async def _attempt(self) -> None:
        known_error = self._cache.last_error
        await self._ask()
        error = self._cache.last_error
        if error is not None and known_error is None:
            log.warning(
                "Token endpoint %s: %s; the current token is used until it expires",
                self._name,
                error,
            )
        elif error is None and known_error is not None:
            log.info("Token endpoint %s: issues tokens again", self._name)

    async def _ask(self) -> None:
        loop = asyncio.get_running_loop()
        cache, secrets = self._cache, list[str]()
        try:
            async with asyncio.timeout(FETCH_TIMEOUT):
                credentials = await self._credentials(secrets)
                # Taken before the request: the lifetime then never seems longer than it is.
                now, wall_now = loop.time(), time.time()
                status, answer = await self._post(credentials)
        except TimeoutError:
            cache.failed(f"no answer within {FETCH_TIMEOUT:g} seconds", loop.time())
        except TokenUnavailable as error:
            cache.failed(error.reason, loop.time())
        except Exception as error:  # any network failure leaves the old token in use
            text = fit_for_log(str(error), secrets)
            cache.failed(f"{type(error).__name__}: {text}", loop.time())
        else:
            if status in (200, 201):  # RFC 6749 section 5.1 has 200 only; Kafka accepts both
                jitter = random.random()  # noqa: S311 - spreads requests, is no secret
                cache.loaded(answer, now=now, wall_now=wall_now, jitter=jitter)
            else:
                refused = 300 <= status < 500 and status not in _TRANSIENT
                text = fit_for_log(_refusal(status, answer), secrets)
                cache.failed(text, loop.time(), refused=refused)

    async def _credentials(self, secrets: list[str]) -> str:
        """Return the credentials of HTTP Basic; add the values that must not be logged to
        `secrets`."""
        try:
            secret = await asyncio.to_thread(self._client_secret)
            credentials = self._basic(secret)
        except OSError as error:
            raise TokenUnavailable(f"the client secret cannot be read: {error.strerror}") from None
        except UnicodeError:
            raise TokenUnavailable("the client secret is not text") from None
        except ValueError as error:
            raise TokenUnavailable(f"no client secret: {error}") from None
        secrets += [secret, quote_plus(secret), credentials]
        return credentials

    def _basic(self, secret: str) -> str:
        if not secret:
            raise ValueError("it is empty")
        pair = [self._client_id, secret]
        if self._header_urlencode:
            pair = [quote_plus(part) for part in pair]
        # The alphabet with + and / (RFC 7617 section 2, RFC 4648 section 4).
        return base64.b64encode(":".join(pair).encode()).decode()

    async def _post(self, credentials: str) -> tuple[int, bytes]:
        headers = {"Accept": "application/json", "Authorization": f"Basic {credentials}"}
        return await ask(
            "POST", self._url, max_bytes=MAX_ANSWER_BYTES, headers=headers, form=self._form
        )


def _refusal(status: int, answer: bytes) -> str:
    reason = None if 300 <= status < 400 else read_refusal(answer)
    return f"{describe_status(status)}: {reason}" if reason else describe_status(status)
