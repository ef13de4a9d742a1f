"""Files of SCRAM users."""

import json
from pathlib import Path
from typing import Any

from sasl.credentials import ScramCredential, ScramMechanism
from sasl.verifier_text import written

SHA_256 = ScramMechanism.SCRAM_SHA_256
SHA_512 = ScramMechanism.SCRAM_SHA_512
PASSWORD = "secret"
SECRET = "c2VjcmV0LXNlY3JldC1zZWNyZXQtc2VjcmV0LXNlYyE="


def verifier(
    password: str = PASSWORD, mechanism: ScramMechanism = SHA_256, iterations: int = 4096
) -> ScramCredential:
    return ScramCredential.from_password(mechanism, password, b"salt", iterations)


def content(**users: dict[str, str] | Any) -> dict[str, Any]:
    return {"secret": SECRET, "users": users}


def of(*mechanisms: ScramMechanism, password: str = PASSWORD) -> dict[str, str]:
    """What stands there for one user."""
    return {each.value: written(verifier(password, each)) for each in mechanisms}


def put(path: Path, found: object) -> None:
    """Put a file in place of this one, as configuration management does."""
    new = path.with_name(f"{path.name}.new")
    new.write_text(found if isinstance(found, str) else json.dumps(found))
    new.replace(path)
