"""Groups of SCRAM users and of clients without SASL, from a file that changes while they are
connected."""

import asyncio
import json
import logging
from functools import partial
from pathlib import Path

import pytest

from proxy.connection.connection import Connection
from proxy.errors import ConfigError
from proxy.worker import listener as listeners
from proxy.worker.identity_services import FileService, read_memberships
from proxy.worker.listener import Listener
from sasl.identity import Identity
from tests.support.frames import api_versions
from tests.support.playbook import SCRAM, Playbook, log_in_by_scram
from tests.support.relay import PLAINTEXT, Services, listen, listener_of, read_frame, settings_of


def write(directory: Path, **groups: list[str]) -> Path:
    path = directory / "groups.json"
    staged = directory / "staged"
    staged.write_text(json.dumps({"groups": groups}))
    staged.replace(path)
    return path


async def test_open_connections_follow_the_file(tmp_path: Path) -> None:
    write(tmp_path, guests=["User:ANONYMOUS"])
    async with listen(tmp_path, PLAINTEXT | {"groups.file": "groups.json"}) as running:
        reader, writer = await running.connect()
        writer.write(api_versions(1))
        await read_frame(reader)
        (client,) = running.listener.clients
        assert client.connection is not None
        authentication, memberships = client.connection.authentication, running.listener.memberships
        assert memberships is not None

        def groups() -> tuple[str, ...]:
            assert authentication.identity is not None
            return authentication.identity.groups

        assert groups() == ("Group:guests",)
        write(tmp_path, guests=["User:else"], others=["User:ANONYMOUS"])
        await memberships.refresh()
        assert groups() == ("Group:others",)
        (tmp_path / "groups.json").write_text('{"groups": {"guests": ["User:ANONYM')
        await memberships.refresh()
        assert groups() == ("Group:others",), "half a file changes nothing"
        (tmp_path / "groups.json").unlink()
        await memberships.refresh()
        assert groups() == ("Group:others",), "nor does none"
        write(tmp_path)
        await memberships.refresh()
        assert groups() == ()
        writer.close()


async def test_other_work_goes_on_while_connections_are_regrouped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One that is closed meanwhile is left alone."""
    monkeypatch.setattr(listeners, "REGROUPED_AT_ONCE", 1)
    write(tmp_path)
    async with listen(tmp_path, PLAINTEXT | {"groups.file": "groups.json"}) as running:
        writers = []
        for _ in range(3):
            reader, writer = await running.connect()
            writer.write(api_versions(1))
            await read_frame(reader)
            writers.append(writer)
        connections = [client.connection for client in running.listener.clients]
        memberships = running.listener.memberships
        assert memberships is not None

        def regrouped() -> list[Connection]:
            identities = [(one, one.authentication.identity) for one in connections if one]
            return [one for one, identity in identities if identity and identity.groups]

        write(tmp_path, guests=["User:ANONYMOUS"])
        seen = set()
        refresh = asyncio.create_task(memberships.refresh())
        while not refresh.done():
            if len(regrouped()) == 1 and 1 not in seen:
                open_ones = [one for one in running.listener.clients if one.connection]
                next(one for one in open_ones if one.connection not in regrouped()).evict()
            seen.add(len(regrouped()))
            await asyncio.sleep(0)
        assert seen >= {0, 1}
        assert len(regrouped()) == 2
        for writer in writers:
            writer.close()


def test_users_have_the_groups_of_their_principals(tmp_path: Path) -> None:
    """Those of the name that the rules make."""
    write(tmp_path, analysts=["User:alice@x"], others=["User:alice"])
    given = {
        "sasl.enabled.mechanisms": [SCRAM],
        "sasl.scram.principal.mapping.rules": "RULE:^(.*)$/$1@x/",
        "groups.file": "groups.json",
    }

    async def made() -> Listener:
        return listener_of(settings_of(tmp_path, given)[0], Services())

    play = Playbook()
    play.open(asyncio.run(made()).rules)
    log_in_by_scram(play, version=1)
    assert play.connection.authentication.identity == Identity("User:alice@x", ["Group:analysts"])


async def test_a_file_is_logged_once_for_each_problem(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    calls: list[None] = []
    path = write(tmp_path)
    caplog.set_level(logging.INFO)

    async def changed() -> None:
        calls.append(None)

    service = FileService(path, partial(read_memberships, path), changed)

    async def refresh(text: str) -> None:
        path.write_text(text)
        await service.refresh()

    await service.refresh()
    await refresh("{")
    await refresh("{ ")
    await refresh('{"groups": {"a": ["User:x", "User:y"]}}')
    assert calls == [None]
    assert [record.getMessage() for record in caplog.records] == [
        f"{path} is not a JSON object, or is incomplete; its last content applies",
        f"{path}: read again, 2 clients have groups",
    ]


async def never() -> None:
    raise AssertionError("nothing has been read again")


@pytest.mark.parametrize("content", [None, "", "{}"])
def test_without_a_valid_file_nothing_starts(tmp_path: Path, content: str | None) -> None:
    path = tmp_path / "groups.json"
    if content is not None:
        path.write_text(content)
    with pytest.raises(ConfigError, match=r"^groups\.file: .*groups\.json"):
        FileService(path, partial(read_memberships, path), never)
