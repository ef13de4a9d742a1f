"""Tables of test cases that are data."""

import json
from pathlib import Path
from typing import Any


def table(beside: str, name: str) -> list[Any]:
    """Return the rows of NAME.jsonl, which is in the folder of the file `beside`."""
    path = Path(beside).with_name(f"{name}.jsonl")
    return [json.loads(line) for line in path.read_text().splitlines()]
