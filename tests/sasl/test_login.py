"""The client's half of SASL, against Kafka's own answers and against our server."""

from contextlib import suppress
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from sasl.credentials import ScramMechanism
from sasl.login import (
    MAX_SALTED_PASSWORDS,
    ClientExchange,
    Derive,
    LoggedIn,
    Login,
    LoginError,
    OAuthBearerClient,
    PlainClient,
    SaltedPasswords,
    ScramClient,
    Send,
)
from sasl.messages import (
    MAX_MECHANISMS,
    MalformedMessage,
    authenticate_request,
    authenticate_response,
    authenticate_token,
    handshake_mechanism,
    handshake_request,
    handshake_response,
    read_authenticate_response,
    read_handshake_response,
)
from tests.support.sasl import NOW, challenge, scram_exchange

WIRE = Path(__file__).parent.parent / "proxy/wire/captured"
VERSIONS = range(3)
SHA_256 = ScramMechanism.SCRAM_SHA_256


def recorded(name: str, header: int = 4) -> bytes:
    """The body of a response that Kafka gave."""
    lines = (WIRE / f"{name}.hex").read_text().splitlines()
    return bytes.fromhex("".join(line for line in lines if not line.startswith("#")))[header:]


def in_handshake(exchange: ClientExchange, version: int = 2) -> Login:
    """A login whose mechanism was accepted."""
    login = Login(exchange, version)
    login.begin()
    login.answered(handshake_response(0, (exchange.mechanism,)))
    return login


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("token", [b"", b"x", b"y" * 200, b"z" * 20_000])
def test_what_we_ask_is_what_our_server_reads(version: int, token: bytes) -> None:
    assert authenticate_token(version, authenticate_request(version, token)) == token
    assert handshake_mechanism(handshake_request("SCRAM-SHA-256")) == "SCRAM-SHA-256"


@pytest.mark.parametrize("version", VERSIONS)
@pytest.mark.parametrize("message", ["who?", None])
def test_what_our_server_answers_is_what_we_read(version: int, message: str | None) -> None:
    body = authenticate_response(
        version,
        error_code=58,
        error_message=message,
        auth_bytes=b"t" * 300,
        session_lifetime_ms=5_000,
    )
    read = read_authenticate_response(version, body)
    assert (read.error_code, read.auth_bytes) == (58, b"t" * 300)
    assert read.error_message == (message or "")
    assert read.session_lifetime_ms == (5_000 if version else 0)


@pytest.mark.parametrize("version", VERSIONS)
def test_kafkas_own_answers(version: int) -> None:
    header = 5 if version >= 2 else 4
    read = read_authenticate_response(
        version, recorded(f"sasl_authenticate_v{version}_failed", header)
    )
    assert read.error_code == 58
    assert read.error_message.startswith("Authentication failed during authentication due to")
    read = read_authenticate_response(
        version, recorded(f"sasl_authenticate_v{version}_scram_first", header)
    )
    assert (read.error_code, read.session_lifetime_ms) == (0, 0)
    assert read.auth_bytes.startswith(b"r=")
    error_code, mechanisms = read_handshake_response(
        recorded("sasl_handshake_v1_unsupported_mechanism")
    )
    assert error_code == 33
    assert "SCRAM-SHA-256" in mechanisms


def test_mechanisms_are_read_up_to_a_bound() -> None:
    names = tuple(f"M{number}" for number in range(3 * MAX_MECHANISMS))
    assert read_handshake_response(handshake_response(33, names)) == (33, names[:MAX_MECHANISMS])


@pytest.mark.parametrize("body", [b"", b"\0", b"\0\0\0\0\0\1", b"\0\0\0\0\0\1\xff\xff"])
def test_a_handshake_that_ends_too_early(body: bytes) -> None:
    with pytest.raises(MalformedMessage):
        read_handshake_response(body)


@given(st.binary(max_size=100), st.sampled_from(VERSIONS))
def test_no_answer_breaks_the_reader(body: bytes, version: int) -> None:
    with suppress(MalformedMessage):
        _, mechanisms = read_handshake_response(body)
        assert len(mechanisms) <= len(body) // 2
    with suppress(MalformedMessage):
        assert read_authenticate_response(version, body).auth_bytes in body


class TestPlain:
    @pytest.mark.parametrize(("told", "lifetime_ms"), [(3_000, 3_000), (-5, 0)])
    def test_name_and_password_then_nothing(self, told: int, lifetime_ms: int) -> None:
        login = Login(PlainClient("ann", "pass,word"), 1)
        assert login.begin() == Send(17, 1, handshake_request("PLAIN"))
        assert login.answered(handshake_response(0, ("PLAIN",))) == Send(
            36, 1, authenticate_request(1, b"\0ann\0pass,word")
        )
        answer = authenticate_response(1, session_lifetime_ms=told)
        assert login.answered(answer) == LoggedIn(lifetime_ms)

    def test_a_server_that_goes_on_is_none(self) -> None:
        login = in_handshake(PlainClient("ann", "secret"))
        with pytest.raises(LoginError, match="challenge"):
            login.answered(authenticate_response(2, auth_bytes=b"more"))


