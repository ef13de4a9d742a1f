"""Stages of a whole request: their inputs, waits and verdicts.

Laws:

- A stage is given a request and the time, and returns a verdict. It holds no connection: what it
  says is carried out by `proxy.connection.verdicts`.
- A stage that must wait yields what it waits for, and goes on where it stopped with what came of
  it. Meanwhile its client waits, and nobody else does.
"""

from collections.abc import Generator
from dataclasses import dataclass
from typing import Any, TypeVar

from proxy.acl.decision import Judgement
from proxy.connection.commands import CloseReason
from proxy.scheduling.steps import Steps
from proxy.wire.request import Request

T = TypeVar("T")


@dataclass(slots=True)
class Pending:
    """A request that is being judged."""

    request: Request
    now: float
    """Monotonic seconds; later than before after each wait."""
    judged_by: object = None
    """Stands for the rights by which it was judged last; None: it was not judged yet."""


@dataclass(frozen=True, slots=True)
class Work:
    """Wait for long work, which is done in steps; its result is sent back."""

    steps: Steps[Any]
    size: int
    """Bytes of what it is about."""


@dataclass(frozen=True, slots=True)
class Ask:
    """Wait for the broker's answer to a Metadata request of the proxy's own.

    What stands behind its size is sent back; None: the broker does not offer this version.
    """

    api_version: int
    frame: bytes


Wait = Work | Ask
Stage = Generator[Wait, Any, T]

Verdict = Judgement | CloseReason
"""Verdict on a request: it is forwarded, changed, answered, or ends its connection."""
