"""Commands `reauth-proxy users`: SCRAM users.

A password is never an argument: every process of the machine could read it.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from proxy.cli.common import (
    CONFIG_VARIABLE,
    ConfigFile,
    DefaultConfigOption,
    Exit,
    config_by_default,
    explained,
    fail,
    group,
    loaded_config,
    note,
    option,
    printable,
    read_input,
    say,
    takes_groups,
    user_name,
    utf8,
)
from proxy.cli.listing import Output, OutputOption, print_list
from proxy.errors import ConfigError
from sasl.credentials import (
    DEFAULT_ITERATIONS,
    MAX_ITERATIONS,
    MIN_ITERATIONS,
    ScramCredential,
    ScramMechanism,
)
from sasl.salts import new_salt

if TYPE_CHECKING:
    from proxy.cli.administration import Administration
    from proxy.connection.blocks import Block
    from proxy.quota.model import QuotaEntity, QuotaKey, Quotas
    from proxy.store.interface import CredentialStore, UserStore
    from proxy.store.kraft import Metadata


MAX_PASSWORD_BYTES = 4_096
"""Maximum length of a password in bytes, far beyond any; bounds what a wrong path can cost."""
_MAX_NAMED = 10
"""Maximum number of users that an error message names."""

app = group("Manage the users of SCRAM.")

Name = Annotated[str, typer.Argument(metavar="NAME", hidden=True, callback=user_name)]


@dataclass(frozen=True, slots=True, kw_only=True)
class UsersPlace:
    """Options for the place of users: a proxy's store, or a file for several proxies."""

    config: DefaultConfigOption = None
    users_file: Annotated[
        Path | None,
        option(
            "FILE", "A file of users for several proxies (store.users.file), in place of --config."
        ),
    ] = None

    @contextmanager
    def opened(self, *, to_change: bool = False) -> "Iterator[CredentialStore]":
        """Yield the users. Raises BadParameter and Exit."""
        config = self.config if self.users_file is not None else self.config or config_by_default()
        if self.users_file is not None and config is None:
            from proxy.store.users_file import EditedUsers

            with explained(self.users_file):
                yield EditedUsers(self.users_file)
        elif config is not None and self.users_file is None:
            with explained(config), _configured(config) as (users, file):
                if to_change and file is not None:
                    raise ConfigError("store.users.file", f"{file} is changed with --users-file")
                yield users
        else:
            raise typer.BadParameter(
                f"give either --config or --users-file, or set {CONFIG_VARIABLE}"
            )


@app.command()
@takes_groups
def add(
    *,
    name: Name,
    mechanism: Annotated[ScramMechanism, option("MECHANISM", "SCRAM-SHA-256 or SCRAM-SHA-512.")],
    place: UsersPlace,
    password_file: Annotated[
        Path | None,
        option("FILE", "Read the password from a file, - for stdin; without it, it is asked for."),
    ] = None,
    iterations: Annotated[
        int,
        option("COUNT", "Iterations that a guess costs.", min=MIN_ITERATIONS, max=MAX_ITERATIONS),
    ] = DEFAULT_ITERATIONS,
) -> None:
    """Add a user, or replace its password for this mechanism."""
    if not utf8(name):
        raise typer.BadParameter("the name must not be empty")
    with place.opened(to_change=True) as users:
        password = _password(password_file)
        verifier = ScramCredential.from_password(mechanism, password, new_salt(), iterations)
        users.alter_credentials(upsert={(name, mechanism): verifier})
    say(f"{printable(name)} may log in with {mechanism.value}")


@app.command(name="list")
@takes_groups
def list_users(*, place: UsersPlace, output: OutputOption = Output.TABLE) -> None:
    """List users and their mechanisms."""
    from proxy.store.interface import by_user

    with place.opened() as users:
        credentials = users.credential_snapshot().credentials
    rows = [(*key, verifier.iterations) for key, verifier in by_user(credentials)]
    print_list(
        rows,
        output,
        items="users",
        columns={
            "User": lambda row: row[0],
            "Mechanism": lambda row: row[1].value,
            "Iterations": lambda row: str(row[2]),
        },
        document=lambda row: {"user": row[0], "mechanism": row[1].value, "iterations": row[2]},
        name=lambda row: row[0],
    )


