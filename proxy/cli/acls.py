"""Commands `reauth-proxy acls`, with the option names of kafka-acls.sh."""

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from ipaddress import ip_address
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final

import typer

from proxy.acl.authorizer import SUPPORTED_OPERATIONS
from proxy.acl.index import AclIndex, Decision
from proxy.acl.model import WILDCARD, Acl, AclFilter, Operation, PatternType, ResourceType, exactly
from proxy.cli.acl_options import (
    AclRules,
    Listed,
    Pattern,
    PatternKind,
    Resources,
    acl_fields,
    acl_of,
    acl_text,
    acls_to_add,
    doubt_about,
    filters_to_remove,
    operation_name,
    operation_of,
)
from proxy.cli.acl_options import principal as named_principal
from proxy.cli.administration import Administration, Where, administration, mode_in_effect
from proxy.cli.common import (
    DeclaredFile,
    DryRun,
    Exit,
    FilterFile,
    Force,
    Prune,
    asks_to_prune,
    confirm_removal,
    declared,
    fail,
    filters_of_file,
    group,
    note,
    option,
    printable,
    say,
    takes_groups,
)
from proxy.cli.listing import Output, OutputOption, print_document, print_list, require_document
from proxy.cli.token import Membership
from sasl.identity import Identity

if TYPE_CHECKING:
    from metrics.usage import Use
    from proxy.config import Authorizer


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """Whether a principal at an address may do an operation on a resource."""

    identity: Identity
    host: str
    operation: Operation
    resource: Pattern

    def decide(self, index: AclIndex, principals: tuple[str, ...]) -> Decision:
        """Return the decision of the authorizer about a client with these principals."""
        kind, _, name = self.resource
        return index.decide(principals, self.host, self.operation, kind, name)

    def sentence(self, decision: Decision) -> str:
        """Return the decision and its reason for a person."""
        resource = f"{self.resource.resource_type.name} {self.resource.name}"
        what = f"{_may(decision)} {operation_name(self.operation)} {resource}"
        return f"{self.identity.principal} {what}: {_reason(decision)}"

    def document(
        self, decision: Decision, alone: Mapping[str, Decision], mode: str | None
    ) -> dict[str, Any]:
        """Return the same for programs; `mode` is that of the authorizer, None if not known."""
        return {
            "allowed": decision.allowed,
            "principal": self.identity.principal,
            "groups": list(self.identity.groups),
            "alone": {
                one: {"allowed": decided.allowed, "reason": _reason(decided)}
                for one, decided in alone.items()
            },
            "host": self.host,
            "operation": self.operation.name,
            "resource_type": self.resource.resource_type.name,
            "name": self.resource.name,
            "reason": _reason(decision),
            "acl": None if decision.rule is None else acl_text(decision.rule),
            "mode": mode,
        }


def index_of(acls: Iterable[Acl], authorizer: "Authorizer | None") -> AclIndex:
    """Return the ACLs with the settings of the authorizer; None stands for unknown settings."""
    return AclIndex(
        acls,
        allow_everyone_if_no_acl_found=authorizer is not None
        and authorizer.allow_everyone_if_no_acl_found,
        super_users=frozenset(() if authorizer is None else authorizer.super_users),
        version=0,
    )


def question_of(identity: Identity, operation: str, resources: Resources, host: str) -> Question:
    """Return the question that options ask. Raises BadParameter."""
    patterns = resources.patterns()
    if len(patterns) != 1 or resources.resource_pattern_type is not PatternKind.LITERAL:
        raise typer.BadParameter("give one resource: --topic, --group, --cluster, ...")
    try:
        ip_address(host)
    except ValueError:
        raise typer.BadParameter(f"--host {host}: must be an IP address") from None
    (resource,) = patterns
    wanted = operation_of(operation)
    if wanted not in SUPPORTED_OPERATIONS[resource.resource_type]:
        names = ", ".join(map(operation_name, SUPPORTED_OPERATIONS[resource.resource_type]))
        raise typer.BadParameter(f"a {resource.resource_type.name} supports the operations {names}")
    return Question(identity=identity, host=host, operation=wanted, resource=resource)


def _may(decision: Decision) -> str:
    return "may" if decision.allowed else "may not"


def _reason(decision: Decision) -> str:
    if decision.super_user:
        return "a super user"
    if decision.rule is not None:
        return f"the ACL {acl_text(decision.rule)}"
    if decision.allowed:
        return "no ACL names the resource, and allow.everyone.if.no.acl.found is true"
    return "no ACL allows it"


app = group("Manage ACLs.")

_NOWHERE: Final = "0.0.0.0"  # noqa: S104 - an address that no ACL names
_LINE = "one resource and one principal at most"


