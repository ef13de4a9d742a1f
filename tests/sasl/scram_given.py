"""A client that logs in by SCRAM, and what it is told."""

from sasl.credentials import ScramMechanism
from sasl.mechanism import Challenge, Failure, FailureReason, Step, Success
from sasl.scram import ScramServerExchange
from sasl.scram_client import ScramClientExchange
from tests.sasl.given import NOW

SHA_256, SHA_512 = ScramMechanism
BAD_CREDENTIALS = Failure(reason=FailureReason.BAD_CREDENTIALS)


def challenge(step: Step) -> bytes:
    assert isinstance(step, Challenge), step
    return step.data


def login(
    exchange: ScramServerExchange,
    user: str = "alice",
    password: str = "secret",  # noqa: S107
    mechanism: ScramMechanism = SHA_256,
) -> Step:
    client = ScramClientExchange(mechanism=mechanism, username=user, password=password)
    final = client.final(challenge(exchange.step(client.first(), NOW)))
    step = exchange.step(final, NOW)
    if isinstance(step, Success):
        client.verify(step.data)
    return step
