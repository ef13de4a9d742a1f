import fcntl
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from metrics.event_files import EventFile, beyond_retention, file_stem, recover_orphans
from metrics.event_log import RETRY_SECONDS, WARNING_SECONDS, EventLog, EventLogSettings
from tests.support.metrics import full_disk

WALL = 1_800_000_000.0


def log_in(directory: Path, **more: float) -> EventLog:
    settings = {"rotate_bytes": 1000, "rotate_seconds": 60.0} | more
    return EventLog(EventLogSettings(directory=directory, proxy_id="p", worker=0, **settings))  # type: ignore[arg-type]


def names(directory: Path) -> list[str]:
    return sorted(path.name for path in directory.iterdir())


def test_a_name_cannot_leave_the_directory() -> None:
    """A proxy id comes from a configuration that may be templated from a host name."""
    stem = file_stem("../../etc/cron.d/x", 2, WALL)
    assert stem == "events-.._.._etc_cron.d_x-2-20270115T080000Z"


def test_a_file_grows_under_a_temporary_name(tmp_path: Path) -> None:
    file = EventFile(tmp_path / "events", "events-p-0-t")
    file.write(b"one\n")
    assert names(tmp_path / "events") == ["events-p-0-t-0.jsonl.open"]
    assert file.path.read_bytes() == b"one\n"
    file.close()
    assert names(tmp_path / "events") == ["events-p-0-t-0.jsonl"]
    assert (tmp_path / "events" / "events-p-0-t-0.jsonl").stat().st_mode & 0o777 == 0o640


def test_nothing_is_overwritten_or_followed(tmp_path: Path) -> None:
    """A user with write access to the directory must not make the proxy write elsewhere."""
    target = tmp_path / "precious"
    target.write_text("kept")
    (tmp_path / "s-0.jsonl").write_text("closed before")
    (tmp_path / "s-1.jsonl.open").symlink_to(target)
    file = EventFile(tmp_path, "s")
    file.write(b"x\n")
    file.close()
    assert target.read_text() == "kept"
    assert (tmp_path / "s-2.jsonl").read_text() == "x\n"


def test_an_empty_file_goes_away(tmp_path: Path) -> None:
    EventFile(tmp_path, "s").close()
    assert names(tmp_path) == []


@pytest.mark.parametrize(
    ("left", "kept"),
    [
        (b'{"a":1}\n{"a":2}\n', b'{"a":1}\n{"a":2}\n'),
        (b'{"a":1}\n{"a":', b'{"a":1}\n'),
        (b'{"a":', None),
        (b"", None),
        (b"x\n" + b"y" * 200_000, b"x\n"),
    ],
)
def test_orphans_are_cut_after_their_last_whole_line(
    tmp_path: Path, left: bytes, kept: bytes | None
) -> None:
    (tmp_path / "events-p-0-t-0.jsonl.open").write_bytes(left)
    recover_orphans(tmp_path)
    assert names(tmp_path) == ([] if kept is None else ["events-p-0-t-0.jsonl"])
    if kept is not None:
        assert (tmp_path / "events-p-0-t-0.jsonl").read_bytes() == kept


def test_a_living_writers_file_is_left_alone(tmp_path: Path) -> None:
    """Workers share the directory, and one may start while another writes."""
    file = EventFile(tmp_path, "events-p-1-t")
    file.write(b"half")
    assert recover_orphans(tmp_path) == []
    assert file.path.read_bytes() == b"half"
    file.close()


def test_a_file_taken_for_an_orphan_is_not_written_to(tmp_path: Path) -> None:
    """Between creating and locking, another process may have locked it first."""
    path = tmp_path / "s-0.jsonl.open"
    path.touch()
    fd = os.open(path, os.O_RDWR)
    fcntl.flock(fd, fcntl.LOCK_EX)
    file = EventFile(tmp_path, "s")
    assert file.path.name == "s-1.jsonl.open"
    file.close()
    os.close(fd)


def test_pipes_and_links_are_no_orphans(tmp_path: Path) -> None:
    """Opening a pipe would block the start forever."""
    os.mkfifo(tmp_path / "events-a.jsonl.open")
    (tmp_path / "precious").write_text("no newline")
    (tmp_path / "events-b.jsonl.open").symlink_to(tmp_path / "precious")
    assert recover_orphans(tmp_path) == []
    assert (tmp_path / "precious").read_text() == "no newline"


def test_retention_removes_the_oldest_closed_files(tmp_path: Path) -> None:
    for age in range(5):
        path = tmp_path / f"events-p-0-t-{age}.jsonl"
        path.write_bytes(b"x" * 100)
        os.utime(path, (WALL - age, WALL - age))
    (tmp_path / "events-p-0-t-9.jsonl.open").write_bytes(b"x" * 1000)
    (tmp_path / "notes.txt").write_bytes(b"x" * 1000)
    oldest = [path.name for path in beyond_retention(tmp_path, 250)]
    assert oldest == [f"events-p-0-t-{number}.jsonl" for number in (4, 3, 2)]