@app.command()
@takes_groups
def remove(
    *,
    name: Name,
    place: UsersPlace,
    mechanism: Annotated[
        ScramMechanism | None, option("MECHANISM", "This one only; without it, all.")
    ] = None,
    revoke: Annotated[
        bool,
        typer.Option(
            "--revoke", help="End the user's sessions at every proxy with the same block.file."
        ),
    ] = False,
) -> None:
    """Remove a user. Sessions that are open stay until they re-authenticate, unless
    `revoke.sessions` is `at-once`, or with --revoke."""
    if revoke and place.users_file is not None:
        raise typer.BadParameter("--revoke needs --config: with --users-file, use block")
    wanted = tuple(ScramMechanism) if mechanism is None else (mechanism,)
    keys = frozenset((name, one) for one in wanted)
    with place.opened(to_change=True) as users:
        missing = users.alter_credentials(delete=keys, upsert={})
    if missing == keys:
        how = f" with {mechanism.value}" if mechanism else ""
        raise fail(f"there is no user {name}{how}", Exit.REFUSED)
    say(f"{printable(name)} is removed")
    if revoke:
        from proxy.cli import blocks

        blocks.revoke(place.config, _entries_of(name, place), "users remove --revoke")


def _entries_of(name: str, place: UsersPlace) -> "list[Block]":
    """Return an entry for each principal that a SCRAM user has on some listener."""
    from proxy.acl.principals import PrincipalMapping
    from proxy.connection.blocks import Block

    listeners = loaded_config(place.config, "--config").listeners
    rules = {one.sasl_scram_principal_mapping_rules for one in listeners}
    names = {PrincipalMapping(one).try_name_of(name) if one else name for one in rules}
    return [Block(principal=f"User:{one}") for one in sorted(filter(None, names))]


@app.command()
def export(
    config: ConfigFile,
    users_file: Annotated[
        Path, option("FILE", "Created if missing; may hold users of other proxies.")
    ],
) -> None:
    """Add this proxy's users to a file for several proxies (store.users.file).

    Nothing is done if the file has another verifier of one of them. It holds verifiers, no
    passwords; but with them passwords can be guessed, so keep it like a key.
    """
    from proxy.store.users_file import EditedUsers

    with explained(config), _configured(config) as (users, _):
        file = EditedUsers(users_file, secret=users.scram_fake_secret())
        added = users.credential_snapshot().credentials
        if not added:
            raise fail("the store has no users", Exit.REFUSED)
        present = file.credential_snapshot().credentials
        differing = sorted({key[0] for key in added.keys() & present if added[key] != present[key]})
        if differing:
            names = ", ".join(differing[:_MAX_NAMED])
            raise fail(f"{users_file}: has other verifiers of {names}", Exit.REFUSED)
        file.alter_credentials(upsert=added)
    say(f"{len(added)} verifiers are in {printable(str(users_file))}")


@app.command(name="import")
@takes_groups
def import_users(
    *,
    from_kraft: Annotated[
        Path,
        option(
            "DIR",
            "The log.dirs or metadata.log.dir of a KRaft node, or a snapshot of its metadata.",
        ),
    ],
    place: UsersPlace,
    acls: Annotated[bool, typer.Option("--acls", help="Import ACLs as well.")] = False,
    quotas: Annotated[bool, typer.Option("--quotas", help="Import quotas as well.")] = False,
    remove: Annotated[
        bool,
        typer.Option("--remove", help="Remove users, ACLs and quotas that are not in the cluster."),
    ] = False,
    output: OutputOption = Output.TABLE,
) -> None:
    """Take over a KRaft cluster's users, so that no user needs a new password.

    May be repeated: only new and changed items are written.
    """
    if place.users_file is not None and (acls or quotas):
        raise typer.BadParameter("--users-file has neither ACLs nor quotas: give --config")
    from proxy.cli.administration import Where, administration
    from proxy.store.kraft import read_metadata

    with explained():
        metadata = read_metadata(from_kraft)
    with place.opened(to_change=True) as users:
        rows = [_import_verifiers(metadata, users, remove=remove)]
    if acls or quotas:
        with administration(Where(config=place.config)) as store:
            if acls:
                rows.append(_import_acls(metadata, store, remove=remove))
            if quotas:
                rows.append(_import_quotas(metadata, store, remove=remove))
    _print_summary(metadata.left_out, rows, output, is_removed=remove)


