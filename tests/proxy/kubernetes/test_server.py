"""The webhook's server by TLS: certificates come, are renewed or broken; requests are large."""

import asyncio
import datetime
import io
import ssl
import subprocess
import sys
from contextlib import suppress
from pathlib import Path
from urllib.error import HTTPError
from urllib.request import urlopen

import aiohttp
import pytest

from proxy.kubernetes import server
from proxy.kubernetes.certificates import LIFETIME, RENEW_BEFORE, Certificate, make
from proxy.kubernetes.http_server import MAX_CONNECTIONS, start_http
from proxy.kubernetes.template import Images, load
from proxy.net.sockets import listen
from tests.support.kubernetes import shapes
from tests.support.processes import free_ports, until
from tests.support.proxy_process import eventually

NOW = datetime.datetime.now(datetime.UTC)
NAMES = ["hook.system.svc", "hook.system.svc.cluster.local"]


class Served:
    """A server on loopback, asked by the name of its Service."""

    def __init__(self, tls: server.Tls) -> None:
        self.tls = tls
        self.port = 0

    async def __aenter__(self) -> "Served":
        listening = listen("127.0.0.1", 0)
        self.port = listening.getsockname()[1]
        app = server.reviews_app(load(Images()))
        self._server = await start_http(app, listening, tls=self.tls.context)
        return self

    async def __aexit__(self, *_: object) -> None:
        await self._server.close()

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


def test_connections_count_from_the_accept() -> None:
    """Silent ones cost memory before a TLS handshake, and must not lock the API server out."""

    async def scenario() -> None:
        certificate = make(NAMES, NOW)
        tls = server.Tls()
        tls.load_pem(certificate.certificate, certificate.key)
        async with Served(tls) as served:
            silent = [
                await asyncio.open_connection("127.0.0.1", served.port)
                for _ in range(MAX_CONNECTIONS + 10)
            ]
            ended = [await reader.read() for reader, _ in silent[:10]]
            assert ended == [b""] * 10, "the oldest ones are closed"
            review = shapes.review(shapes.pod(shapes.EGRESS))
            assert await served.ask(certificate, review) == 200
            for _, writer in silent:
                writer.close()

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


def test_replicas_that_still_have_the_certificate_before_are_trusted() -> None:
    """A replica looks once a minute; until then it must not refuse the pods of a whole cluster."""
    first = make(NAMES, NOW)
    second = make(NAMES, NOW, before=first)
    third = make(NAMES, NOW, before=second)

    async def is_trusted(used: Certificate, published: Certificate) -> bool:
        tls = server.Tls()
        tls.load_pem(used.certificate, used.key)
        async with Served(tls) as served:
            try:
                return await served.ask(published, b"nonsense") == 400
            except aiohttp.ClientError:
                return False

    async def scenario() -> None:
        assert await is_trusted(first, second)
        assert await is_trusted(second, second)
        assert await is_trusted(second, third)
        assert not await is_trusted(first, third)  # there are never more than two

    asyncio.run(scenario())


def test_an_authority_that_cannot_be_read_is_not_kept() -> None:
    """The API server refuses a bundle that holds anything but certificates."""
    broken = Certificate(authority=b"nonsense", certificate=b"nonsense", key=b"")
    published = make(NAMES, NOW, before=broken).authority.decode()
    assert ssl.create_default_context(cadata=published).cert_store_stats()["x509"] == 1


def test_a_webhook_lives_from_its_certificate_to_sigterm(tmp_path: Path) -> None:
    """As a command: not ready without a certificate, ready with one, and SIGTERM ends it."""
    ports = free_ports(2)
    files = ["--certificate", str(tmp_path / "tls.crt"), "--key", str(tmp_path / "tls.key")]
    where = ["--host", "127.0.0.1", "--port", str(ports[0]), "--probe-port", str(ports[1])]
    command = [sys.executable, "-m", "proxy", "webhook", "serve", *files, *where]

    def probe(path: str) -> int:
        try:
            with urlopen(f"http://127.0.0.1:{ports[1]}{path}", timeout=10) as response:
                status: int = response.status
                return status
        except HTTPError as error:
            with error:
                return error.code
        except OSError:
            return 0

    process = subprocess.Popen(command, stderr=subprocess.PIPE)
    assert process.stderr is not None
    with process.stderr as log:
        try:
            eventually(lambda: probe("/healthz") == 200, "it is alive")
            assert probe("/readyz") == 503
            made = make(NAMES, NOW)
            (tmp_path / "tls.crt").write_bytes(made.certificate)
            (tmp_path / "tls.key").write_bytes(made.key)
            eventually(lambda: probe("/readyz") == 200, "it is ready")
            process.terminate()
            assert process.wait(60) == 0
        finally:
            process.kill()
            process.wait()
        assert b"Traceback" not in log.read()
