"""Delivery to an S3-compatible server, which takes Go, as clients of Kafka here do."""

from pathlib import Path

import obstore
import pytest
from obstore.store import S3Store
from typer.testing import CliRunner, Result

from benchmarks.events.generate import generate
from proxy.cli import app
from tests.support.delivery import SIZE, report_of
from tests.support.kafka.objects import SECRET

pytestmark = pytest.mark.kafka


def deliver(folder: Path, to: str) -> Result:
    return CliRunner().invoke(app, ["events", "deliver", "--events", str(folder), "--to", to])


def objects(prefix: str) -> dict[str, bytes]:
    """The contents of all objects below a prefix, by their names below it."""
    store = S3Store("events", prefix=prefix)
    found = [one for page in obstore.list(store) for one in page]
    return {one["path"]: bytes(obstore.get(store, one["path"]).bytes()) for one in found}


@pytest.mark.usefixtures("object_store")
def test_the_report_of_the_bucket_is_that_of_the_folder(tmp_path: Path) -> None:
    events, copy = tmp_path / "events", tmp_path / "copy"
    generate(SIZE, events, parquet=False)
    assert deliver(events, "s3a://events/fleet/a").output.endswith("events delivered\n")
    found = objects("fleet/a")
    assert all(name.startswith("date=2026-06-01/proxy=generated/events-") for name in found)
    for name, content in found.items():
        (copy / name).parent.mkdir(parents=True, exist_ok=True)
        (copy / name).write_bytes(content)
    assert report_of(events) == report_of(copy)


@pytest.mark.usefixtures("object_store")
def test_a_second_delivery_changes_nothing(tmp_path: Path) -> None:
    (tmp_path / "events-p-0-20260601T120000Z-0.jsonl").write_bytes(b"one\ntwo\n")
    contents = []
    for _ in range(2):
        assert deliver(tmp_path, "s3a://events/twice").exit_code == 0
        contents.append(objects("twice"))
        (tmp_path / "delivery.json").unlink()
    assert len(contents[0]) == 1
    assert contents[0] == contents[1]


@pytest.mark.parametrize(
    ("variable", "value", "to"),
    [
        ("AWS_ACCESS_KEY_ID", "stranger", "s3a://events"),
        ("AWS_ACCESS_KEY_ID", "writer", "s3a://missing"),
        ("AWS_ENDPOINT_URL", "http://127.0.0.1:9", "s3a://events"),
        ("AWS_ENDPOINT_URL", "no address", "s3a://events"),
    ],
)
@pytest.mark.usefixtures("object_store")
def test_what_the_store_refuses_waits(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    variable: str,
    value: str,
    to: str,
) -> None:
    """A wrong key, a bucket that is not there, a server that is away: no secret is logged."""
    (tmp_path / "events-p-0-20260601T120000Z-0.jsonl").write_bytes(b"one\n")
    monkeypatch.setenv(variable, value)
    result = deliver(tmp_path, to)
    assert result.exit_code == 1
    assert "does not take them: " in caplog.text
    assert SECRET not in caplog.text + result.output
