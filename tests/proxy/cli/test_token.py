"""`reauth-proxy token explain`: as a listener would judge it."""

import json
import time
from pathlib import Path

import pytest
import yaml

from proxy.config import Routing
from proxy.config.document import parse
from proxy.config.first_file import first_file
from tests.support.proxy_process import refusal, run
from tests.support.sasl import claims, document, rsa_key, token
from tests.support.settings import TOKENS


@pytest.fixture
def config(tmp_path: Path) -> Path:
    (tmp_path / "jwks.json").write_bytes(document(rsa_key().jwk()))
    settings = parse(first_file(Routing.SIDECAR).encode())
    settings["listeners"][0] |= TOKENS
    file = tmp_path / "proxy.yaml"
    file.write_text(yaml.safe_dump(settings))
    return file


def fresh(**changes: object) -> str:
    return token(claims(**{"iat": time.time(), "exp": time.time() + 300} | changes))


def test_a_good_token(config: Path) -> None:
    file = config.with_name("token")
    file.write_text(fresh() + "\n")
    done = run("token", "explain", file, "--config", config)
    assert (done.exit_code, done.stderr) == (0, "")
    head, *parts = [line.split()[0] for line in done.stdout.splitlines()]
    assert head == "PART"
    assert parts == [
        *["form", "alg", "kid", "signature", "iat", "nbf", "exp", "iss", "aud", "sub", "scope"]
    ]
    assert file.read_text().strip() not in done.output


def test_a_bad_token_by_stdin_and_escaped(config: Path) -> None:
    text = fresh(aud="other\x1b[2J")
    done = run("token", "explain", "-", "--config", config, stdin=f"Bearer {text}\n")
    assert done.exit_code == 1
    assert done.stderr == "reauth-proxy: listener clients refuses the token: aud\n"
    assert "\x1b" not in done.stdout
    assert "expected is kafka" in done.stdout
    told = run("token", "explain", "-", "--config", config, "-o", "json", stdin=text)
    wrong = [one["part"] for one in json.loads(told.stdout) if not one["ok"]]
    assert wrong == ["aud"]


def test_keys_that_cannot_be_read_are_said(config: Path) -> None:
    settings = yaml.safe_load(config.read_text())
    settings["listeners"][0]["sasl.oauthbearer.jwks.endpoint.url"] = "http://127.0.0.1:1/"
    config.write_text(yaml.safe_dump(settings))
    told = refusal("token", "explain", "-", "--config", config, status=1, stdin=fresh())
    assert "the signing keys cannot be read" in told
    assert "there are no keys" in told


def test_the_listener_must_be_known(config: Path) -> None:
    asked = ("token", "explain", "-", "--config", config)
    told = refusal(*asked, "--listener", "x", stdin=fresh())
    assert told == "reauth-proxy: give --listener: listeners with OAUTHBEARER are clients"
    refusal(*asked)
    refusal("token", "explain", config.with_name("none"), "--config", config)