@contextmanager
def _configured(config: Path) -> "Iterator[tuple[UserStore, Path | None]]":
    """Yield the users of a proxy, and the file that has them; None if they are in the store."""
    from proxy.cli.administration import opened_store
    from proxy.config import load
    from proxy.store import open_users

    settings = load(config)
    users_file = settings.store.users_file
    with opened_store(settings.store.url, settings.admin_socket()) as store:
        yield open_users(users_file, store), users_file


def _password(file: Path | None) -> str:
    if file is not None:
        password = _read_password(file)
    elif sys.stdin.isatty():
        password = typer.prompt("Password", hide_input=True, confirmation_prompt=True)
    else:
        raise typer.BadParameter(
            "there is no terminal to ask for the password: use --password-file, with - for stdin"
        )
    if not password:
        raise fail("the password must not be empty", Exit.USAGE)
    return password


def _read_password(file: Path) -> str:
    """Return a file's text without the newline that editors and `echo` put at its end."""
    try:
        text = read_input(file, MAX_PASSWORD_BYTES).decode()
    except UnicodeDecodeError:
        raise fail("the password is not UTF-8 text", Exit.USAGE) from None
    return text.removesuffix("\n").removesuffix("\r")


# Import of a KRaft cluster


Difference = dict[str, Any]
"""Kind of items, and how many of them are new, changed, the same, and only in the store."""


def _difference(kind: str, before: Mapping[Any, Any], after: Mapping[Any, Any]) -> Difference:
    """Compare the store before the import with the cluster."""
    same = sum(key in before and before[key] == value for key, value in after.items())
    common = len(before.keys() & after.keys())
    return {
        "kind": kind,
        "new": len(after) - common,
        "changed": common - same,
        "same": same,
        "gone": len(before) - common,
    }


def _import_verifiers(
    metadata: "Metadata", users: "CredentialStore", *, remove: bool
) -> Difference:
    before, after = users.credential_snapshot().credentials, metadata.credentials
    changed = {key: one for key, one in after.items() if before.get(key) != one}
    gone = before.keys() - after.keys() if remove else frozenset()
    if changed or gone:
        users.alter_credentials(delete=gone, upsert=changed)
    return _difference("verifiers", before, after)


def _import_acls(metadata: "Metadata", store: "Administration", *, remove: bool) -> Difference:
    from proxy.acl.model import AclFilter, exactly

    before, after = frozenset(store.acls([AclFilter()])), metadata.acls()
    refusals = store.create_acls(sorted(after - before)) if after - before else {}
    if refused := [f"{acl}: {why}" for acl, why in refusals.items() if why is not None]:
        raise fail(f"{len(refused)} ACLs are refused, such as {refused[0]}", Exit.REFUSED)
    if remove and before - after:
        store.delete_acls([exactly(acl) for acl in sorted(before - after)])
    return _difference("ACLs", dict.fromkeys(before), dict.fromkeys(after))


def _import_quotas(metadata: "Metadata", store: "Administration", *, remove: bool) -> Difference:
    from proxy.cli.quotas import changes_to_make

    before, after = store.quotas(), metadata.quotas()
    if changes := changes_to_make(before, after, prune=remove):
        store.alter_quotas(changes)
    return _difference("quotas", _by_key(before), _by_key(after))


def _by_key(quotas: "Quotas") -> "dict[tuple[QuotaEntity, QuotaKey], float]":
    return {
        (entity, key): value for entity, limits in quotas.items() for key, value in limits.items()
    }


def _print_summary(
    left_out: int, rows: Sequence[Difference], output: Output, *, is_removed: bool
) -> None:
    """Print the numbers of imported items, and of those that were left out."""
    gone = "Removed" if is_removed else "Only in the store, kept"
    print_list(
        rows,
        output,
        items="differences",
        columns={
            "": lambda one: one["kind"],
            "New": lambda one: str(one["new"]),
            "Changed": lambda one: str(one["changed"]),
            "Same": lambda one: str(one["same"]),
            gone: lambda one: str(one["gone"]),
        },
        document=dict,
        name=lambda one: one["kind"],
    )
    if left_out:
        note(
            f"{left_out} users, ACLs and quotas of the cluster are invalid or unknown to this"
            " version, and left out"
        )
