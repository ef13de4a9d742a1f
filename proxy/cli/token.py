"""Command `reauth-proxy token`: why a listener refuses a JWT, claim by claim."""

import asyncio
import sys
import time
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Final

import typer

from proxy.cli.claims import chosen_listener
from proxy.cli.common import ConfigFile, Exit, explained, fail, note, unlogged
from proxy.cli.listing import Listing, Output, OutputOption, print_list

if TYPE_CHECKING:
    from proxy.config import Listener
    from sasl.token_explanation import Finding

MAX_TOKEN_BYTES: Final = 1_048_576
"""Largest token that is read, in bytes: far beyond any."""

app = typer.Typer(help="Explain tokens.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def options() -> None:
    """Explain tokens."""


@app.command()
def explain(
    file: Annotated[Path, typer.Argument(metavar="FILE", hidden=True)],
    config: ConfigFile,
    listener: Annotated[
        str | None,
        typer.Option(metavar="NAME", help="The listener; not needed if one alone takes tokens."),
    ] = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say why a listener takes or refuses a token (JWT), claim by claim.

    FILE has the token and nothing else; - is stdin. An argument could be read by every process.
    The signing keys are fetched as the proxy fetches them. Exit status 1: it is refused.
    """
    token = _token(file)
    with explained(config):
        from proxy.config import load

        chosen = chosen_listener(load(config), listener)
    findings = _findings(token, chosen)
    listing: Listing[Finding] = Listing(
        items="parts",
        headings=("Part", "Found", "Result"),
        lines=lambda one: [(one.part, one.found or "-", one.problem or "ok")],
        document=lambda one: {
            "part": one.part,
            "found": one.found,
            "ok": one.problem is None,
            "problem": one.problem,
        },
        name=lambda one: one.part,
    )
    print_list(listing, findings, output)
    refused = [one.part for one in findings if one.problem is not None]
    if refused:
        raise fail(f"listener {chosen.name} refuses the token: {', '.join(refused)}", Exit.REFUSED)


def _token(file: Path) -> str:
    try:
        with sys.stdin.buffer if str(file) == "-" else file.open("rb") as source:
            data = source.read(MAX_TOKEN_BYTES + 1)
    except OSError as error:
        raise fail(f"{file}: cannot be read: {error.strerror}", Exit.USAGE) from None
    text = data.decode("ascii", "replace").strip()
    if not text or len(data) > MAX_TOKEN_BYTES:
        raise fail(f"{file}: has no token", Exit.USAGE)
    return text.removeprefix("Bearer ")


def _findings(token: str, listener: "Listener") -> list["Finding"]:
    from proxy.worker.listener import key_services, trusted_issuers
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
