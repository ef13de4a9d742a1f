"""Text form of SCRAM verifiers, as Kafka kept them in ZooKeeper (`ScramCredentialUtils`).

    salt=…,stored_key=…,server_key=…,iterations=8192

The first three are base64. Verifiers of an old cluster can be imported as they are.
"""

import base64
import binascii
import re
from typing import Final

from sasl.credentials import ScramCredential, ScramMechanism

MAX_STORED_ITERATIONS: Final = 2**31 - 1
"""Maximum number of iterations: an INT32 in DescribeUserScramCredentials (KIP-554)."""

_FORM: Final = re.compile(
    r"salt=([^,=]+={0,2}),stored_key=([^,=]+={0,2}),server_key=([^,=]+={0,2}),iterations=(\d{1,10})",
    re.ASCII,
)


class NoVerifier(ValueError):
    """The text is not a verifier; the message says why, without quoting it."""


def written(verifier: ScramCredential) -> str:
    """Return a verifier's text. It suffices to guess the password offline, so it is to be kept
    secret."""
    keys = (verifier.salt, verifier.stored_key, verifier.server_key)
    salt, stored_key, server_key = (base64.b64encode(each).decode() for each in keys)
    return (
        f"salt={salt},stored_key={stored_key},server_key={server_key}"
        f",iterations={verifier.iterations}"
    )


def read(mechanism: ScramMechanism, text: str) -> ScramCredential:
    """Parse a verifier's text. Raises NoVerifier."""
    form = _FORM.fullmatch(text)
    if form is None:
        raise NoVerifier("must be salt=…,stored_key=…,server_key=…,iterations=…")
    salt, stored_key, server_key = (_decoded(each) for each in form.groups()[:3])
    if {len(stored_key), len(server_key)} != {mechanism.key_bytes}:
        raise NoVerifier(f"the keys of {mechanism.value} have {mechanism.key_bytes} bytes")
    iterations = int(form[4])
    if iterations > MAX_STORED_ITERATIONS:
        raise NoVerifier(f"iterations must be at most {MAX_STORED_ITERATIONS}")
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
