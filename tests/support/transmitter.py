"""A transmitter of security event tokens, as RFC 8936 and the Shared Signals Framework have it."""

import json
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from itertools import islice
from typing import Any

from aiohttp import web
from aiohttp.test_utils import TestServer

from tests.support.sasl import Key, rsa_key, token

CAEP = "https://schemas.openid.net/secevent/caep/event-type/"
RISC = "https://schemas.openid.net/secevent/risc/event-type/"
REVOKED = f"{CAEP}session-revoked"
ALICE = {"format": "iss_sub", "iss": "https://issuer.test", "sub": "alice"}


def signal(
    jti: str | None,
    at: float,
    *,
    event: str = REVOKED,
    subject: object = ALICE,
    details: object = None,
    key: Key | None = None,
    typ: str | None = "secevent+jwt",
    **changes: object,
) -> str:
    """A signed SET that was issued at a Unix time; pass None to leave a claim out."""
    claims = {
        "iss": "https://idp.test",
        "aud": "kafka-proxies",
        "jti": jti,
        "iat": int(at),
        "sub_id": subject,
        "events": {event: {} if details is None else details},
    } | changes
    kept = {name: value for name, value in claims.items() if value is not None}
    return token(kept, key or rsa_key(), typ=typ)


class Transmitter:
    """A stream: SETs are sent until they are acknowledged or refused."""

    def __init__(self) -> None:
        self.sets: dict[str, object] = {}
        self.acknowledged: list[str] = []
        self.errors: dict[str, dict[str, str]] = {}
        self.requests: list[dict[str, Any]] = []
        self.authorizations: list[str | None] = []
        self.status, self.body = 200, b""
        """Status, and a body in place of the right one."""
        self.obeys = True
        """False if it ignores `maxEvents`."""
        self.url = ""

    async def answer(self, request: web.Request) -> web.Response:
        assert request.content_type == "application/json"
        asked = json.loads(await request.read())
        self.requests.append(asked)
        self.authorizations.append(request.headers.get("Authorization"))
        if self.status != 200 or self.body:
            return web.Response(status=self.status, body=self.body)
        self.acknowledged += asked.get("ack", [])
        self.errors |= asked.get("setErrs", {})
        for jti in (*asked.get("ack", ()), *asked.get("setErrs", ())):
            self.sets.pop(jti, None)
        count = asked["maxEvents"] if self.obeys else len(self.sets)
        given = dict(islice(self.sets.items(), count))
        return web.json_response({"sets": given, "moreAvailable": len(self.sets) > count})


@asynccontextmanager
async def transmitting() -> AsyncIterator[Transmitter]:
    one, app = Transmitter(), web.Application()
    app.router.add_post("/poll", one.answer)
    async with TestServer(app) as server:
        one.url = f"{server.make_url('/poll')}?secret"
        yield one
