"""Commands `reauth-proxy acls`, with the option names of kafka-acls.sh."""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated

import typer

from proxy.acl.model import Acl, AclFilter
from proxy.cli.acl_file import acl_filters_of_file
from proxy.cli.acl_options import (
    AclRules,
    PatternKind,
    Resources,
    acls_to_add,
    filters_to_list,
    filters_to_remove,
)
from proxy.cli.administration import (
    AclAdministration,
    BootstrapOption,
    CommandConfigOption,
    ConfigOption,
    StoreOption,
    administration,
)
from proxy.cli.common import (
    Exit,
    Misuse,
    Output,
    OutputOption,
    fail,
    misuse_told,
    print_table,
    printable,
)

app = typer.Typer(help="Manage who may do what (ACLs).", no_args_is_help=True)

Topic = Annotated[list[str] | None, typer.Option(help="A topic; * is every topic.")]
Group = Annotated[list[str] | None, typer.Option(help="A consumer group; * is every group.")]
Cluster = Annotated[bool, typer.Option("--cluster", help="The cluster.")]
TransactionalId = Annotated[list[str] | None, typer.Option(help="A transactional id; * is every.")]
DelegationToken = Annotated[list[str] | None, typer.Option(help="A delegation token; * is every.")]
UserPrincipal = Annotated[
    list[str] | None, typer.Option(help="A user, as what is acted upon: for its tokens.")
]
PatternTypeOption = Annotated[
    PatternKind,
    typer.Option(
        "--resource-pattern-type",
        case_sensitive=False,
        help="How names are meant. any and match are for list and remove: match finds all that"
        " applies to a resource of this name.",
    ),
]
AllowPrincipal = Annotated[
    list[str] | None, typer.Option(help="Who may, as User:alice; User:* is everybody.")
]
DenyPrincipal = Annotated[list[str] | None, typer.Option(help="Who may not, whatever is allowed.")]
AllowHost = Annotated[
    list[str] | None,
    typer.Option(help="Where from: an address, a block such as 10.0.0.0/8, or * (the default)."),
]
DenyHost = Annotated[list[str] | None, typer.Option(help="Where from they may not.")]
OperationOption = Annotated[
    list[str] | None,
    typer.Option("--operation", help="Read, Write, Describe, ... By default All."),
]
Producer = Annotated[
    bool, typer.Option("--producer", help="What a producer needs: Write, Describe, Create.")
]
Consumer = Annotated[
    bool, typer.Option("--consumer", help="What a consumer needs, on --topic and --group.")
]
Idempotent = Annotated[
    bool, typer.Option("--idempotent", help="With --producer: IdempotentWrite on the cluster.")
]


