"""A SCRAM client (RFC 5802), independent of the implementation under test."""

import base64
import hashlib
import hmac
from dataclasses import dataclass

#: The client's nonce in all tests, so that transcripts can identify the server's part.
NONCE = "rOprNGfwEbeRWgbNEkqO"

_HASH_NAMES = {"SCRAM-SHA-256": "sha256", "SCRAM-SHA-512": "sha512"}


def salted_password(mechanism: str, password: str, salt: bytes, iterations: int) -> bytes:
    """Hi() of RFC 5802 section 2.2."""
    return hashlib.pbkdf2_hmac(_HASH_NAMES[mechanism], password.encode(), salt, iterations)


def escaped(name: str) -> str:
    """saslname of RFC 5802 section 5.1."""
    return name.replace("=", "=3D").replace(",", "=2C")


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramClient:
    """A client whose messages can be altered by tests."""

    mechanism: str
    name: str
    password: str
    nonce: str = NONCE
    gs2_header: str = "n,,"
    extensions: str = ""
    """Text after the first message's nonce, including a leading comma."""

    def first_bare(self) -> str:
        """client-first-message-bare."""
        return f"n={escaped(self.name)},r={self.nonce}{self.extensions}"

    def first(self) -> bytes:
        """client-first-message."""
        return (self.gs2_header + self.first_bare()).encode()

    def answer(
        self, server_first: bytes, *, cbind: str | None = None, extension: str = ""
    ) -> "ScramFinal":
        """The final message and the expected signature of the server."""
        fields = dict(part.split("=", 1) for part in server_first.decode().split(","))
        salted = salted_password(
            self.mechanism, self.password, base64.b64decode(fields["s"]), int(fields["i"])
        )
        binding = base64.b64encode((self.gs2_header if cbind is None else cbind).encode()).decode()
        bare = f"c={binding},r={fields['r']}{extension}"
        signed = f"{self.first_bare()},{server_first.decode()},{bare}".encode()
        return ScramFinal(
            bare=bare,
            proof=self._proof(salted, signed),
            server_signature=self._mac(self._mac(salted, b"Server Key"), signed),
        )

    def _proof(self, salted: bytes, signed: bytes) -> bytes:
        client_key = self._mac(salted, b"Client Key")
        stored_key = hashlib.new(_HASH_NAMES[self.mechanism], client_key).digest()
        signature = self._mac(stored_key, signed)
        return bytes(a ^ b for a, b in zip(client_key, signature, strict=True))

    def _mac(self, key: bytes, text: bytes) -> bytes:
        return hmac.digest(key, text, _HASH_NAMES[self.mechanism])


@dataclass(frozen=True, slots=True, kw_only=True)
class ScramFinal:
    """client-final-message in its parts."""

    bare: str
    proof: bytes
    server_signature: bytes

    def message(self, form: str = "{bare},p={proof}") -> bytes:
        """Return the message's bytes; `tail` is the proof without its first three bytes."""
        proof = base64.b64encode(self.proof).decode()
        return form.format(bare=self.bare, proof=proof, tail=proof[4:]).encode()

    def verifies(self, server_final: bytes) -> bool:
        """Whether the server's signature is correct."""
        return server_final == b"v=" + base64.b64encode(self.server_signature)
