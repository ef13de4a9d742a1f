"""The admin socket, by its peers."""

import asyncio
import logging
import tempfile
from pathlib import Path

import pytest

from proxy.net.sockets import connect_privately, listen_privately
from proxy.ops.http_process import AdminSocket
from proxy.ops.worker_queries import WorkerPool
from proxy.store.interface import StoreInUse
from tests.support.processes import until


class Served(AdminSocket):
    """An admin socket that counts the peers that it is done with."""

    ended = 0

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await super()._client(reader, writer)
        self.ended += 1


def no_store() -> StoreInUse:
    raise AssertionError("nobody asks for it")


@pytest.mark.parametrize(
    ("sent", "logged"), [(b"", []), (b"?\n", ["an operator did not wait for the answer"])]
)
def test_a_peer_that_only_tries_whether_the_proxy_runs_is_not_logged(
    sent: bytes, logged: list[str], caplog: pytest.LogCaptureFixture
) -> None:
    """As `config check --connect` does, and a start."""

    async def serve(path: Path) -> None:
        operators = Served(WorkerPool([]), no_store)
        server = await operators.serve(listen_privately(path))
        with connect_privately(path, timeout=1.0) as peer:
            peer.sendall(sent)
        await until(lambda: operators.ended == 1)
        server.close()

    with tempfile.TemporaryDirectory() as directory, caplog.at_level(logging.INFO):
        asyncio.run(serve(Path(directory) / "admin.sock"))
    assert caplog.messages == logged
