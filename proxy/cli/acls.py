"""Commands `reauth-proxy acls`, with the option names of kafka-acls.sh."""

from collections.abc import Iterable, Mapping, Sequence
from typing import Annotated, Final

import typer

from proxy.acl.model import Acl, AclFilter, exactly
from proxy.cli import declared
from proxy.cli.acl_explanation import AuthorizerRules, question_of, sentence_alone
from proxy.cli.acl_options import (
    AclRules,
    Listed,
    Resources,
    acls_to_add,
    doubt_about,
    filters_to_remove,
)
from proxy.cli.acl_options import principal as named_principal
from proxy.cli.administration import (
    Administration,
    Where,
    administration,
    mode_in_effect,
)
from proxy.cli.claims import Membership
from proxy.cli.common import (
    Exit,
    FilterFile,
    Misuse,
    fail,
    misuse_explained,
    note,
    printable,
    say,
)
from proxy.cli.declared import DeclaredFile, DryRun, Prune
from proxy.cli.listing import (
    Listing,
    Output,
    OutputOption,
    print_document,
    print_list,
    require_document,
)
from proxy.cli.options import filters_of_file, takes_groups

app = typer.Typer(
    help="Manage who may do what (ACLs).", no_args_is_help=True, rich_markup_mode=None
)

_NOWHERE: Final = "0.0.0.0"  # noqa: S104 - an address that no ACL names
_LINE = "one resource and one principal at most"


@app.command(name="list")
@takes_groups
def list_acls(
    *,
    listed: Listed,
    file: FilterFile = None,
    where: Where,
    output: OutputOption = Output.TABLE,
) -> None:
    """List ACLs: those of the resources and principals named, or all. One round trip for all."""
    with misuse_explained():
        if file is None:
            filters = listed.filters()
        elif listed.patterns() or listed.principal:
            raise Misuse("--file excludes resources and principals: the file names them")
        else:
            filters = filters_of_file(file, Listed, at_most=_LINE)
    with administration(where) as acls:
        found = _matching(acls, filters)
    _print([(acl, None) for acl in found], output)


@app.command()
@takes_groups
def add(
    *, resources: Resources, rules: AclRules, where: Where, output: OutputOption = Output.TABLE
) -> None:
    """Add ACLs: every combination of the resources, principals, hosts and operations named."""
    with misuse_explained():
        wanted = acls_to_add(resources, rules)
    _warn(wanted)
    with administration(where) as acls:
        existing = set(_matching(acls, [_filter_of_resource(acl) for acl in wanted]))
        missing = [acl for acl in wanted if acl not in existing]
        errors = acls.create_acls(missing) if missing else {}
    mode_in_effect(where, "authorizer")
    status = {acl: "exists" if acl in existing else errors[acl] or "added" for acl in wanted}
    _print([(acl, status[acl]) for acl in sorted(wanted)], output)
    if refused := sum(error is not None for error in errors.values()):
        raise fail(f"{refused} of {len(wanted)} ACLs were refused", Exit.REFUSED)


