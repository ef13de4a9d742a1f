"""The webhook's server by TLS: certificates come, are renewed or broken; requests are large."""

import asyncio
import datetime
import io
import ssl
from contextlib import suppress
from pathlib import Path

import aiohttp
import pytest
from aiohttp import web

from proxy.kubernetes import server
from proxy.kubernetes.certificates import LIFETIME, RENEW_BEFORE, Certificate, make
from proxy.kubernetes.template import Images, load
from tests.support.kubernetes import shapes
from tests.support.processes import until

NOW = datetime.datetime.now(datetime.UTC)
NAMES = ["hook.system.svc", "hook.system.svc.cluster.local"]


class Served:
    """A server on loopback, asked by the name of its Service."""

    def __init__(self, tls: server.Tls) -> None:
        self.tls = tls
        self.port = 0

    async def __aenter__(self) -> "Served":
        app = server.make_app(load(Images()), lambda: self.tls.is_loaded)
        self._runner = web.AppRunner(app, access_log=None)
        await self._runner.setup()
        site = web.TCPSite(self._runner, "127.0.0.1", 0, ssl_context=self.tls.context)
        await site.start()
        self.port = self._runner.addresses[0][1]
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._runner.cleanup()

    async def ask(self, certificate: Certificate, body: bytes, path: str = "/mutate") -> int:
        """Return the status; raises an error of aiohttp if the certificate is not believed."""
        trust = ssl.create_default_context(cadata=certificate.authority.decode())
        url = f"https://127.0.0.1:{self.port}{path}"
        async with (
            aiohttp.ClientSession() as session,
            session.post(
                url, data=io.BytesIO(body), ssl=trust, server_hostname=NAMES[0]
            ) as response,
        ):
            await response.read()
            return response.status


def test_the_api_server_believes_the_certificate() -> None:
    async def scenario() -> None:
        tls, certificate = server.Tls(), make(NAMES, NOW)
        async with Served(tls) as served:
            with pytest.raises(aiohttp.ClientError):  # none yet
                await served.ask(certificate, b"")
            tls.load_pem(certificate.certificate, certificate.key)
            assert await served.ask(certificate, shapes.review(shapes.pod(shapes.EGRESS))) == 200
            assert await served.ask(certificate, b"nonsense") == 400
            assert await served.ask(certificate, b" " * (server.LARGEST_REVIEW + 1)) == 413
            assert await served.ask(certificate, b"", "/other") == 404
            with pytest.raises(aiohttp.ClientError):  # of another authority
                await served.ask(make(NAMES, NOW), b"")

    asyncio.run(scenario())


def test_files_are_taken_up_when_they_are_replaced(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As cert-manager replaces them; half of a pair, or nonsense, leaves the old one in use."""
    monkeypatch.setattr(server, "LOOK_EVERY", 0.01)
    monkeypatch.setattr(server, "RETRY_EVERY", 0.01)
    files = server.Files(tmp_path / "tls.crt", tmp_path / "tls.key")

    def write(certificate: Certificate) -> None:
        files.certificate.write_bytes(certificate.certificate)
        files.key.write_bytes(certificate.key)

    async def believed(served: Served, certificate: Certificate) -> bool:
        with suppress(aiohttp.ClientError):
            return await served.ask(certificate, b"nonsense") == 400
        return False

    async def scenario() -> None:
        tls, first, second = server.Tls(), make(NAMES, NOW), make(NAMES, NOW)
        following = asyncio.ensure_future(server.follow_files(tls, files))
        async with Served(tls) as served:
            assert not tls.is_loaded  # there are no files yet
            write(first)
            await until(lambda: tls.is_loaded)
            assert await believed(served, first)
            files.certificate.write_bytes(second.certificate)  # its key comes later
            await asyncio.sleep(0.1)
            assert await believed(served, first)
            files.key.write_bytes(second.key)
            async with asyncio.timeout(60):
                while not await believed(served, second):
                    pass
        following.cancel()

    asyncio.run(scenario())


def test_a_certificate_is_renewed_in_time() -> None:
    certificate = make(NAMES, NOW)
    ends_soon = NOW + LIFETIME - RENEW_BEFORE + datetime.timedelta(minutes=1)
    assert not certificate.is_to_be_renewed(NAMES, NOW)
    assert certificate.is_to_be_renewed(NAMES, ends_soon)
    assert certificate.is_to_be_renewed(["another.system.svc"], NOW)
    broken = Certificate(authority=b"", certificate=b"nonsense", key=b"")
    assert broken.is_to_be_renewed(NAMES, NOW)
