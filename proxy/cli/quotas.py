"""Commands `reauth-proxy quotas`: quotas of users, client ids and addresses."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from itertools import product
from typing import Annotated, Any, Final

import typer

from proxy.cli.administration import Where, administration, mode_in_effect
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
    option,
    printable,
    say,
    takes_groups,
    user_name,
    utf8,
)
from proxy.cli.listing import Output, OutputOption, print_document, print_list, require_document
from proxy.cli.token import Membership
from proxy.quota.callback import ClientPrincipal
from proxy.quota.group_quotas import GROUP_ROW, GroupQuotas
from proxy.quota.model import (
    DEFAULT,
    BadEntity,
    Name,
    QuotaEntity,
    QuotaKey,
    Quotas,
    format_limit,
    key_of,
    value_problem,
)
from proxy.quota.precedence import Explanation, explain
from sasl.identity import USER_TYPE

app = group("Manage quotas.")

Limits = Annotated[list[str], typer.Argument(metavar="KEY=VALUE", hidden=True)]
Keys = Annotated[list[str] | None, typer.Argument(metavar="KEY", hidden=True)]


Change = dict[QuotaKey, float | None]
"""Limits to set by key; None removes a quota."""
MAX_NAME: Final = 32_767
"""Maximum length of a name in bytes: that of a STRING of Kafka's protocol."""
_GROUP_QUOTAS: Final = f"{GroupQuotas.__module__}:{GroupQuotas.__qualname__}"
_LINE: Final = "one user, one client id, both, or one address"


@dataclass(frozen=True, slots=True, kw_only=True)
class Named:
    """Options that name entities."""

    user: Annotated[list[str], option("NAME", "A user. May be repeated.")] = field(
        default_factory=list
    )
    user_defaults: Annotated[
        bool, typer.Option("--user-defaults", help="All users without a quota of their own.")
    ] = False
    client_id: Annotated[
        list[str], option("ID", "A client id; with --user, of these users. May be repeated.")
    ] = field(default_factory=list)
    client_id_defaults: Annotated[
        bool,
        typer.Option("--client-id-defaults", help="All client ids without a quota of their own."),
    ] = False
    ip: Annotated[list[str], option("ADDRESS", "An address. May be repeated.")] = field(
        default_factory=list
    )
    ip_defaults: Annotated[
        bool, typer.Option("--ip-defaults", help="All addresses without a quota of their own.")
    ] = False

    def filters(self) -> tuple[QuotaEntity, ...]:
        """Return every combination of the names given, each once; none if none is given.

        An entity, as a filter, finds the quotas of all entities that contain its parts. Raises
        BadParameter.
        """
        names = (
            _names([*map(user_name, self.user)], self.user_defaults),
            _names(self.client_id, self.client_id_defaults),
            _names(self.ip, self.ip_defaults),
        )
        if not any(names):
            return ()
        return tuple(
            _entity(user=user, client_id=client_id, ip=ip)
            for user, client_id, ip in product(*(some or (None,) for some in names))
        )

    def entity(self) -> QuotaEntity:
        """Return the only entity named. Raises BadParameter."""
        named = self.filters()
        if len(named) != 1:
            raise typer.BadParameter(f"give {_LINE}")
        return named[0]


def _entity(**parts: Name) -> QuotaEntity:
    try:
        return QuotaEntity(**parts)
    except BadEntity as bad:
        raise typer.BadParameter(str(bad)) from None


def _names(given: Sequence[str], default: bool) -> tuple[Name, ...]:
    if any(len(utf8(name)) > MAX_NAME for name in given):
        raise typer.BadParameter(f"a name is longer than {MAX_NAME} bytes")
    return (*dict.fromkeys(given), *([DEFAULT] if default else []))


@app.command(name="list")
@takes_groups
def list_quotas(
    *, named: Named, file: FilterFile = None, where: Where, output: OutputOption = Output.TABLE
) -> None:
    """List quotas of the given entities, alone or combined with others; or all. One round trip."""
    filters = named.filters()
    if file is not None:
        if filters:
            raise typer.BadParameter(
                "--file excludes users, client ids and addresses: it names them"
            )
        filters = filters_of_file(file, Named, at_most=_LINE)
    with administration(where) as administrator:
        quotas = administrator.quotas(filters or None)
    found = _in_order_of_path(quotas)
    if print_document([_document(*one) for one in found], output):
        return
    print_list(
        [(str(entity), *one) for entity, limits in found for one in _in_order(limits)],
        output,
        items="quotas",
        columns={
            "Quota of": lambda row: row[0],
            "Key": lambda row: row[1].value,
            "Limit": lambda row: format_limit(row[2]),
        },
        document=list,
        name=lambda row: row[0],
    )


