"""A verifier as text, in the form in which Kafka kept it in ZooKeeper (`ScramCredentialUtils`).

    salt=…,stored_key=…,server_key=…,iterations=8192

The first three are base64. What an old cluster has can be taken over as it is.
"""

import base64
import binascii
import re
from typing import Final

from sasl.credentials import ScramCredential, ScramMechanism

MAX_ITERATIONS: Final = 2**31 - 1
"""What DescribeUserScramCredentials can tell (KIP-554)."""

_FORM: Final = re.compile(
    r"salt=([^,=]+={0,2}),stored_key=([^,=]+={0,2}),server_key=([^,=]+={0,2}),iterations=(\d{1,10})",
    re.ASCII,
)


class NoVerifier(ValueError):
    """A text is no verifier; the message says why, without repeating it."""


def written(verifier: ScramCredential) -> str:
    """Return a verifier's text. It is no password, but enough to guess one offline."""
    keys = (verifier.salt, verifier.stored_key, verifier.server_key)
    salt, stored_key, server_key = (base64.b64encode(each).decode() for each in keys)
    return (
        f"salt={salt},stored_key={stored_key},server_key={server_key}"
        f",iterations={verifier.iterations}"
    )


def read(mechanism: ScramMechanism, text: str) -> ScramCredential:
    """Return the verifier that a text holds. Raises NoVerifier."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise NoVerifier("must be salt=…,stored_key=…,server_key=…,iterations=…")
    salt, stored_key, server_key = (_decoded(each) for each in form.groups()[:3])
    if {len(stored_key), len(server_key)} != {mechanism.key_bytes}:
        raise NoVerifier(f"the keys of {mechanism.value} have {mechanism.key_bytes} bytes")
    iterations = int(form[4])
    if iterations > MAX_ITERATIONS:
        raise NoVerifier(f"iterations must be at most {MAX_ITERATIONS}")
    try:
        return ScramCredential(
            salt=salt, stored_key=stored_key, server_key=server_key, iterations=iterations
        )
    except ValueError as error:
        raise NoVerifier(str(error)) from None


def _decoded(text: str) -> bytes:
    try:
        return base64.b64decode(text, validate=True)
    except binascii.Error:
        raise NoVerifier("salt and keys must be base64") from None
