"""The rules of .vale/ find the patterns that they are for, and leave plain sentences alone."""

import json
import shutil
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
FOUND: Final = """\
Carry out what comes of it.
The rest of what clients sent is dropped.
Who may not is refused.
What was decided is carried out.
It is closed if there is none.
The log says why the login failed.
Clients are told a lifetime.
Let DuckDB read the folder.
Nothing is forwarded that was not judged.
The proxy knows no stranger.
The server wants a login.
The configuration is read anew.
Everything passes but for Produce.
"""
PLAIN: Final = """\
The rest of the read is dropped.
Denied principals are refused.
The log shows the reason of a failed login.
Brokers announce a lifetime to clients.
Only judged requests are forwarded.
Do you know what to do, and what it costs?
"""


@pytest.mark.skipif(shutil.which("vale") is None, reason="needs Vale")
@pytest.mark.parametrize("suffix", [".md", ".py"])
def test_every_lapse_and_no_plain_sentence_is_found(tmp_path: Path, suffix: str) -> None:
    lines = (FOUND + PLAIN).splitlines()
    if suffix == ".md":
        text = "\n\n".join(lines)
    else:
        text = "\n".join(f'def function_{n}():\n    """{line}"""\n' for n, line in enumerate(lines))
    file = tmp_path / f"text{suffix}"
    file.write_text(text)
    done = subprocess.run(
        ["vale", f"--config={ROOT / '.vale.ini'}", "--output=JSON", str(file)],
        capture_output=True,
        text=True,
    )
    (alerts,) = json.loads(done.stdout).values()
    numbered = text.splitlines()
    found = {numbered[alert["Line"] - 1].strip().strip('"') for alert in alerts}
    assert found == {*FOUND.splitlines()}