@app.command(name="set")
@takes_groups
def set_quotas(limits: Limits, named: Named, where: Where) -> None:
    """Set quotas of a user, a client id, both together, or an address.

    KEY is producer_byte_rate, consumer_byte_rate, request_percentage, controller_mutation_rate or
    connection_creation_rate. Rates are per second.
    """
    entity = named.entity()
    changes = dict(_limit(entity, text) for text in limits)
    if len(changes) < len(limits):
        raise typer.BadParameter("a key is given twice")
    with administration(where) as administrator:
        administrator.alter_quotas({entity: changes})
    mode_in_effect(where, "quotas")
    limited = ", ".join(f"{key}={format_limit(value)}" for key, value in changes.items())
    say(f"{printable(str(entity))}: {limited}")


@app.command()
@takes_groups
def remove(*, keys: Keys = None, named: Named, where: Where) -> None:
    """Remove quotas of exactly this entity: of a user, not of the user with a client id.

    Without KEY, all of them.
    """
    entity = named.entity()
    wanted = [_key(entity, name) for name in keys or ()]
    with administration(where) as administrator:
        present = administrator.quotas().get(entity, {})
        removed = [key for key in wanted or present if key in present]
        if not removed:
            raise fail(f"there is no such quota of {entity}", Exit.REFUSED)
        administrator.alter_quotas({entity: dict.fromkeys(removed)})
    say(f"{printable(str(entity))}: removed {', '.join(removed)}")


@app.command(name="explain")
@takes_groups
def explain_quotas(
    *,
    user: Annotated[str | None, option("NAME", "The user.")] = None,
    client_id: Annotated[
        str, option("ID", "The client id; without it, a client that has none.")
    ] = "",
    membership: Membership,
    where: Where,
    output: OutputOption = Output.TABLE,
) -> None:
    """Explain which quotas apply to a client, why, and which clients share them."""
    settings = where.settings()
    principal = None if user is None else USER_TYPE + user_name(user)
    identity = membership.identity("--user", principal, settings)
    callback = None
    if settings is not None and settings.quotas.client_quota_callback_class == _GROUP_QUOTAS:
        callback = GroupQuotas()
        callback.configure(settings.quotas.client_quota_callback_configs)
    if identity.groups and callback is None:
        raise typer.BadParameter(
            "groups have quotas by quotas.client.quota.callback.class:"
            f" {_GROUP_QUOTAS} alone, in the file of --config"
        )
    mode = mode_in_effect(where, "quotas")
    static = {} if settings is None else settings.quotas.static_defaults()
    with administration(where) as administrator:
        quotas = administrator.quotas()
    keys = [key for key in QuotaKey if key is not QuotaKey.CONNECTION_CREATION_RATE]
    if callback is None:
        name = user_name(identity.principal)
        explanations = [explain(quotas, static, key, name, client_id) for key in keys]
    else:
        who = ClientPrincipal(identity.principal, identity.groups)
        explanations = [callback.explain(quotas, static, key, who, client_id) for key in keys]
    rows = [{**_explanation_row(one), "mode": mode} for one in explanations]
    if not print_document(rows, output):
        _print_explanations(explanations)


@app.command()
@takes_groups
def export(*, where: Where, output: OutputOption = Output.YAML) -> None:
    """Print all quotas as `apply` takes them, in YAML or JSON."""
    require_document(output)
    with administration(where) as administrator:
        found = _in_order_of_path(administrator.quotas())
    print_document([_document(*one) for one in found], output)


@app.command()
@takes_groups
def apply(
    *,
    file: DeclaredFile,
    prune: Prune = False,
    dry_run: DryRun = False,
    force: Force = False,
    where: Where,
    output: OutputOption = Output.TABLE,
) -> None:
    """Set the quotas of a file; with --prune, remove all others. Equal ones are left alone.

    Before it removes quotas, it lists them and asks for confirmation.
    """
    asks = asks_to_prune(file, prune=prune, dry_run=dry_run, force=force)
    pairs = declared(file, _declared)
    wanted = dict(pairs)
    if len(wanted) < len(pairs):
        raise typer.BadParameter("an entity is given twice")
    with administration(where) as administrator:
        existing = administrator.quotas()
        changes = changes_to_make(existing, wanted, prune=prune)
        removed = [
            f"{key} of {entity}"
            for entity, change in changes.items()
            for key, limit in change.items()
            if limit is None
        ]
        if asks and removed:
            confirm_removal(removed, "quotas")
        if changes and not dry_run:
            administrator.alter_quotas(changes)
    mode_in_effect(where, "quotas")
    _print_changes(changes, output, would="would be " if dry_run else "")


def changes_to_make(existing: Quotas, wanted: Quotas, *, prune: bool) -> dict[QuotaEntity, Change]:
    """Return the changes that turn the existing quotas into the wanted ones.

    Without `prune`, quotas that are not wanted stay.
    """
    changes: dict[QuotaEntity, Change] = {}
    for entity in [*wanted, *(one for one in existing if one not in wanted)]:
        before, after = existing.get(entity, {}), wanted.get(entity, {})
        change: Change = {key: v for key, v in after.items() if before.get(key) != v}
        if prune:
            change |= dict.fromkeys(key for key in before if key not in after)
        if change:
            changes[entity] = change
    return changes


