"""Command `reauth-proxy token`, and clients that options describe by the claims of a token."""

import asyncio
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from proxy.cli.common import (
    ConfigFile,
    Exit,
    config_in,
    fail,
    group,
    note,
    option,
    read_input,
    unlogged,
)
from proxy.cli.listing import Output, OutputOption, print_list
from sasl.identity import GROUP_TYPE, USER_TYPE, BadGroups, Identity, is_group_name
from sasl.jwt_claims import groups_in, principal_name, subject_of
from sasl.untrusted import read_object

if TYPE_CHECKING:
    from proxy.config import Config, Listener
    from sasl.token_explanation import Finding


@dataclass(frozen=True, slots=True, kw_only=True)
class Membership:
    """Options for a client's groups, or for the claims of its token."""

    member_of: Annotated[
        list[str] | None, option("GROUP", "A group of the client; repeatable.")
    ] = None
    claims: Annotated[
        Path | None,
        option("FILE", "The client, by a file with the claims of a token in JSON; needs --config."),
    ] = None
    listener: Annotated[
        str | None,
        option("NAME", "Listener whose rules apply to the claims, if several accept tokens."),
    ] = None

    def identity(self, option: str, principal: str | None, settings: "Config | None") -> Identity:
        """Return the client; `principal` is what the option `option` names. Raises BadParameter."""
        if (principal is None) == (self.claims is None) or (self.claims and self.member_of):
            raise typer.BadParameter(
                f"give either {option}, optionally with --member-of, or --claims"
            )
        if principal is not None:
            return Identity(principal, _groups(self.member_of or ()))
        assert self.claims is not None
        if settings is None:
            raise typer.BadParameter("--claims needs --config")
        return identity_of(self.claims, chosen_listener(settings, self.listener))


def _groups(names: Sequence[str]) -> list[str]:
    """Return groups by their names, as principals. Raises BadParameter."""
    bare = [name.removeprefix(GROUP_TYPE) for name in names]
    for name in bare:
        if not is_group_name(name):
            raise typer.BadParameter(f"--member-of {name!a}: no group can have that name")
    return [GROUP_TYPE + name for name in bare]


def chosen_listener(config: "Config", name: str | None) -> "Listener":
    """Return the listener of this name that takes tokens; without a name, the only one."""
    found = [one for one in config.listeners if one.token_issuers()]
    chosen = [one for one in found if name in (None, one.name)]
    if len(chosen) != 1:
        names = ", ".join(one.name for one in found) or "none"
        raise fail(f"give --listener: listeners with OAUTHBEARER are {names}", Exit.USAGE)
    return chosen[0]


def identity_of(file: Path, listener: "Listener") -> Identity:
    """Return the identity that a token with the claims in a file would give, unverified. Raises
    BadParameter."""
    from proxy.worker.identity_services import key_services, trusted_issuers

    claims = read_object(read_input(file, MAX_TOKEN_BYTES))
    if claims is None:
        raise typer.BadParameter(f"--claims {file}: must be a JSON object, the claims of a token")
    issuer = trusted_issuers(listener, key_services(listener)).issuer_named(claims.get("iss"))
    if issuer is None:
        raise typer.BadParameter(f"--claims {file}: iss is not one of sasl.oauthbearer.issuers")
    subject = subject_of(claims, issuer.settings)
    name = None if subject is None else principal_name(subject, issuer.settings)
    if name is None:
        path = issuer.settings.sub_claim_name
        raise typer.BadParameter(f"--claims {file}: {path} gives no principal, see token explain")
    try:
        return Identity(USER_TYPE + name, groups_in(claims, issuer.settings))
    except BadGroups as bad:
        raise typer.BadParameter(
            f"--claims {file}: {issuer.settings.groups_claim_name} {bad}"
        ) from None


MAX_TOKEN_BYTES: Final = 1_048_576
"""Largest token that is read, in bytes: far beyond any."""

app = group("Explain tokens.")


@app.callback()
def options() -> None:
    """Explain tokens."""


@app.command()
def explain(
    file: Annotated[Path, typer.Argument(metavar="FILE", hidden=True)],
    config: ConfigFile,
    listener: Annotated[
        str | None, option("NAME", "The listener; not needed if only one accepts tokens.")
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain why a listener accepts or refuses a token (JWT), claim by claim.

    FILE has the token and nothing else; - is stdin. An argument could be read by every process.
    The signing keys are fetched as the proxy fetches them. Exit status 1: it is refused.
    """
    token = read_input(file, MAX_TOKEN_BYTES).decode("ascii", "replace").strip()
    if not token:
        raise fail(f"{file}: has no token", Exit.USAGE)
    chosen = chosen_listener(config_in(config), listener)
    findings = _findings(token.removeprefix("Bearer "), chosen)
    print_list(
        findings,
        output,
        items="parts",
        columns={
            "Part": lambda one: one.part,
            "Found": lambda one: one.found or "-",
            "Result": lambda one: one.problem or "ok",
        },
        document=lambda one: one._asdict() | {"ok": one.problem is None},
        name=lambda one: one.part,
    )
    refused = [one.part for one in findings if one.problem is not None]
    if refused:
        raise fail(f"listener {chosen.name} refuses the token: {', '.join(refused)}", Exit.REFUSED)


def _findings(token: str, listener: "Listener") -> list["Finding"]:
    from proxy.worker.identity_services import key_services, trusted_issuers
    from sasl.token_explanation import explain_token

    keys = key_services(listener)

    async def read_keys() -> None:
        await asyncio.gather(*(one.refresh() for one in keys.values()))

    with unlogged():
        asyncio.run(read_keys())
    for issuer, one in keys.items():
        if one.cache.last_error is not None:
            whose = f" of {issuer}" if issuer else ""
            note(f"the signing keys{whose} cannot be read: {one.cache.last_error}")
    return explain_token(token, trusted_issuers(listener, keys), time.time(), time.monotonic())
