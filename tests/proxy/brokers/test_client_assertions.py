"""Assertions in place of a client secret, at a token endpoint that verifies them."""

import asyncio
import json
import time
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import jwt
import pytest
from cryptography.hazmat.primitives.serialization import (
    BestAvailableEncryption,
    Encoding,
    NoEncryption,
    PrivateFormat,
)

from proxy.brokers.token_source import RenewedTokens
from proxy.config.security import JWT_BEARER
from proxy.errors import ConfigError
from tests.support.sasl import Key, ec_key, rsa_key
from tests.support.upstream import provided_by, providing, why_none

MADE = {
    "private_key_file": "key.pem",
    "claim_aud": "https://idp.test",
    "claim_iss": "gate",
    "claim_sub": "gate",
}


def write(path: Path, key: Key, passphrase: bytes | None = None) -> None:
    encryption = NoEncryption() if passphrase is None else BestAvailableEncryption(passphrase)
    path.write_bytes(key.private.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption))


@pytest.fixture(autouse=True)
def _files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write(tmp_path / "key.pem", rsa_key())
    (tmp_path / "assertion").write_text("e30.e30.c2ln\n")


def asserting(url: str, assertion: dict[str, Any], **more: Any) -> RenewedTokens:
    settings = {f"oauthbearer_assertion_{key}": value for key, value in assertion.items()}
    return provided_by(oauthbearer_token_endpoint_url=url, **settings, **more)


def asked(assertion: dict[str, Any], **more: Any) -> dict[str, str]:
    """The fields of a request, which has no secret in its header."""

    async def run() -> dict[str, str]:
        async with providing() as (provider, url):
            assert await asserting(url, assertion, **more).current() == "token-1"
            (one,) = provider.asked
            assert "Authorization" not in one.headers
            return {name: value for name, (value,) in parse_qs(one.body).items()}

    return asyncio.run(run())


def test_a_file_proves_who_the_client_is() -> None:
    fields = asked(
        {"file": "assertion"},
        oauthbearer_client_credentials_client_id="gate",
        oauthbearer_scope="kafka",
    )
    assert fields == {
        "grant_type": "client_credentials",
        "client_assertion_type": "urn:ietf:params:oauth:client-assertion-type:jwt-bearer",
        "client_assertion": "e30.e30.c2ln",
        "client_id": "gate",
        "scope": "kafka",
    }


def test_an_assertion_that_is_the_grant() -> None:
    fields = asked({"file": "assertion"}, oauthbearer_jwt_retriever_class=JWT_BEARER)
    grant = "urn:ietf:params:oauth:grant-type:jwt-bearer"
    assert fields == {"grant_type": grant, "assertion": "e30.e30.c2ln"}


@pytest.mark.parametrize("key", [rsa_key(), ec_key()], ids=["RS256", "ES256"])
def test_an_assertion_that_is_signed(key: Key, tmp_path: Path, monkeypatch: Any) -> None:
    monkeypatch.setenv("PASSPHRASE", "sesame")
    write(tmp_path / "key.pem", key, b"sesame")
    more = {"algorithm": key.algorithm, "private_key_passphrase": "env:PASSPHRASE"}
    token = asked(MADE | more | {"claim_jti_include": True})["client_assertion"]
    public = key.private.public_key()
    claims = jwt.decode(token, public, [key.algorithm], audience="https://idp.test", issuer="gate")
    now = time.time()
    assert claims["sub"] == "gate"
    assert claims["iat"] == pytest.approx(now, abs=60)
    assert (claims["exp"] - claims["iat"], claims["iat"] - claims["nbf"]) == (300, 60)
    assert len(claims["jti"]) == 36
    assert jwt.get_unverified_header(token) == {"alg": key.algorithm, "typ": "JWT"}


def test_a_template_overrides_the_settings_but_not_the_times(tmp_path: Path) -> None:
    template = {
        "header": {"kid": "k1", "alg": "none"},
        "payload": {"iss": "other", "tenant": 7, "exp": 1, "aud": ["a", "b"]},
    }
    (tmp_path / "template").write_text(json.dumps(template))
    made = MADE | {"template_file": "template", "claim_exp_seconds": 30, "claim_nbf_seconds": 0}
    token = asked(made)["client_assertion"]
    claims = jwt.decode(token, rsa_key().private.public_key(), ["RS256"], audience="a")
    times = {name: claims.pop(name) - claims["iat"] for name in ("exp", "nbf")}
    assert times == {"exp": 30, "nbf": 0}
    del claims["iat"]
    assert claims == {"iss": "other", "sub": "gate", "tenant": 7, "aud": ["a", "b"]}
    assert jwt.get_unverified_header(token)["kid"] == "k1"


@pytest.mark.parametrize(
    ("assertion", "files", "problem"),
    [
        ({"file": "gone"}, {}, "gone cannot be read: No such file"),
        ({"file": "assertion"}, {"assertion": "secret"}, "assertion holds no JWT"),
        ({"file": "assertion"}, {"assertion": "a.b.c d"}, "assertion holds no JWT"),
        (MADE, {"key.pem": "secret"}, "holds no private key in PEM without a password"),
        (MADE | {"algorithm": "ES256"}, {}, "must hold an EC key on P-256 for ES256"),
        (MADE | {"template_file": "t"}, {"t": "[]"}, "must be a JSON object with the objects"),
        (MADE | {"template_file": "t"}, {"t": '{"header": 1}'}, "must be a JSON object"),
        (MADE | {"template_file": "t"}, {"t": '{"payload": {"iss": 1}}'}, "has the wrong type"),
        (MADE | {"private_key_passphrase": "env:GONE"}, {}, "the environment has no GONE"),
        (MADE | {"private_key_passphrase": "file:gone"}, {}, "gone cannot be read"),
    ],
)
async def test_no_assertion_no_request(
    assertion: dict[str, Any], files: dict[str, str], problem: str, tmp_path: Path
) -> None:
    for name, content in files.items():
        (tmp_path / name).write_text(content)
    async with providing() as (provider, url):
        reason = await why_none(asserting(url, assertion))
        assert problem in reason
        assert "secret" not in reason
        assert provider.asked == []


async def test_an_endpoint_that_repeats_the_assertion() -> None:
    async with providing() as (provider, url):
        provider.status = 400
        provider.body = b'{"error": "invalid_client", "error_description": "e30.e30.c2ln"}'
        reason = await why_none(asserting(url, {"file": "assertion"}))
        assert "it repeats a secret" in reason
        assert "e30" not in reason


@pytest.mark.parametrize(
    ("assertion", "more", "problem"),
    [
        (MADE, {"oauthbearer_client_credentials_client_secret": "env:S"}, "client.secret: has no"),
        (MADE | {"file": "assertion"}, {}, "assertion.file: has no meaning with an assertion from"),
        (
            {"claim_iss": "gate"},
            {},
            "private.key.file: is required for an assertion from a private",
        ),
        ({}, {"oauthbearer_jwt_retriever_class": JWT_BEARER}, "assertion.file: is required for"),
        (MADE | {"algorithm": "HS256"}, {}, "must be 'RS256' or 'ES256', got 'HS256'"),
    ],
)
def test_settings_that_contradict_each_other(
    assertion: dict[str, Any], more: dict[str, Any], problem: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        asserting("https://idp.test/", assertion, **more)
    assert problem in str(caught.value)