@app.command(name="list")
def list_acls(
    topic: Topic = None,
    group: Group = None,
    cluster: Cluster = False,
    transactional_id: TransactionalId = None,
    delegation_token: DelegationToken = None,
    user_principal: UserPrincipal = None,
    resource_pattern_type: PatternTypeOption = PatternKind.LITERAL,
    principal: Annotated[
        list[str] | None, typer.Option(help="Only the ACLs of these principals.")
    ] = None,
    file: Annotated[
        Path | None,
        typer.Option(
            metavar="FILE",
            help="Instead: a file with a filter per line, in these same options, such as"
            " --principal User:alice --topic orders; - is the standard input.",
        ),
    ] = None,
    bootstrap_server: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    config: ConfigOption = None,
    store: StoreOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List ACLs: those of the resources and principals named, or all. One round trip for all."""
    resources = Resources(
        topic=topic or (),
        group=group or (),
        cluster=cluster,
        transactional_id=transactional_id or (),
        delegation_token=delegation_token or (),
        user_principal=user_principal or (),
        pattern=resource_pattern_type,
    )
    with misuse_told():
        if file is None:
            filters = filters_to_list(resources, principal or ())
        elif resources.patterns() or principal:
            raise Misuse("--file goes without resources and principals: the file names them")
        else:
            filters = acl_filters_of_file(file)
    with administration(config, store, bootstrap_server, command_config) as acls:
        found = _matching(acls, filters)
    _print([(acl, None) for acl in found], output)


@app.command()
def add(
    topic: Topic = None,
    group: Group = None,
    cluster: Cluster = False,
    transactional_id: TransactionalId = None,
    delegation_token: DelegationToken = None,
    user_principal: UserPrincipal = None,
    resource_pattern_type: PatternTypeOption = PatternKind.LITERAL,
    allow_principal: AllowPrincipal = None,
    deny_principal: DenyPrincipal = None,
    allow_host: AllowHost = None,
    deny_host: DenyHost = None,
    operation: OperationOption = None,
    producer: Producer = False,
    consumer: Consumer = False,
    idempotent: Idempotent = False,
    bootstrap_server: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    config: ConfigOption = None,
    store: StoreOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Add ACLs: every combination of the resources, principals, hosts and operations named."""
    resources = Resources(
        topic=topic or (),
        group=group or (),
        cluster=cluster,
        transactional_id=transactional_id or (),
        delegation_token=delegation_token or (),
        user_principal=user_principal or (),
        pattern=resource_pattern_type,
    )
    rules = AclRules(
        allow_principal=allow_principal or (),
        deny_principal=deny_principal or (),
        allow_host=allow_host or (),
        deny_host=deny_host or (),
        operation=operation or (),
        producer=producer,
        consumer=consumer,
        idempotent=idempotent,
    )
    with misuse_told():
        wanted = acls_to_add(resources, rules)
    with administration(config, store, bootstrap_server, command_config) as acls:
        existing = set(_matching(acls, [_filter_of_resource(acl) for acl in wanted]))
        missing = [acl for acl in wanted if acl not in existing]
        errors = acls.create(missing) if missing else {}
    status = {acl: "exists" if acl in existing else errors[acl] or "added" for acl in wanted}
    _print([(acl, status[acl]) for acl in sorted(wanted)], output)
    if refused := sum(error is not None for error in errors.values()):
        raise fail(f"{refused} of {len(wanted)} ACLs were refused", Exit.REFUSED)


@app.command()
def remove(
    topic: Topic = None,
    group: Group = None,
    cluster: Cluster = False,
    transactional_id: TransactionalId = None,
    delegation_token: DelegationToken = None,
    user_principal: UserPrincipal = None,
    resource_pattern_type: PatternTypeOption = PatternKind.LITERAL,
    allow_principal: AllowPrincipal = None,
    deny_principal: DenyPrincipal = None,
    allow_host: AllowHost = None,
    deny_host: DenyHost = None,
    operation: OperationOption = None,
    producer: Producer = False,
    consumer: Consumer = False,
    idempotent: Idempotent = False,
    force: Annotated[bool, typer.Option("--force", help="Do not ask.")] = False,
    bootstrap_server: BootstrapOption = None,
    command_config: CommandConfigOption = None,
    config: ConfigOption = None,
    store: StoreOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """Remove ACLs: those that `add` would make, or without a principal all of the resources."""
    resources = Resources(
        topic=topic or (),
        group=group or (),
        cluster=cluster,
        transactional_id=transactional_id or (),
        delegation_token=delegation_token or (),
        user_principal=user_principal or (),
        pattern=resource_pattern_type,
    )
    rules = AclRules(
        allow_principal=allow_principal or (),
        deny_principal=deny_principal or (),
        allow_host=allow_host or (),
        deny_host=deny_host or (),
        operation=operation or (),
        producer=producer,
        consumer=consumer,
        idempotent=idempotent,
    )
    with misuse_told():
        filters = filters_to_remove(resources, rules)
    with administration(config, store, bootstrap_server, command_config) as acls:
        if not force:
            _confirm(_matching(acls, filters))
        removed = acls.delete(filters)
    _print([(acl, "removed") for acl in sorted(removed)], output)
    if not removed:
        raise fail("there is no such ACL", Exit.REFUSED)


def _filter_of_resource(acl: Acl) -> AclFilter:
    return AclFilter(resource_type=acl.resource_type, pattern_type=acl.pattern_type, name=acl.name)


def _matching(acls: AclAdministration, filters: Sequence[AclFilter]) -> list[Acl]:
    """Return what any of the filters finds, each once, in order."""
    return sorted(set(acls.matching(filters)))


def _confirm(found: Sequence[Acl]) -> None:
    if not found:
        raise fail("there is no such ACL", Exit.REFUSED)
    for acl in found:
        typer.echo(printable(" ".join(_row(acl, None).values())), err=True)
    if not typer.confirm(f"Remove {len(found)} ACLs?", err=True):
        raise fail("nothing is removed", Exit.REFUSED)


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


_SHORT = ("Resource", "Pattern", "Operation", "Permission")


def _print(acls: Sequence[tuple[Acl, str | None]], output: Output) -> None:
    rows = [_row(acl, status) for acl, status in acls]
    if output is Output.JSON:
        typer.echo(json.dumps(rows, indent=2))
    elif rows:
        head = [name.removesuffix("_type").capitalize() for name in rows[0]]
        print_table(head, [[*row.values()] for row in rows], unbroken=_SHORT)
