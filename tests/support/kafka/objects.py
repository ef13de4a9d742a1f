"""An S3-compatible server with the bucket `events`, written in Go."""

import subprocess
from collections.abc import Iterator
from contextlib import contextmanager

from tests.support.kafka import go

SECRET = "no-such-secret"


@contextmanager
def served_objects() -> Iterator[str]:
    """Run the server; yield its endpoint."""
    program = str(go.program("objects"))
    with subprocess.Popen(
        [program], stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as server:
        assert server.stdout is not None
        yield f"http://127.0.0.1:{int(server.stdout.readline())}"
        server.kill()
