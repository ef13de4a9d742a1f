"""Clients that brokers see as themselves, and the listeners that present them."""

import base64
from collections.abc import Mapping
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

from proxy.brokers.access import Access
from proxy.brokers.delegation_tokens import LIFETIME_MS
from proxy.config.listener import Listener
from proxy.wire.error_codes import ErrorCode
from sasl.identity import Identity
from sasl.states import Authenticated, Enforcement
from tests.support import messages
from tests.support.fake_broker import Peer
from tests.support.messages import written
from tests.support.settings import SCRAM, configured

ACCESS = Access(timeout_s=10, username="proxy")
BROKER = "127.0.0.1", 9092
CREATE, EXPIRE, DESCRIBE = 38, 40, 41


def client(principal: str) -> Authenticated:
    """The authentication of a client."""
    return Authenticated(
        identity=Identity(principal),
        mechanism="SCRAM-SHA-256",
        handshake_version=1,
        authenticate_version=2,
        enforcement=Enforcement.ENFORCE,
        authenticated_at=0.0,
        latency=0.0,
        session_lifetime_ms=0,
        credential_lifetime_ms=None,
        deadline=None,
        killed_after=None,
        reauthentications=0,
    )


def listener_with(directory: Path, way: str, given: Mapping[str, Any]) -> Listener:
    """A listener with this `upstream.identity`; `a_b` in `given` is `upstream.identity.a.b`."""
    listener = {
        **SCRAM,
        "upstream.identity": way,
        **{f"upstream.identity.{key.replace('_', '.')}": one for key, one in given.items()},
    }
    upstream = {
        "security.protocol": "SASL_PLAINTEXT",
        "sasl.mechanism": "PLAIN",
        "sasl.username": "proxy",
        "sasl.password": "env:PASSWORD",
    }
    return configured(directory, listener, upstream).listeners[0]


class Issuing(Peer):
    """A broker that creates tokens for everybody but eve, and knows them after some questions."""

    def __init__(self) -> None:
        super().__init__(passwords={"proxy": "secret"})
        self.versions |= {CREATE: (1, 3), EXPIRE: (1, 2), DESCRIBE: (1, 3)}
        self.handlers = {CREATE: self._create, EXPIRE: self._expire, DESCRIBE: self._describe}
        self.lifetime_ms = LIFETIME_MS
        self.issued: list[dict[str, Any]] = []
        self.learns = True
        self.created: list[Any] = []

    def _create(self, version: int, body: bytes) -> bytes:
        asked = messages.read_request(CREATE, version, body)
        self.created.append(asked)
        issued = datetime.fromtimestamp(1_900_000_000 + len(self.issued), UTC)
        ends = issued + timedelta(milliseconds=LIFETIME_MS)
        one = {
            "principal_type": "User",
            "principal_name": asked.owner_principal_name,
            "token_requester_principal_type": "User",
            "token_requester_principal_name": "proxy",
            "token_id": f"id,={len(self.issued)}",
            "hmac": bytes([len(self.issued)] * 64),
        }
        error = ErrorCode.NONE
        if asked.owner_principal_name == "eve":
            error = ErrorCode.DELEGATION_TOKEN_AUTHORIZATION_FAILED
        else:
            self.issued.append(one)
        names = "issue_timestamp", "expiry_timestamp", "max_timestamp"
        times = dict(zip(names, (issued, ends, ends), strict=True))
        body = written(messages.response(CREATE, version, error_code=error, **one | times))
        one |= {name: int(when.timestamp() * 1000) for name, when in times.items()}
        return body

    def _expire(self, version: int, body: bytes) -> bytes:
        asked = messages.read_request(EXPIRE, version, body)
        assert asked.expiry_time_period == timedelta(milliseconds=-1)
        kept = [one for one in self.issued if one["hmac"] != asked.hmac]
        is_new = len(kept) < len(self.issued)
        error = ErrorCode.NONE if is_new else ErrorCode.DELEGATION_TOKEN_NOT_FOUND
        self.issued = kept
        return written(messages.response(EXPIRE, version, error_code=error))

    def _describe(self, version: int, body: bytes) -> bytes:
        owners = messages.read_request(DESCRIBE, version, body).owners
        names = {owner.principal_name for owner in owners}
        assert self.passwords is not None
        asked = self.seen(DESCRIBE)
        known = [one for one in self.issued if one["principal_name"] in names]
        known = known if self.learns and asked > 3 else []
        for one in known:
            password = base64.b64encode(one["hmac"]).decode()
            self.passwords[one["token_id"].replace("=", "=3D").replace(",", "=2C")] = password
        return written(messages.response(DESCRIBE, version, tokens=known))
