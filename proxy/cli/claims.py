"""Client that the claims of a token describe, by the rules of a listener."""

from pathlib import Path
from typing import TYPE_CHECKING, Final

from proxy.cli.common import Exit, Misuse, fail
from sasl.group_claims import BadGroups
from sasl.identity import USER_TYPE, Identity
from sasl.jwt_claims import groups_in, principal_name, subject_of
from sasl.strict_json import read_object

if TYPE_CHECKING:
    from proxy.config import Config, Listener

_MAX_BYTES: Final = 1_048_576


def chosen_listener(config: "Config", name: str | None) -> "Listener":
    """Return the listener of this name that takes tokens; None: the only one that does."""
    found = [one for one in config.listeners if one.token_issuers()]
    chosen = [one for one in found if name in (None, one.name)]
    if len(chosen) != 1:
        names = ", ".join(one.name for one in found) or "none"
        raise fail(f"give --listener: listeners with OAUTHBEARER are {names}", Exit.USAGE)
    return chosen[0]


def identity_of(file: Path, listener: "Listener") -> Identity:
    """Return who a token with the claims in a file would be: nothing of it is verified. Raises
    Misuse."""
    from proxy.worker.listener import key_services, trusted_issuers

    try:
        with file.open("rb") as source:
            claims = read_object(source.read(_MAX_BYTES))
    except OSError as error:
        raise Misuse(f"--claims {file}: cannot be read: {error.strerror}") from None
    if claims is None:
        raise Misuse(f"--claims {file}: must be a JSON object, the claims of a token")
    issuer = trusted_issuers(listener, key_services(listener)).issuer_named(claims.get("iss"))
    if issuer is None:
        raise Misuse(f"--claims {file}: iss is none of sasl.oauthbearer.issuers")
    subject = subject_of(claims, issuer.settings)
    name = None if subject is None else principal_name(subject, issuer.settings)
    if name is None:
        path = issuer.settings.sub_claim_name
        raise Misuse(f"--claims {file}: {path} gives no principal, see token explain")
    try:
        return Identity(USER_TYPE + name, groups_in(claims, issuer.settings))
    except BadGroups as bad:
        raise Misuse(f"--claims {file}: {issuer.settings.groups_claim_name} {bad}") from None
