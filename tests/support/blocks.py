"""Block lists as their files have them."""

import json
from typing import Any

from proxy.connection.blocks import Blocks
from tests.support.sasl import NOW


def document(*entries: dict[str, Any], version: int = 1, count: int | None = None) -> bytes:
    head = {"version": version, "entries": len(entries) if count is None else count}
    lines = [head, *({"id": str(number)} | one for number, one in enumerate(entries))]
    return b"".join(json.dumps(line).encode() + b"\n" for line in lines)


def blocks(*entries: dict[str, Any], now: float = NOW) -> Blocks:
    return Blocks.parse(document(*entries), {}, now)