@app.command()
@takes_groups
def remove(
    *,
    resources: Resources,
    rules: AclRules,
    force: Annotated[bool, typer.Option("--force", help="Do not ask.")] = False,
    where: Where,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove ACLs: those that `add` would make, or without a principal all of the resources."""
    with misuse_explained():
        filters = filters_to_remove(resources, rules)
    with administration(where) as acls:
        if not force:
            _confirm(_matching(acls, filters))
        removed = acls.delete_acls(filters)
    if not removed:
        raise fail("there is no such ACL", Exit.REFUSED)
    _print([(acl, "removed") for acl in sorted(removed)], output)


@app.command(name="explain")
@takes_groups
def explain_acls(
    *,
    principal: Annotated[
        str | None, typer.Option(metavar="PRINCIPAL", help="Who, as User:alice or alice.")
    ] = None,
    operation: Annotated[str, typer.Option(metavar="OPERATION", help="What, as Read.")],
    resources: Resources,
    membership: Membership,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Where from; by default from nowhere special.")
    ] = _NOWHERE,
    where: Where,
    output: OutputOption = Output.TABLE,
) -> None:
    """Say whether a principal may do something, and which ACL decides; exit status 1 if not."""
    with misuse_explained():
        settings = where.settings()
        who = None if principal is None else named_principal(principal)
        identity = membership.identity("--principal", who, settings)
        question = question_of(identity, operation, resources, host)
    mode = mode_in_effect(where, "authorizer")
    rules = AuthorizerRules() if settings is None else AuthorizerRules.of(settings.authorizer)
    if settings is None:
        note("super users are not known without --config")
    with administration(where) as acls:
        found = _matching(acls, question.filters())
    decision, alone = question.decide(found, rules), question.alone(found, rules)
    if not print_document(question.document(decision, alone, mode), output):
        say(printable(question.sentence(decision)))
        for who, decided in alone.items():
            say(printable(sentence_alone(who, decided)))
    if not decision.allowed:
        raise typer.Exit(Exit.REFUSED)


@app.command()
@takes_groups
def export(*, where: Where, output: OutputOption = Output.YAML) -> None:
    """Print all ACLs as `apply` takes them, in YAML or JSON."""
    require_document(output)
    with administration(where) as acls:
        found = _matching(acls, [AclFilter()])
    print_document([_row(acl, None) for acl in found], output)


@app.command()
@takes_groups
def apply(
    *,
    file: DeclaredFile,
    prune: Prune = False,
    dry_run: DryRun = False,
    where: Where,
    output: OutputOption = Output.TABLE,
) -> None:
    """Add the ACLs of a file; with --prune, remove all others. Those that exist are left alone."""
    with misuse_explained():
        wanted = declared.acls(declared.items(file))
    _warn(wanted)
    with administration(where) as acls:
        existing = set(_matching(acls, [AclFilter()]))
        missing = [acl for acl in wanted if acl not in existing]
        others = sorted(existing.difference(wanted)) if prune else []
        errors: Mapping[Acl, str | None] = {}
        if not dry_run:
            errors = acls.create_acls(missing) if missing else {}
            if others and not any(errors.values()):
                acls.delete_acls([*map(exactly, others)])
    mode_in_effect(where, "authorizer")
    would = "would be " if dry_run else ""
    changes = [(acl, errors.get(acl) or f"{would}added") for acl in sorted(missing)]
    removed = "not removed" if any(errors.values()) else f"{would}removed"
    _print([*changes, *((acl, removed) for acl in others)], output, items="changes")
    if refused := sum(error is not None for error in errors.values()):
        raise fail(f"{refused} of {len(missing)} ACLs were refused", Exit.REFUSED)


def _warn(acls: Iterable[Acl]) -> None:
    for doubt in sorted({doubt for acl in acls if (doubt := doubt_about(acl))}):
        note(f"warning: {doubt}")


def _filter_of_resource(acl: Acl) -> AclFilter:
    return AclFilter(resource_type=acl.resource_type, pattern_type=acl.pattern_type, name=acl.name)


def _matching(acls: Administration, filters: Sequence[AclFilter]) -> list[Acl]:
    """Return what any of the filters finds, each once, in order."""
    return sorted(set(acls.acls(filters)))


def _confirm(found: Sequence[Acl]) -> None:
    if not found:
        raise fail("there is no such ACL", Exit.REFUSED)
    for acl in found:
        typer.echo(printable(" ".join(_row(acl, None).values())), err=True)
    if not typer.confirm(f"Remove {len(found)} ACLs?", err=True):
        raise fail("nothing was removed", Exit.REFUSED)


def _row(acl: Acl, status: str | None) -> dict[str, str]:
    row = {
        "resource_type": acl.resource_type.name,
        "pattern_type": acl.pattern_type.name,
        "name": acl.name,
        "principal": acl.principal,
        "host": acl.host,
        "operation": acl.operation.name,
        "permission": acl.permission.name,
    }
    return row if status is None else row | {"status": status}


def _print(acls: Sequence[tuple[Acl, str | None]], output: Output, *, items: str = "ACLs") -> None:
    with_status = any(status is not None for _, status in acls)
    listing: Listing[tuple[Acl, str | None]] = Listing(
        items=items,
        headings=(*_HEADINGS, *(["Status"] if with_status else [])),
        lines=lambda one: [[*_row(*one).values()]],
        document=lambda one: _row(*one),
        name=lambda one: _name(one[0]),
    )
    print_list(listing, acls, output)


_HEADINGS: Final = (
    "Resource",
    "Pattern",
    "Name",
    "Principal",
    "Host",
    "Operation",
    "Permission",
)


def _name(acl: Acl) -> str:
    """Return all of an ACL in one text, as `explain` names it."""
    return str(" ".join(_row(acl, None).values()))