def _print_changes(changes: Mapping[QuotaEntity, Change], output: Output, *, would: str) -> None:
    rows = [
        (entity, key, change[key])
        for entity, change in sorted(changes.items(), key=lambda item: item[0].path)
        for key in QuotaKey
        if key in change
    ]

    def status(limit: float | None) -> str:
        return f"{would}{'removed' if limit is None else 'set'}"

    print_list(
        rows,
        output,
        items="changes",
        columns={
            "Quota of": lambda row: str(row[0]),
            "Key": lambda row: row[1].value,
            "Limit": lambda row: "-" if row[2] is None else format_limit(row[2]),
            "Status": lambda row: status(row[2]),
        },
        document=lambda row: {
            "entity": dict(row[0].named()),
            "key": row[1].value,
            "limit": row[2],
            "status": status(row[2]),
        },
        name=lambda row: f"{row[0]} {row[1].value}",
    )


def _key(entity: QuotaEntity, name: str) -> QuotaKey:
    key = key_of(entity, name)
    if key is None:
        possible = ", ".join(one for one in QuotaKey if key_of(entity, one))
        raise typer.BadParameter(f"{name} is not one of {possible}")
    return key


def _limit(entity: QuotaEntity, text: str) -> tuple[QuotaKey, float]:
    name, _, number = text.partition("=")
    key = _key(entity, name)
    try:
        value = float(number)
    except ValueError:
        raise typer.BadParameter(f"{text} is not KEY=VALUE with a number") from None
    return key, _checked(key, value)


def _checked(key: QuotaKey, value: float) -> float:
    if problem := value_problem(key, value):
        raise typer.BadParameter(problem)
    return value


def _declared(item: Mapping[str, Any]) -> tuple[QuotaEntity, dict[QuotaKey, float]]:
    """Return the quotas of an entity as `export` prints them. Raises BadParameter."""
    parts, limits = item.get("entity"), item.get("quotas")
    if item.keys() != {"entity", "quotas"} or not (
        isinstance(parts, dict) and isinstance(limits, dict)
    ):
        raise typer.BadParameter("must have entity and quotas, both of them mappings")
    if not parts.keys() <= _PARTS.keys():
        raise typer.BadParameter(f"an entity has {', '.join(_PARTS)}, and no other")
    if not all(name is None or isinstance(name, str) for name in parts.values()):
        raise typer.BadParameter("a name must be text, or null for the default")
    names = {_PARTS[kind]: DEFAULT if name is None else name for kind, name in parts.items()}
    entity = _entity(**names)
    declared_limits = {}
    for name, value in limits.items():
        key = _key(entity, str(name))
        if isinstance(value, bool) or not isinstance(value, int | float):
            raise typer.BadParameter(f"{name} must be a number")
        declared_limits[key] = _checked(key, float(value))
    return entity, declared_limits


_PARTS: Final = {"user": "user", "client-id": "client_id", "ip": "ip"}


def _explanation_row(explanation: Explanation) -> dict[str, object]:
    applied = explanation.applied
    return {
        "key": explanation.key.value,
        "limit": applied.limit if applied else None,
        "applies": applied.source if applied else None,
        "tags": dict(applied.tags) if applied else None,
        "shared_by": applied.shared_by if applied else None,
        "considered": [
            {"row": one.row, "source": one.source, "limit": one.limit}
            for one in explanation.considered
        ],
    }


def _in_order_of_path(quotas: Quotas) -> list[tuple[QuotaEntity, Mapping[QuotaKey, float]]]:
    return sorted(quotas.items(), key=lambda item: item[0].path)


def _document(entity: QuotaEntity, limits: Mapping[QuotaKey, float]) -> dict[str, Any]:
    quotas = {key.value: value for key, value in _in_order(limits)}
    return {"entity": dict(entity.named()), "quotas": quotas}


def _in_order(limits: Mapping[QuotaKey, float]) -> list[tuple[QuotaKey, float]]:
    return [(key, limits[key]) for key in QuotaKey if key in limits]


def _print_explanations(explanations: Sequence[Explanation]) -> None:
    for explanation in explanations:
        applied = explanation.applied
        if applied is None or applied.limit is None:
            say(f"{explanation.key}: no limit, none of the rows has one")
            continue
        limit = format_limit(applied.limit)
        say(f"{explanation.key}: {limit}, shared by {printable(applied.shared_by)}")
        considered = explanation.considered
        end = considered.index(applied) + 1
        other_groups = (one for one in considered[end:] if one.row == GROUP_ROW)
        for one in (*considered[:end], *other_groups):
            what = "not set" if one.limit is None else f"would be {format_limit(one.limit)}"
            what = "applies" if one is applied else what
            row = one.row or "group"
            say(f"  {row}. {printable(one.source)}: {what}")
