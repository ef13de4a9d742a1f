"""Where the signing keys of a listener come from: reads the JWKS when its `KeyCache` wants it."""

import asyncio
import logging
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from sasl.jwks import MAX_DOCUMENT_BYTES, KeyCache
from sasl.told import fit_for_log

log = logging.getLogger(__name__)

FETCH_TIMEOUT: Final = 10.0
"""Seconds for one attempt; clients that wait for an unknown key wait at most so long."""


class KeyService:
    """Keeps a `KeyCache` fresh: on schedule, and when a token names a key that is not known."""

    def __init__(self, cache: KeyCache, source: Path | str) -> None:
        """Read `source`, a file or an http(s) URL, into `cache`."""
        self.cache = cache
        self._source = source
        self._name = str(source).rpartition("@")[2] if isinstance(source, str) else str(source)
        """For the log: without the password that a URL may hold."""
        parts = urlsplit(source) if isinstance(source, str) else urlsplit("")
        self._secrets = tuple(filter(None, (parts.password, parts.query)))
        """What may be secret in the URL, and stand in an error, which `/readyz` tells, too."""
        self._fetch: asyncio.Task[None] | None = None

    async def run(self) -> None:
        """Refresh for ever, on schedule."""
        loop = asyncio.get_running_loop()
        while True:
            await self.refresh()
            await asyncio.sleep(max(0.01, self.cache.next_refresh(loop.time()) - loop.time()))

    async def refresh(self) -> None:
        """Read the keys anew; those who ask meanwhile share the attempt under way."""
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
        except Exception as error:  # whatever the network does, the old keys stay
            told = fit_for_log(str(error), self._secrets)
            self.cache.failed(f"{type(error).__name__}: {told}", loop.time())
        if self.cache.last_error is not None and self.cache.last_error != known_error:
            log.warning("JWKS %s: %s", self._name, self.cache.last_error)
        elif self.cache.last_error is None and known_error is not None:
            log.info("JWKS %s: read again", self._name)

    async def _document(self) -> bytes:
        if isinstance(self._source, Path):
            return await asyncio.to_thread(_read_file, self._source)
        import aiohttp  # 12 MiB that a listener with a file never needs

        async with (
            aiohttp.ClientSession() as session,
            session.get(self._source, raise_for_status=True, max_redirects=3) as response,
        ):
            document = bytearray()
            async for chunk in response.content.iter_chunked(65_536):
                document += chunk
                if len(document) > MAX_DOCUMENT_BYTES:
                    break
            return bytes(document)


def _read_file(path: Path) -> bytes:
    with path.open("rb") as file:
        return file.read(MAX_DOCUMENT_BYTES + 1)
