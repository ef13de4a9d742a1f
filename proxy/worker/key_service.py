"""Loader of a listener's signing keys: reads the JWKS when its `KeyCache` needs it."""

import asyncio
import logging
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from proxy.brokers.token_source import FileTokens, TokenUnavailable
from proxy.net.identity_provider import ask, describe_status, read_file, without_secrets
from sasl.jwks import MAX_DOCUMENT_BYTES, KeyCache
from sasl.untrusted import fit_for_log

log = logging.getLogger(__name__)

FETCH_TIMEOUT: Final = 10.0
"""Timeout of one attempt in seconds, which bounds a client's wait for an unknown key."""

_ACCEPT: Final = "application/jwk-set+json, application/json, */*;q=0.5"
"""Media types of a JWKS (RFC 7517 section 8.5.2): the API server of Kubernetes answers a request
that does not accept the first with 406."""


class KeyService:
    """Service that keeps a `KeyCache` fresh: on schedule, and when a token names an unknown key."""

    def __init__(
        self, cache: KeyCache, source: Path | str, authorization_file: Path | None = None
    ) -> None:
        """Read `source`, a file or an http(s) URL, into `cache`.

        `authorization_file` has a bearer token (RFC 6750) for the requests, and is read for each
        one; only with an https URL. None: requests have no token.

        Kafka's client follows redirects (`java.net.HttpURLConnection`); this one does not, for the
        reasons in `proxy/net/identity_provider.py`.
        """
        self.cache = cache
        self._source = source
        self._tokens = None if authorization_file is None else FileTokens(authorization_file)
        parts = urlsplit(source if isinstance(source, str) else "")
        self._name = without_secrets(source) if isinstance(source, str) else str(source)
        """The name of the source in the log."""
        self._secrets = tuple(filter(None, (parts.password, parts.query)))
        """Parts of the URL that may be secret, and that no error may repeat: `/readyz` shows
        errors."""
        self._fetch: asyncio.Task[None] | None = None
        self._are_too_old = False
        """True if it was logged that the keys are too old."""

    async def run(self) -> None:
        """Read the keys on schedule, for ever."""
        loop = asyncio.get_running_loop()
        while True:
            await self.refresh()
            await asyncio.sleep(max(0.01, self.cache.next_refresh(loop.time()) - loop.time()))

    async def refresh(self) -> None:
        """Read the keys now; concurrent calls share one attempt."""
        if self._fetch is None or self._fetch.done():
            self._fetch = asyncio.get_running_loop().create_task(self._read())
        await asyncio.shield(self._fetch)

    async def _read(self) -> None:
        loop = asyncio.get_running_loop()
        known_error = self.cache.last_error
        try:
            async with asyncio.timeout(FETCH_TIMEOUT):
                document = await self._document()
            self.cache.loaded(document, loop.time())
        except TimeoutError:
            self.cache.failed(f"no answer within {FETCH_TIMEOUT:g} seconds", loop.time())
        except (_Refused, TokenUnavailable) as error:
            self.cache.failed(str(error), loop.time())
        except Exception as error:  # whatever fails in the network, the old keys stay
            text = fit_for_log(str(error), self._secrets)
            self.cache.failed(f"{type(error).__name__}: {text}", loop.time())
        self._log_changes(known_error, loop.time())

    def _log_changes(self, known_error: str | None, now: float) -> None:
        """Log the result of an attempt if it differs from the one before."""
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
        """Return why no token can be verified now; None: tokens can be."""
        if self.cache.are_usable(now):
            return None
        age = self.cache.age_seconds(now)
        what = "were never read" if age is None else f"are too old, read {age:.0f} s ago"
        return f"signing keys {what}: {self.cache.last_error or 'no answer yet'}"

    async def _document(self) -> bytes:
        if isinstance(self._source, Path):
            return await asyncio.to_thread(read_file, self._source, MAX_DOCUMENT_BYTES)
        headers = {"Accept": _ACCEPT}
        if self._tokens is not None:
            headers["Authorization"] = f"Bearer {await self._tokens.current()}"
        status, body = await ask("GET", self._source, max_bytes=MAX_DOCUMENT_BYTES, headers=headers)
        if status != 200:
            raise _Refused(describe_status(status))
        return body


class _Refused(Exception):
    """The identity provider returned no document; the text gives its response."""
