"""Client that options describe: by its name and groups, or by the claims of a token."""

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from proxy.cli.common import Exit, Misuse, fail
from sasl.identity import GROUP_TYPE, USER_TYPE, BadGroups, Identity, is_group_name
from sasl.jwt_claims import groups_in, principal_name, subject_of
from sasl.untrusted import read_object

if TYPE_CHECKING:
    from proxy.config import Config, Listener

_MAX_BYTES: Final = 1_048_576


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Options that say which groups a client is a member of, or who it is by a token."""

    member_of: Annotated[
        list[str] | None, typer.Option(metavar="GROUP", help="A group of the client; repeatable.")
    ] = None
    claims: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE", help="Who, by the claims of a token, in JSON; needs --config."
        ),
    ] = None
    listener: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="Whose rules the claims are read by, if several are."),
    ] = None

    def identity(self, option: str, principal: str | None, settings: "Config | None") -> Identity:
        """Return the client; `principal` is what the option `option` names. Raises Misuse."""
        if (principal is None) == (self.claims is None) or (self.claims and self.member_of):
            raise Misuse(f"give either {option}, with --member-of if need be, or --claims")
        if principal is not None:
            return Identity(principal, _groups(self.member_of or ()))
        assert self.claims is not None
        if settings is None:
            raise Misuse("--claims needs --config, which says how they are read")
        return identity_of(self.claims, chosen_listener(settings, self.listener))


def _groups(names: Sequence[str]) -> list[str]:
    """Return groups by their names, as principals. Raises Misuse."""
    bare = [name.removeprefix(GROUP_TYPE) for name in names]
    for name in bare:
        if not is_group_name(name):
            raise Misuse(f"--member-of {name!a}: no group can have that name")
    return [GROUP_TYPE + name for name in bare]


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