@app.command(name="list")
@takes_groups
def list_acls(
    *, listed: Listed, file: FilterFile = None, where: Where, output: OutputOption = Output.TABLE
) -> None:
    """List ACLs: those of the resources and principals named, or all. One round trip for all."""
    if file is None:
        filters = listed.filters()
    elif listed.patterns() or listed.principal:
        raise typer.BadParameter("--file excludes resources and principals: the file names them")
    else:
        filters = filters_of_file(file, Listed, at_most=_LINE)
    with administration(where) as acls:
        found = _matching(acls, filters)
    _print([*map(acl_fields, found)], output)


@app.command()
@takes_groups
def add(
    *, resources: Resources, rules: AclRules, where: Where, output: OutputOption = Output.TABLE
) -> None:
    """Add ACLs: every combination of the resources, principals, hosts and operations named."""
    wanted = acls_to_add(resources, rules)
    _warn(wanted)
    with administration(where) as acls:
        patterns = {Pattern(one.resource_type, one.pattern_type, one.name) for one in wanted}
        existing = set(_matching(acls, [pattern.filter() for pattern in patterns]))
        missing = [acl for acl in wanted if acl not in existing]
        errors = acls.create_acls(missing) if missing else {}
    mode_in_effect(where, "authorizer")
    status = {acl: "exists" if acl in existing else errors[acl] or "added" for acl in wanted}
    _print([_with_status(acl, status[acl]) for acl in sorted(wanted)], output)
    if refused := sum(error is not None for error in errors.values()):
        raise fail(f"{refused} of {len(wanted)} ACLs were refused", Exit.REFUSED)


