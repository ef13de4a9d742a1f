"""What is said where there is no SASL: programs for one connection, like those of `programs_*`."""

import struct
from collections.abc import Callable, Mapping

from tests.support.kafka.sasl_differential.transcript import (
    SASL_AUTHENTICATE,
    SASL_HANDSHAKE,
    Actor,
)
from tests.support.kafka.wire_client import API_VERSIONS
from tests.support.messages import request_body


def _handshakes(actor: Actor) -> None:
    for mechanism in ("SCRAM-SHA-256", "OAUTHBEARER", "NO-SUCH", ""):
        for version in (0, 1):
            actor.handshake(mechanism, version)
    actor.metadata()


def _tokens(actor: Actor) -> None:
    for version in (0, 1, 2):
        actor.authenticate(b"n,,n=alice,r=nonce", version)
    actor.handshake("SCRAM-SHA-256")
    actor.authenticate(b"n,,n=alice,r=nonce")
    actor.metadata()


def _raw_token(actor: Actor) -> None:
    actor.handshake("SCRAM-SHA-256", 0)
    actor.token(b"n,,n=alice,r=nonce")
    actor.ends()


def _a_handshake_too_new(actor: Actor) -> None:
    actor.handshake("SCRAM-SHA-256", 2)
    actor.ends()


def _a_token_too_new(actor: Actor) -> None:
    actor.authenticate(b"n,,n=alice,r=nonce", 3)
    actor.ends()


def _a_handshake_cut_short(actor: Actor) -> None:
    actor.ask(SASL_HANDSHAKE, 1, b"\0\x20SCRAM")
    actor.ends()


def _a_token_cut_short(actor: Actor) -> None:
    actor.ask(SASL_AUTHENTICATE, 1, b"\0\0\0\x20n,,")
    actor.ends()


def _metadata_at_once(actor: Actor) -> None:
    actor.metadata()
    actor.api_versions(3)
    actor.metadata()


def _api_versions(actor: Actor) -> None:
    for version in (0, 1, 2, 3, 4, 0):
        actor.api_versions(version)
    actor.api_versions(99)
    actor.api_versions(3)
    for name in ("", "my client"):
        fields = {"client_software_name": name, "client_software_version": "1"}
        actor.api_versions(3, body=request_body(API_VERSIONS, 3, **fields))
    actor.metadata()


def _an_api_that_is_none(actor: Actor) -> None:
    actor.send(4_711, 0, b"", label="API 4711", flexible=False)
    actor.ends()


def _a_frame_too_long(actor: Actor) -> None:
    actor.raw(struct.pack(">i", 104_857_601) + b"\0\3\0\1", "a frame of 104,857,601 bytes")
    actor.ends()


def _half_a_frame(actor: Actor) -> None:
    actor.raw(struct.pack(">i", 100) + b"\0\3", "half a frame")
    actor.client.finish_sending()
    actor.ends()


CONVERSATIONS: Mapping[str, Callable[[Actor], None]] = {
    act.__name__.strip("_"): act
    for act in (
        *(_handshakes, _tokens, _raw_token, _a_handshake_too_new, _a_token_too_new),
        *(_a_handshake_cut_short, _a_token_cut_short, _metadata_at_once, _api_versions),
        *(_an_api_that_is_none, _a_frame_too_long, _half_a_frame),
    )
}
