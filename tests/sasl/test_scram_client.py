import pytest
from hypothesis import given
from hypothesis import strategies as st

from sasl.credentials import ScramMechanism
from sasl.mechanism import Challenge
from sasl.scram_client import ScramClientError, ScramClientExchange
from tests.support.sasl import NOW, scram_exchange

SHA_256 = ScramMechanism.SCRAM_SHA_256


def answered(server_first: bytes) -> bytes:
    client = ScramClientExchange(
        mechanism=SHA_256, username="alice", password="secret", nonce="client"
    )
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
        b"\xff",
    ],
)
def test_a_bad_server_gets_no_proof(server_first: bytes) -> None:
    """A false server asks for few iterations, to guess offline, or for many, to stall us."""
    with pytest.raises(ScramClientError):
        answered(server_first)


@pytest.mark.parametrize(
    "server_final", [b"", b"e=invalid-proof", b"v=", b"v=AAAA", b"v=!", b"\xff"]
)
def test_a_server_that_does_not_know_the_verifier_is_noticed(server_final: bytes) -> None:
    client = ScramClientExchange(mechanism=SHA_256, username="alice", password="secret")
    challenge = scram_exchange().step(client.first(), NOW)
    assert isinstance(challenge, Challenge)
    client.final(challenge.data)
    with pytest.raises(ScramClientError):
        client.verify(server_final)


def test_a_signature_before_the_proof_is_refused() -> None:
    client = ScramClientExchange(mechanism=SHA_256, username="alice", password="secret")
    with pytest.raises(ScramClientError):
        client.verify(b"v=AAAA")


@given(st.binary(max_size=60))
def test_arbitrary_bytes_of_a_server_raise_only_our_error(data: bytes) -> None:
    with pytest.raises(ScramClientError):
        answered(data)
