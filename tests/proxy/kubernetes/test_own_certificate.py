"""The certificate that the webhook makes itself, by an API server with its two objects."""

import asyncio
import base64
import copy
import datetime
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest
from aiohttp import web

from proxy.kubernetes.api import Api, ApiError
from proxy.kubernetes.certificates import LIFETIME, RENEW_BEFORE, Certificate, make
from proxy.kubernetes.http_server import start_http
from proxy.kubernetes.own_certificate import OwnCertificate
from proxy.net.sockets import listen
from tests.support.certificates import Authority

NOW = datetime.datetime.now(datetime.UTC)
SOON = NOW + LIFETIME - RENEW_BEFORE + datetime.timedelta(minutes=1)
NAMES = ["hook.system.svc", "hook.system.svc.cluster.local"]
SECRET = "/api/v1/namespaces/system/secrets/hook-tls"
CONFIGURATION = "/apis/admissionregistration.k8s.io/v1/mutatingwebhookconfigurations/hooks"
TOKEN = "token of the service account"


class ApiServer:
    """Two objects; a Secret is replaced by whoever has seen its last version alone."""

    def __init__(self) -> None:
        self.objects: dict[str, Any] = {
            SECRET: {"metadata": {"name": "hook-tls", "resourceVersion": "1"}},
            CONFIGURATION: {"webhooks": [{"clientConfig": {}}, {"clientConfig": {}}]},
        }
        self.changes: list[str] = []
        """Methods of the requests that changed something."""

    async def answer(self, request: web.Request) -> web.Response:
        """Answer any request."""
        if request.headers["Authorization"] != f"Bearer {TOKEN}":
            return web.Response(status=401)
        found = self.objects.get(request.path)
        if found is None:
            return web.Response(status=404)
        if request.method == "GET":
            return web.json_response(found)
        body = await request.json()
        if request.method == "PUT":
            version = found["metadata"]["resourceVersion"]
            if body["metadata"]["resourceVersion"] != version:
                return web.Response(status=409)
            body["metadata"]["resourceVersion"] = str(int(version) + 1)
            self.objects[request.path] = body
        else:
            assert request.content_type == "application/json-patch+json"
            for one in body:
                _, number, _, key = one["path"].strip("/").split("/")
                found["webhooks"][int(number)]["clientConfig"][key] = one["value"]
        self.changes.append(request.method)
        return web.json_response(self.objects[request.path])

    def bundles(self) -> list[bytes | None]:
        """The authorities that the API server believes the webhooks by."""
        configs = [one["clientConfig"] for one in self.objects[CONFIGURATION]["webhooks"]]
        return [base64.b64decode(one["caBundle"]) if one else None for one in configs]


Scenario = Callable[[ApiServer, OwnCertificate], Awaitable[None]]


@asynccontextmanager
async def running(directory: Path, server: ApiServer) -> AsyncIterator[OwnCertificate]:
    authority = Authority()
    issued = authority.issue()
    for name, content in (("tls.crt", issued.certificate), ("tls.key", issued.key)):
        (directory / name).write_bytes(content)
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(directory / "tls.crt", directory / "tls.key")
    (directory / "ca.crt").write_bytes(authority.certificate)
    (directory / "token").write_text(f"{TOKEN}\n")
    (directory / "namespace").write_text("system\n")
    app = web.Application()
    app.router.add_route("*", "/{path:.*}", server.answer)
    listening = listen("127.0.0.1", 0)
    port = listening.getsockname()[1]
    http = await start_http(app, listening, tls=context)
    where = {"KUBERNETES_SERVICE_HOST": "127.0.0.1", "KUBERNETES_SERVICE_PORT": str(port)}
    api = Api(where, directory)
    yield OwnCertificate(api, secret="hook-tls", service="hook", webhook="hooks")
    await http.close()


@pytest.fixture
def run(tmp_path: Path) -> Callable[[Scenario], None]:
    """Runs a scenario with an API server of its own."""

    def run(scenario: Scenario) -> None:
        async def whole() -> None:
            server = ApiServer()
            async with running(tmp_path, server) as own:
                await scenario(server, own)

        asyncio.run(whole())

    return run


def test_replicas_have_one_certificate(run: Callable[[Scenario], None]) -> None:
    """The first makes it, at once with others or not; what is there is taken, and told once."""

    async def scenario(server: ApiServer, own: OwnCertificate) -> None:
        first, second = await asyncio.gather(own.current(NOW), own.current(NOW))
        assert first == second == await own.current(NOW)
        assert not first.is_to_be_renewed(NAMES, NOW)
        assert server.bundles() == [None, None]
        for _ in range(2):
            await own.publish(first)
        assert server.bundles() == [first.authority] * 2
        assert server.changes == ["PUT", "PATCH"]

    run(scenario)


def test_it_is_renewed_with_its_authority(run: Callable[[Scenario], None]) -> None:
    async def scenario(server: ApiServer, own: OwnCertificate) -> None:
        await own.publish(await own.current(NOW))
        renewed = await own.current(SOON)
        assert renewed == await own.current(SOON)
        await own.publish(renewed)
        assert server.bundles() == [renewed.authority] * 2

    run(scenario)


@pytest.mark.parametrize("field", ["ca.crt", "tls.crt", "tls.key"])
@pytest.mark.parametrize("foreign", [b"nonsense", None])
def test_a_secret_that_somebody_spoilt_is_made_anew(
    run: Callable[[Scenario], None], field: str, foreign: bytes | None
) -> None:
    """Nonsense, or a part of another certificate: nobody would believe the webhook any more."""
    other = make(NAMES, NOW)
    parts = {"ca.crt": other.authority, "tls.crt": other.certificate, "tls.key": other.key}

    async def scenario(server: ApiServer, own: OwnCertificate) -> None:
        await own.current(NOW)
        data = server.objects[SECRET]["data"]
        data[field] = base64.b64encode(foreign or parts[field]).decode()
        spoilt = copy.deepcopy(data)
        mended = await own.current(NOW)
        assert not mended.is_to_be_renewed(NAMES, NOW)
        assert server.objects[SECRET]["data"] != spoilt

    run(scenario)


def test_what_is_missing_is_said(run: Callable[[Scenario], None]) -> None:
    """A Secret that was removed is an error; a configuration without webhooks needs nothing."""

    async def scenario(server: ApiServer, own: OwnCertificate) -> None:
        server.objects[CONFIGURATION] = {}
        await own.publish(Certificate(authority=b"", certificate=b"", key=b""))
        assert server.changes == []
        del server.objects[SECRET]
        with pytest.raises(ApiError, match=f"answers GET {SECRET} with 404"):
            await own.current(NOW)

    run(scenario)


def test_outside_of_a_pod_there_is_no_account(tmp_path: Path) -> None:
    for environment in ({}, {"KUBERNETES_SERVICE_HOST": "::1"}):
        with pytest.raises(ApiError, match="no service account here"):
            Api(environment, tmp_path)