def test_rotation_by_size(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    for _ in range(3):
        log.append(["x" * 600], 0.0, WALL)
    assert [name.endswith(".open") for name in names(tmp_path)] == [False, True]
    log.close(1.0)
    assert [path.stat().st_size for path in sorted(tmp_path.iterdir())] == [1202, 601]


def test_rotation_by_age_without_new_events(tmp_path: Path) -> None:
    """A reader of closed files must not wait for the next client."""
    log = log_in(tmp_path)
    log.append(["x"], 0.0, WALL)
    log.tick(59.9)
    assert names(tmp_path)[0].endswith(".open")
    log.tick(60.0)
    assert names(tmp_path) == ["events-p-0-20270115T080000Z-0.jsonl"]


def test_no_events_no_files(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.tick(1000.0)
    log.close(1000.0)
    assert names(tmp_path) == []


def test_a_full_disk_leaves_whole_lines_and_counts_the_rest(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    log = log_in(tmp_path)
    log.append(["a" * 99], 0.0, WALL)
    with full_disk(150):
        log.append(["b" * 99, "c" * 99], 1.0, WALL)
    assert (log.written, log.dropped, log.written_bytes) == (1, 2, 100)
    (path,) = tmp_path.iterdir()
    assert path.read_bytes() == b"a" * 99 + b"\n"
    assert len(caplog.records) == 1
    assert "2 events lost so far" in caplog.text


def test_writing_resumes_when_there_is_room_again(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    with full_disk(10):
        log.append(["b" * 99], 0.0, WALL)
    log.append(["c"], RETRY_SECONDS - 0.1, WALL)
    assert (log.written, log.dropped) == (0, 2)
    log.append(["d"], RETRY_SECONDS, WALL)
    log.close(RETRY_SECONDS)
    assert (log.written, log.dropped) == (1, 2)
    assert [path.read_bytes() for path in tmp_path.iterdir()] == [b"d\n"]


def test_one_line_of_complaint_a_minute(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    """The disk that is full is often the one the log is on."""
    (tmp_path / "events").write_text("a file where the directory should be")
    log = log_in(tmp_path / "events")
    caplog.set_level(logging.INFO)
    for second in range(int(WARNING_SECONDS)):
        log.append(["x"], float(second), WALL)
    assert len(caplog.records) == 1
    assert "\n" not in caplog.records[0].getMessage()
    log.append(["x"], WARNING_SECONDS, WALL)
    assert len(caplog.records) == 2
    assert log.dropped == WARNING_SECONDS + 1


def test_a_directory_that_vanishes_is_made_again(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    """Its lines are lost; later events are not."""
    directory = tmp_path / "events"
    log = log_in(directory)
    log.append(["a", "b"], 0.0, WALL)
    shutil.rmtree(directory)
    log.append(["c"], 1.0, WALL)
    log.close(2.0)
    assert [path.read_bytes() for path in directory.iterdir()] == [b"c\n"]
    assert (log.written, log.removed, log.dropped) == (3, 2, 0)
    assert caplog.messages == [
        f"the event log in {directory} has lost events-p-0-20270115T080000Z-0.jsonl.open,"
        " which was removed or moved away; 2 events lost so far"
    ]


def move_away(directory: Path) -> None:
    directory.rename(directory.with_name("old"))


def replace(directory: Path) -> None:
    move_away(directory)
    directory.mkdir()


def replace_by_a_file(directory: Path) -> None:
    move_away(directory)
    directory.write_text("not a directory")


def remove_the_file(directory: Path) -> None:
    for path in directory.iterdir():
        path.unlink()


def replace_the_file(directory: Path) -> None:
    for path in directory.iterdir():
        path.rename(directory / "taken")
        path.write_text("of another program")


WAYS = (shutil.rmtree, move_away, replace, replace_by_a_file, remove_the_file, replace_the_file)


@pytest.mark.parametrize("do", WAYS)
def test_a_file_that_is_gone_is_noticed_without_new_events(
    tmp_path: Path, do: Callable[[Path], None], caplog: pytest.LogCaptureFixture
) -> None:
    log = log_in(tmp_path / "events")
    log.append(["a"], 0.0, WALL)
    log.tick(1.0)
    assert log.removed == 0
    do(tmp_path / "events")
    log.tick(2.0)
    log.tick(3.0)
    log.close(4.0)
    assert (log.written, log.removed, len(caplog.messages)) == (1, 1, 1)
    others = [path.read_text() for path in tmp_path.rglob("*.open")]
    assert set(others) <= {"a\n", "of another program"}, "closed are our own files alone"


def test_the_disk_does_not_take_another_directory(tmp_path: Path) -> None:
    """Events are lost one way or the other, and counted once."""
    log = log_in(tmp_path / "events")
    log.append(["a"], 0.0, WALL)
    replace_by_a_file(tmp_path / "events")
    log.append(["b"], 1.0, WALL)
    log.append(["c"], 2.0, WALL)
    assert (log.written, log.removed, log.dropped) == (1, 1, 2)
    (tmp_path / "events").unlink()
    log.append(["d"], 1.0 + RETRY_SECONDS, WALL)
    assert (log.written, log.removed, log.dropped) == (2, 1, 2)


def test_what_was_moved_away_is_closed_when_it_is_back(tmp_path: Path) -> None:
    """Its lock is released: the next process in the directory takes it for an orphan."""
    log = log_in(tmp_path / "events")
    log.append(["a"], 0.0, WALL)
    move_away(tmp_path / "events")
    log.tick(1.0)
    assert [path.read_text() for path in map(Path, recover_orphans(tmp_path / "old"))] == ["a\n"]
