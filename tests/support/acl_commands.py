"""`reauth-proxy acls` as a program runs it, and the ACLs of a store's file."""

import json
from pathlib import Path
from typing import Any

from typer.testing import CliRunner, Result

from proxy.acl.model import Acl, Operation, ResourceType
from proxy.cli import app
from proxy.store import open_store
from tests.support.acls import acl

ALICE = ("--allow-principal", "User:alice")
READ, WRITE, DESCRIBE = Operation.READ, Operation.WRITE, Operation.DESCRIBE
GROUP, CLUSTER = ResourceType.GROUP, ResourceType.CLUSTER


def run(*arguments: object, stdin: str = "") -> Result:
    words = ["acls", *(str(argument) for argument in arguments)]
    return CliRunner().invoke(app, words, input=stdin)


def kept(store: Path) -> set[Acl]:
    opened = open_store(f"sqlite:{store}")
    try:
        return set(opened.acl_snapshot().acls)
    finally:
        opened.close()


def put(store: Path, *acls: Acl) -> None:
    opened = open_store(f"sqlite:{store}")
    opened.create_acls(acls)
    opened.close()


def rows(result: Result) -> list[dict[str, Any]]:
    assert result.exit_code == 0, result.output
    found: list[dict[str, Any]] = json.loads(result.stdout)
    return found


def every(*operations: Operation, **fields: Any) -> set[Acl]:
    return {acl(operation=operation, **fields) for operation in operations}