class TestScram:
    def login(self, salted: SaltedPasswords | None = None) -> Login:
        return in_handshake(ScramClient(SHA_256, "alice", "secret", salted))

    def test_success_without_the_servers_proof_is_none(self) -> None:
        exchange = ScramClient(SHA_256, "alice", "secret")
        login = in_handshake(exchange)
        nonce = exchange.first().split(b"r=")[1]
        challenge = b"r=%smore,s=c2FsdA==,i=4096" % nonce
        derive = login.answered(authenticate_response(2, auth_bytes=challenge))
        assert isinstance(derive, Derive)
        assert login.derived(derive.work()).api_key == 36
        with pytest.raises(LoginError, match="no signature"):
            login.answered(authenticate_response(2, session_lifetime_ms=1))

    def test_what_is_remembered_of_passwords_is_bounded(self) -> None:
        """A server may show another salt each time."""
        salted = SaltedPasswords()
        for number in range(MAX_SALTED_PASSWORDS + 1):
            salted.derive(SHA_256, "secret", bytes([number + 1]), 1)
        assert salted.known(SHA_256, "secret", bytes([MAX_SALTED_PASSWORDS + 1]), 1) is not None
        assert salted.known(SHA_256, "secret", b"\1", 1) is None
        assert salted.known(SHA_256, "other", bytes([MAX_SALTED_PASSWORDS + 1]), 1) is None


class TestOAuthBearer:
    def test_a_refusal_takes_another_round(self) -> None:
        """RFC 7628 section 3.2.3: the client agrees, and then the error comes."""
        login = in_handshake(OAuthBearerClient("abc"))
        say = login.answered(authenticate_response(2, auth_bytes=b'{"status":"invalid_token"}'))
        assert say == Send(36, 2, authenticate_request(2, b"\1"))
        with pytest.raises(LoginError, match="expired") as caught:
            login.answered(authenticate_response(2, error_code=58, error_message="expired"))
        assert caught.value.error_code == 58

    def test_a_refusal_that_is_followed_by_success_is_a_refusal(self) -> None:
        login = in_handshake(OAuthBearerClient("abc"))
        login.answered(authenticate_response(2, auth_bytes=b"{}"))
        with pytest.raises(LoginError, match="refused"):
            login.answered(authenticate_response(2))


@pytest.mark.parametrize(("has", "asked"), [(0, 0), (1, 1), (2, 2), (7, 2)])
def test_the_version_is_the_highest_that_both_know(has: int, asked: int) -> None:
    login = Login(PlainClient("ann", "secret"), has)
    login.begin()
    say = login.answered(handshake_response(0, ("PLAIN",)))
    assert isinstance(say, Send)
    assert say.api_version == asked


def test_a_server_without_sasl_authenticate_is_not_asked() -> None:
    with pytest.raises(LoginError, match="SaslAuthenticate"):
        Login(PlainClient("ann", "secret"), -1).begin()


def test_a_servers_words_are_one_short_line_without_our_secret() -> None:
    """They go to the log."""

    def reason(words: str) -> str:
        login = in_handshake(PlainClient("ann", "pass,word"))
        with pytest.raises(LoginError) as caught:
            login.answered(authenticate_response(2, error_code=58, error_message=words))
        return caught.value.reason

    assert reason("a\nb\x1b[2J\u202e") == "a\\nb\\x1b[2J\\u202e"
    assert len(reason("x" * 10_000)) < 1_000
    assert "pass" not in reason("who sent PASS,WORD?")
    assert reason("") == "error 58"


def answered(server_first: bytes) -> bytes:
    client = ScramClient(mechanism=SHA_256, username="alice", password="secret", nonce="client")
    return client.final(server_first)


@pytest.mark.parametrize(
    "server_first",
    [
        b"",
        b"e=other-error",
        b"r=clientserver,s=,i=4096",
        b"r=clientserver,s=YQ==,i=0",
        b"r=clientserver,s=YQ==,i=4095",
        b"r=clientserver,s=YQ==,i=16385",
        b"r=clientserver,s=YQ==,i=999999999999999999999",
        b"r=clientserver,s=YR==,i=4096",
        b"r=client,s=YQ==,i=4096",
        b"r=other,s=YQ==,i=4096",
        b"m=x,r=clientserver,s=YQ==,i=4096",
        b"r=" + b"n" * 100_000,
        b"\xff",
    ],
)
def test_a_bad_server_gets_no_proof(server_first: bytes) -> None:
    """A false server asks for few iterations, to guess offline, or for many, to stall us."""
    with pytest.raises(LoginError):
        answered(server_first)
    login = in_handshake(ScramClient(SHA_256, "alice", "secret"))
    with pytest.raises(LoginError):
        login.answered(authenticate_response(2, auth_bytes=server_first))


@pytest.mark.parametrize(
    "server_final", [b"", b"e=invalid-proof", b"v=", b"v=AAAA", b"v=!", b"\xff"]
)
@pytest.mark.parametrize("proven", [True, False])
def test_a_server_that_does_not_know_the_verifier_is_noticed(
    proven: bool, server_final: bytes
) -> None:
    client = ScramClient(mechanism=SHA_256, username="alice", password="secret")
    if proven:
        client.final(challenge(scram_exchange().step(client.first(), NOW)))
    with pytest.raises(LoginError):
        client.verify(server_final)


@given(st.binary(max_size=60))
def test_arbitrary_bytes_of_a_server_raise_only_our_error(data: bytes) -> None:
    with pytest.raises(LoginError):
        answered(data)