@app.command()
@takes_groups
def remove(
    *,
    resources: Resources,
    rules: AclRules,
    force: Force = False,
    where: Where,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove ACLs: those that `add` would make; without a principal, all of the resources."""
    filters = filters_to_remove(resources, rules)
    with administration(where) as acls:
        if not force:
            _confirm(_matching(acls, filters))
        removed = acls.delete_acls(filters)
    if not removed:
        raise fail("there is no such ACL", Exit.REFUSED)
    _print([_with_status(acl, "removed") for acl in sorted(removed)], output)


@app.command(name="explain")
@takes_groups
def explain_acls(
    *,
    principal: Annotated[
        str | None, option("PRINCIPAL", "Principal, as User:alice or alice.")
    ] = None,
    operation: Annotated[str, option("OPERATION", "Operation, such as Read.")],
    resources: Resources,
    membership: Membership,
    host: Annotated[
        str, option("ADDRESS", "Address of the client; by default one that no ACL names.")
    ] = _NOWHERE,
    where: Where,
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain whether a principal may do something, and which ACL decides; exit status 1 if not."""
    settings = where.settings()
    who = None if principal is None else named_principal(principal)
    identity = membership.identity("--principal", who, settings)
    question = question_of(identity, operation, resources, host)
    mode = mode_in_effect(where, "authorizer")
    authorizer = None if settings is None else settings.authorizer
    if authorizer is None:
        note("super users are not known without --config")
    with administration(where) as acls:
        found = _matching(
            acls, [question.resource.filter()._replace(pattern_type=PatternType.MATCH)]
        )
    index = index_of(found, authorizer)
    decision = question.decide(index, identity.principals)
    each = identity.principals if identity.groups else ()
    alone = {one: question.decide(index, (one,)) for one in each}
    if not print_document(question.document(decision, alone, mode), output):
        say(printable(question.sentence(decision)))
        for who, decided in alone.items():
            say(printable(f"  {who} alone {_may(decided)}: {_reason(decided)}"))
    if not decision.allowed:
        raise typer.Exit(Exit.REFUSED)


@app.command()
@takes_groups
def export(*, where: Where, output: OutputOption = Output.YAML) -> None:
    """Print all ACLs as `apply` takes them, in YAML or JSON."""
    require_document(output)
    with administration(where) as acls:
        found = _matching(acls, [AclFilter()])
    print_document([acl_fields(acl) for acl in found], output)


@app.command()
@takes_groups
def apply(
    *,
    file: DeclaredFile,
    prune: Prune = False,
    dry_run: DryRun = False,
    against: Annotated[
        Path | None,
        option(
            "PATH",
            "With --dry-run: list the uses in event files (events.usage) that the change would"
            " deny; exit status 1 if there are any.",
        ),
    ] = None,
    force: Force = False,
    where: Where,
    output: OutputOption = Output.TABLE,
) -> None:
    """Add the ACLs of a file; with --prune, remove all others. Those that exist are left alone.

    Before it removes ACLs, it lists them and asks for confirmation.
    """
    if against is not None and not dry_run:
        raise typer.BadParameter("--against is for --dry-run")
    asks = asks_to_prune(file, prune=prune, dry_run=dry_run, force=force)
    wanted = list(dict.fromkeys(declared(file, acl_of)))
    _warn(wanted)
    with administration(where) as acls:
        existing = set(_matching(acls, [AclFilter()]))
        missing = [acl for acl in wanted if acl not in existing]
        others = sorted(existing.difference(wanted)) if prune else []
        errors: Mapping[Acl, str | None] = {}
        if asks and others:
            _confirm(others)
        if not dry_run:
            errors = acls.create_acls(missing) if missing else {}
            if others and not any(errors.values()):
                acls.delete_acls([*map(exactly, others)])
    mode_in_effect(where, "authorizer")
    if against is not None:
        settings = where.settings()
        authorizer = None if settings is None else settings.authorizer
        after = index_of(existing.union(wanted).difference(others), authorizer)
        _print_denied(against, index_of(existing, authorizer), after, output)
        return
    would = "would be " if dry_run else ""
    changes = [_with_status(acl, errors.get(acl) or f"{would}added") for acl in sorted(missing)]
    removed = "not removed" if any(errors.values()) else f"{would}removed"
    changes += [_with_status(acl, removed) for acl in others]
    _print(changes, output, items="changes")
    if refused := sum(error is not None for error in errors.values()):
        raise fail(f"{refused} of {len(missing)} ACLs were refused", Exit.REFUSED)


def _print_denied(against: Path, before: AclIndex, after: AclIndex, output: Output) -> None:
    """List the recorded uses that are allowed before a change of ACLs and not after it."""
    from metrics.usage import read
    from proxy.cli.audit import print_uses
    from proxy.cli.why import EventLog

    with EventLog(events=str(against)).lines() as lines:
        found = read(lines, _is_known)
    denied = {
        use: amount
        for use, amount in found.rows.items()
        if _allows(before, use, found.groups) and not _allows(after, use, found.groups)
    }
    print_uses(found._replace(rows=denied), output)
    if denied:
        clients = len({(use.principal, use.client_id) for use in denied})
        raise fail(f"{len(denied)} uses of {clients} clients would be denied", Exit.REFUSED)


def _is_known(use: "Use") -> bool:
    return use.operation in Operation.__members__ and use.resource_type in ResourceType.__members__


def _allows(index: AclIndex, use: "Use", groups: Mapping[str, Iterable[str]]) -> bool:
    """Return whether ACLs allow a recorded use; for topics, `*` ends a name that is a prefix."""
    operation, resource_type = Operation[use.operation], ResourceType[use.resource_type]
    client = (use.principal, *sorted(groups.get(use.principal, ()))), use.host
    if operation is Operation.IDEMPOTENT_WRITE or (operation, use.name) == (Operation.WRITE, "*"):
        if index.decide_any(*client, Operation.WRITE, ResourceType.TOPIC).allowed:
            return True  # either permission suffices
    elif resource_type is ResourceType.TOPIC and use.name.endswith(WILDCARD):
        return index.decide_every(*client, operation, resource_type, use.name[:-1]).allowed
    return index.decide(*client, operation, resource_type, use.name).allowed


def _warn(acls: Iterable[Acl]) -> None:
    for doubt in sorted({doubt for acl in acls if (doubt := doubt_about(acl))}):
        note(f"warning: {doubt}")


def _matching(acls: Administration, filters: Sequence[AclFilter]) -> list[Acl]:
    """Return what any of the filters finds, each once, in order."""
    return sorted(set(acls.acls(filters)))


def _confirm(found: Sequence[Acl]) -> None:
    if not found:
        raise fail("there is no such ACL", Exit.REFUSED)
    confirm_removal([*map(acl_text, found)], "ACLs")


def _with_status(acl: Acl, status: str) -> dict[str, str]:
    return acl_fields(acl) | {"status": status}


_HEADINGS: Final = {
    "resource_type": "Resource",
    "pattern_type": "Pattern",
    "name": "Name",
    "principal": "Principal",
    "host": "Host",
    "operation": "Operation",
    "permission": "Permission",
}


def _print(rows: Sequence[dict[str, str]], output: Output, *, items: str = "ACLs") -> None:
    shown = _HEADINGS | ({"status": "Status"} if any("status" in one for one in rows) else {})
    print_list(
        rows,
        output,
        items=items,
        columns={heading: itemgetter(key) for key, heading in shown.items()},
        document=dict,
        name=lambda row: " ".join(row[key] for key in _HEADINGS),
    )
