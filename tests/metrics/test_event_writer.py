import json
import os
import shutil
import signal
import time
from pathlib import Path

from metrics.event_log import EventLogSettings
from metrics.event_writer import EventWriter
from metrics.registry import EVENT_LOG_BYTES, EVENTS_DROPPED, EVENTS_WRITTEN
from metrics.snapshot import Snapshot
from tests.support.metrics import event, to_json_line


def line(sequence: int = 0) -> str:
    return to_json_line(event(sequence=sequence))


def writer_in(directory: Path, *, queue_events: int = 1000, flush: float = 0.01) -> EventWriter:
    settings = EventLogSettings(directory=directory, proxy_id="p", worker=0)
    return EventWriter(settings, queue_events=queue_events, flush_seconds=flush)


def figures(writer: EventWriter) -> tuple[float, float, dict[str, float]]:
    snapshot = Snapshot()
    writer.report(snapshot, rate_limited=0)
    dropped = snapshot.values[EVENTS_DROPPED.name]
    return (
        snapshot.values[EVENTS_WRITTEN.name][()],
        snapshot.values[EVENT_LOG_BYTES.name][()],
        {labels[0]: value for labels, value in dropped.items() if value},
    )


def wait_for_one(writer: EventWriter) -> None:
    """Until its thread has written an event."""
    deadline = time.monotonic() + 60
    while figures(writer)[0] == 0:
        assert time.monotonic() < deadline
        os.sched_yield()


def test_what_is_emitted_is_written_in_order(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    writer.start()
    for sequence in range(500):
        writer.emit(line(sequence=sequence))
    assert writer.close()
    (path,) = tmp_path.iterdir()
    lines = path.read_text().splitlines()
    assert path.suffix == ".jsonl"
    assert [json.loads(line)["sequence"] for line in lines] == list(range(500))
    assert figures(writer) == (500, path.stat().st_size, {})


def test_a_full_queue_drops_and_counts(tmp_path: Path) -> None:
    """A thread that has not begun is like one whose disk is stuck: the data path must not wait."""
    writer = writer_in(tmp_path, queue_events=10)
    for sequence in range(10_000):  # a blocking writer would block forever: nothing takes events
        writer.emit(line(sequence=sequence))
    writer.start()
    assert writer.close()
    assert figures(writer)[0] == 10
    assert figures(writer)[2] == {"queue_full": 9990}
    assert writer.lost == 9990


def test_a_dropped_event_leaves_a_gap_in_the_numbers(tmp_path: Path) -> None:
    writer = writer_in(tmp_path, queue_events=2)
    for _ in range(4):
        writer.emit(line())
    writer.start()
    wait_for_one(writer)
    writer.emit(line())
    assert writer.close()
    (path,) = tmp_path.iterdir()
    numbers = [json.loads(line)["log_sequence"] for line in path.read_text().splitlines()]
    assert numbers == [0, 1, 4]


def test_events_of_a_directory_that_was_removed_are_counted_as_lost(tmp_path: Path) -> None:
    """Without an event in between: the thread looks by itself."""
    writer = writer_in(tmp_path / "events")
    writer.start()
    writer.emit(line())
    wait_for_one(writer)
    shutil.rmtree(tmp_path / "events")
    deadline = time.monotonic() + 60
    while not figures(writer)[2]:
        assert time.monotonic() < deadline
        os.sched_yield()
    writer.emit(line(sequence=1))
    assert writer.close()
    assert (figures(writer)[0], figures(writer)[2]) == (2, {"file_removed": 1})
    assert len(list((tmp_path / "events").glob("*.jsonl"))) == 1


def test_who_follows_the_open_file_sees_events_soon(tmp_path: Path) -> None:
    writer = writer_in(tmp_path)
    writer.start()
    writer.emit(line())
    wait_for_one(writer)
    (path,) = tmp_path.iterdir()
    assert path.name.endswith(".jsonl.open")
    assert json.loads(path.read_text())["connection_id"] == "c-1"
    writer.close()


def test_what_a_killed_process_wrote_is_recovered(tmp_path: Path) -> None:
    """SIGKILL leaves an open file behind; the lock dies with its holder."""
    read_end, write_end = os.pipe()
    child = os.fork()
    if child == 0:  # pragma: no cover - another process
        try:
            writer = writer_in(tmp_path)
            writer.start()
            writer.emit(line())
            wait_for_one(writer)
            os.write(write_end, b"!")
            signal.pause()
        finally:
            os._exit(1)  # it must never continue with the other tests
    os.close(write_end)
    answered = os.read(read_end, 1)
    os.kill(child, signal.SIGKILL)
    os.waitpid(child, 0)
    assert answered == b"!"
    (orphan,) = tmp_path.iterdir()
    with orphan.open("ab") as file:
        file.write(b'{"schema_version":1,"ki')
    writer = writer_in(tmp_path)
    writer.start()
    assert writer.close()
    (path,) = tmp_path.iterdir()
    assert path.suffix == ".jsonl"
    assert [json.loads(line)["kind"] for line in path.read_text().splitlines()] == ["checkpoint"]


def test_rate_limited_lines_are_counted_beside_lost_ones(tmp_path: Path) -> None:
    snapshot = Snapshot()
    writer_in(tmp_path).report(snapshot, rate_limited=3)
    dropped = snapshot.values[EVENTS_DROPPED.name]
    reasons = ["queue_full", "write_error", "file_removed", "undelivered"]
    lost = {(reason,): 0 for reason in reasons}
    assert dropped == lost | {("strangers",): 3}
