"""HTTPS server of the webhook: reviews for the API server, probes for the kubelet."""

import asyncio
import contextlib
import datetime
import logging
import signal
import ssl
import tempfile
from collections.abc import Callable, Coroutine
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from aiohttp import web

from proxy.errors import ProxyError
from proxy.file_signature import signature_of
from proxy.kubernetes.admission import NotAReviewError, answer
from proxy.kubernetes.http_server import start_http
from proxy.kubernetes.own_certificate import OwnCertificate
from proxy.kubernetes.template import Template
from proxy.net.sockets import listen

log = logging.getLogger(__name__)

LARGEST_REVIEW: Final = 4 << 20
"""Largest request, in bytes: an object is smaller than the 1.5 MiB that etcd takes, and a review
has it once."""
READ_SECONDS: Final = 10.0
"""Seconds in which a request must be there: the API server waits for no longer itself."""
MAX_READING: Final = 16
"""Largest number of requests that are read at a time: more wait for their turn."""
LOOK_EVERY: Final = 10.0
"""Seconds between two looks at files of a certificate."""
RENEW_EVERY: Final = 60.0
"""Seconds between two looks at the certificate that the webhook makes itself."""
RETRY_EVERY: Final = 5.0
"""Seconds between two attempts while there is no certificate."""


@dataclass(frozen=True, slots=True)
class Files:
    """Certificate and key in files, that cert-manager or somebody else renews."""

    certificate: Path
    key: Path


class Tls:
    """TLS context, whose certificate may be replaced while the server runs."""

    def __init__(self) -> None:
        self.context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        self.context.minimum_version = ssl.TLSVersion.TLSv1_2
        self.is_loaded = False
        """Whether there is a certificate: without one every handshake fails."""

    def load(self, certificate: Path, key: Path) -> None:
        """Take up a certificate for connections that come after; raises OSError."""
        ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certificate, key)  # as a whole
        self.context.load_cert_chain(certificate, key)
        self.is_loaded = True

    def load_pem(self, certificate: bytes, key: bytes) -> None:
        """Take up a certificate that is in no file: OpenSSL reads files alone."""
        with tempfile.TemporaryDirectory() as directory:
            paths = Path(directory, "tls.crt"), Path(directory, "tls.key")
            for path, content in zip(paths, (certificate, key), strict=True):
                path.touch(0o600)
                path.write_bytes(content)
            self.load(*paths)


async def follow_files(tls: Tls, files: Files) -> None:
    """Take up the files again whenever they are replaced, for ever."""
    seen = None
    while True:
        signatures = signature_of(files.certificate), signature_of(files.key)
        if signatures != seen:
            try:
                tls.load(files.certificate, files.key)
            except OSError as error:  # the old one stays; one file may have come before the other
                log.warning("the certificate %s cannot be used: %s", files.certificate, error)
            else:
                seen = signatures
        await asyncio.sleep(LOOK_EVERY if tls.is_loaded else RETRY_EVERY)


async def follow_own(tls: Tls, own: OwnCertificate) -> None:
    """Make and renew the certificate, and let the API server believe it, for ever."""
    while True:
        wait = RENEW_EVERY
        try:
            certificate = await own.current(datetime.datetime.now(datetime.UTC))  # noqa: TID251
            await own.publish(certificate)  # first: what it is asked with must be trusted by then
            tls.load_pem(certificate.certificate, certificate.key)
        except (ProxyError, OSError) as error:
            log.warning("no certificate yet, or no API server to give it to: %s", error)
            wait = RETRY_EVERY
        await asyncio.sleep(wait)


def reviews_app(template: Template) -> web.Application:
    """Build the application for the API server; everything but `/mutate` is 404."""
    reading = asyncio.Semaphore(MAX_READING)

    async def mutate(request: web.Request) -> web.Response:
        async with reading:
            try:
                async with asyncio.timeout(READ_SECONDS):
                    body = await request.read()
            except TimeoutError:
                return web.Response(status=408)
        try:
            response = answer(body, template)
        except NotAReviewError:
            return web.Response(status=400, text="not an AdmissionReview of admission.k8s.io/v1\n")
        return web.Response(body=response, content_type="application/json")

    app = web.Application(client_max_size=LARGEST_REVIEW)
    app.router.add_post("/mutate", mutate)
    return app


def probes_app(is_ready: Callable[[], bool]) -> web.Application:
    """Build the application for the kubelet: `/healthz` and `/readyz`."""

    async def healthz(_request: web.Request) -> web.Response:
        return web.Response(text="ok\n")

    async def readyz(_request: web.Request) -> web.Response:
        if is_ready():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="no certificate yet\n")

    app = web.Application(client_max_size=1)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/readyz", readyz)
    return app


async def serve(
    template: Template,
    host: str,
    ports: tuple[int, int],
    follow: Callable[[Tls], Coroutine[None, None, None]],
) -> None:
    """Serve until SIGTERM: reviews by TLS at the first port, probes without at the second.

    Raises ConfigError if a port cannot be listened on.
    """
    tls = Tls()
    stopping = asyncio.Event()
    for number in (signal.SIGTERM, signal.SIGINT):
        asyncio.get_running_loop().add_signal_handler(number, stopping.set)
    for_reviews, for_probes = (listen(host, port) for port in ports)
    reviews = await start_http(reviews_app(template), for_reviews, tls=tls.context)
    probes = await start_http(probes_app(lambda: tls.is_loaded), for_probes)
    following = asyncio.create_task(follow(tls))
    # It ends by a mistake alone: a process that is started anew may do better.
    following.add_done_callback(lambda _: stopping.set())
    log.info("webhook on port %d, probes on port %d", *ports)
    await stopping.wait()
    following.cancel()
    await reviews.close()
    await probes.close()
    with contextlib.suppress(asyncio.CancelledError):
        await following
