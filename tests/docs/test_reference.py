import re
import shutil
from pathlib import Path

import pytest

from docs.generate import reference
from docs.generate.__main__ import main
from metrics.events import EventKind, IntervalEnd

KIP_368 = [
    f"{kind}-{form}"
    for kind in (
        "successful-authentication",
        "failed-authentication",
        "successful-reauthentication",
        "failed-reauthentication",
        "successful-authentication-no-reauth",
    )
    for form in ("rate", "total")
] + [
    "reauthentication-latency-avg",
    "reauthentication-latency-max",
    "ExpiredConnectionsKilledCount",
]


def test_the_pages_are_as_the_code_declares() -> None:
    """With the dashboards and the chart."""
    assert main(["--check"]) == 0


def test_every_metric_of_the_kip_has_a_query() -> None:
    page = (reference.DOCS / "metrics.md").read_text()
    assert [name for name in KIP_368 if f"| `{name}` |" not in page] == []


def test_every_kind_is_explained() -> None:
    page, ends = (reference.DOCS / "events.md").read_text().split("| ended_by | meaning |")
    for kind in EventKind:
        assert re.search(rf"^\| `{kind}` \| [^ |]", page, re.MULTILINE)
    for end in IntervalEnd:
        assert f"| `{end}` |" in ends


def test_a_stale_page_is_found_and_mended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in reference.TABLES:
        shutil.copy(reference.DOCS / name, tmp_path)
    page = tmp_path / "metrics.md"
    written = page.read_text()
    page.write_text(written.replace(" gauge ", " counter ", 1))
    monkeypatch.setattr(reference, "DOCS", tmp_path)
    assert main(["--check"]) == 1
    assert "metrics.md is out of date" in capsys.readouterr().err
    assert main([]) == 0
    assert page.read_text() == written
    assert main(["--check"]) == 0
