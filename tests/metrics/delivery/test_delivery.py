import errno
import json
import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from metrics.delivery.deliverer import Deliverer, DeliveryFailed
from metrics.delivery.position import LOCK_NAME, NAME, DeliveredElsewhere, Position, lock
from metrics.delivery.selection import HIDDEN, Kinds, Selection, connection_of
from metrics.delivery.spool import Batch, Spool, count_lines
from metrics.event_log import EventLog, EventLogSettings
from tests.support.delivery import Lines

CLOSED = "events-p-0-20260601T120000Z-0.jsonl"


@pytest.fixture
def spool(tmp_path: Path) -> Iterator[Spool]:
    one = Spool(tmp_path)
    yield one
    one.close()


def delivered(spool: Spool, position: Position, sink: Lines, **more: object) -> Deliverer:
    deliverer = Deliverer(spool, position, sink, Selection(**more))  # type: ignore[arg-type]
    for _ in deliverer.steps():
        pass
    return deliverer


def test_files_are_delivered_in_the_order_in_which_they_were_written(
    tmp_path: Path, spool: Spool
) -> None:
    """A connection's events stay in order: after 9 comes 10, whatever was touched last."""
    for number in (10, 9):
        name = f"events-p-0-20260601T120000Z-{number}.jsonl"
        (tmp_path / name).write_text(f"{number}\n")
    (tmp_path / "events-q-0-20260601T115959Z-0.jsonl.open").write_text("first\n")
    (tmp_path / "events-other.jsonl").write_text("unnamed\n")
    sink = Lines()
    delivered(spool, Position("t"), sink)
    assert sink.taken == [b"unnamed", b"first", b"9", b"10"]


def test_nothing_but_event_files_is_read(tmp_path: Path, spool: Spool) -> None:
    """A user with write access to the folder cannot add other files or block delivery."""
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / "events-a.jsonl").symlink_to(tmp_path / "secret")
    (tmp_path / "events-b.jsonl.open").symlink_to(tmp_path / "secret")
    os.mkfifo(tmp_path / "events-c.jsonl")
    (tmp_path / "events-d.jsonl").mkdir()
    (tmp_path / "events-e\n.jsonl").write_text("odd name\n")
    sink = Lines()
    delivered(spool, Position("t"), sink)
    assert sink.taken == []


def test_a_link_that_comes_between_listing_and_reading_is_not_followed(
    tmp_path: Path, spool: Spool
) -> None:
    (tmp_path / CLOSED).write_text("one\n")
    (file,) = spool.files()
    (tmp_path / "secret").write_text("secret\n")
    (tmp_path / CLOSED).unlink()
    (tmp_path / CLOSED).symlink_to(tmp_path / "secret")
    with pytest.raises(OSError, match="symbolic links"):
        spool.read(file, 0, 100)


def test_lines_longer_than_a_batch_are_set_aside(tmp_path: Path, spool: Spool) -> None:
    """However long a line is, it costs the memory of a batch, and those after it arrive."""
    (tmp_path / CLOSED).write_bytes(b"a\n" + b"x" * 5000 + b"\nb\nhalf")
    sink = Lines(batch_bytes=100)
    found = delivered(spool, Position("t"), sink).delivered
    assert sink.taken == [b"a", b"b"]
    assert (found.events, found.bytes, found.set_aside) == (2, 4, 2)


def test_the_end_of_a_line_is_waited_for_in_an_open_file(tmp_path: Path, spool: Spool) -> None:
    path = tmp_path / f"{CLOSED}.open"
    path.write_bytes(b"x" * 150)
    sink, position = Lines(batch_bytes=100), Position("t")
    assert delivered(spool, position, sink).waiting().bytes == 150
    path.write_bytes(b"short\n")
    delivered(spool, position, sink)
    assert sink.taken == [b"short"]


@pytest.mark.parametrize("replaced", [b"1\n", b"two\nthree\n"])
def test_a_file_that_was_cut_or_replaced_is_delivered_from_its_begin(
    tmp_path: Path, spool: Spool, replaced: bytes
) -> None:
    path, sink, position = tmp_path / CLOSED, Lines(), Position("t")
    path.write_bytes(b"one\ntwo\n")
    delivered(spool, position, sink)
    sink.taken.clear()
    if len(replaced) > 8:
        kept = path.rename(tmp_path / "kept")  # or its inode could be the new one's
        assert kept.exists()
    path.write_bytes(replaced)
    delivered(spool, position, sink)
    assert sink.taken == replaced.splitlines()


def test_another_target_gets_everything(tmp_path: Path, spool: Spool) -> None:
    (tmp_path / CLOSED).write_bytes(b"one\n")
    taken = []
    for target in ("a", "a", "b"):
        sink = Lines()
        delivered(spool, Position.load(spool.fd, target), sink).save()
        taken.append(sink.taken)
    assert taken == [[b"one"], [], [b"one"]]
    assert json.loads((tmp_path / NAME).read_text())["to"] == "b"


def test_a_folder_has_one_deliverer(spool: Spool) -> None:
    held = lock(spool.fd)
    with pytest.raises(DeliveredElsewhere):
        lock(spool.fd)
    os.close(held)
    os.close(lock(spool.fd))


def test_position_and_lock_do_not_follow_links(tmp_path: Path, spool: Spool) -> None:
    (tmp_path / "precious").write_text("precious")
    for name in (NAME, f"{NAME}.new", LOCK_NAME):
        (tmp_path / name).symlink_to(tmp_path / "precious")
    position = Position.load(spool.fd, "t")
    position.advance("a", 1, 1)
    with pytest.raises(OSError, match="symbolic links"):
        position.save(spool.fd)
    with pytest.raises(OSError, match="symbolic links"):
        lock(spool.fd)
    assert (tmp_path / "precious").read_text() == "precious"


def test_a_pipe_in_place_of_the_position_is_not_waited_for(tmp_path: Path, spool: Spool) -> None:
    os.mkfifo(tmp_path / f"{NAME}.new")
    with pytest.raises(OSError, match="No such device"):
        Position("t").save(spool.fd)


def test_a_folder_that_was_replaced_is_noticed(tmp_path: Path) -> None:
    events = tmp_path / "events"
    events.mkdir()
    spool = Spool(events)
    assert spool.is_in_place()
    events.rename(tmp_path / "old")
    assert not spool.is_in_place()
    events.mkdir()
    assert not spool.is_in_place()
    spool.close()


def test_what_is_gone_before_it_was_delivered_is_told(tmp_path: Path, spool: Spool) -> None:
    whole, half = (f"events-p-{worker}-20260601T120000Z-0.jsonl" for worker in (0, 1))
    (tmp_path / whole).write_bytes(b"one\n")
    (tmp_path / half).write_bytes(b"one\ntwo\n")
    deliverer = Deliverer(spool, Position("t"), Lines(batch_bytes=5), Selection())
    steps = deliverer.steps()
    for _ in range(7):
        next(steps)
    (tmp_path / whole).unlink()
    (tmp_path / half).unlink()
    assert list(deliverer.steps())
    assert deliverer.gone == [half]
    assert deliverer.delivered.gone_files == 1


def test_what_waits_is_as_old_as_its_file(tmp_path: Path, spool: Spool) -> None:
    (tmp_path / CLOSED).write_bytes(b"one\n")
    deliverer = Deliverer(spool, Position("t"), Lines(), Selection())
    next(deliverer.steps())
    waiting = deliverer.waiting()
    assert (waiting.bytes, waiting.since) == (4, 1_780_315_200.0)


def test_files_of_clocks_that_jumped_are_delivered(tmp_path: Path, spool: Spool) -> None:
    """What waits is no older than its last change, and no younger."""
    for year in (1970, 2026, 2099, 9999):
        (tmp_path / f"events-p-0-{year}0601T120000Z-0.jsonl").write_text(f"{year}\n")
        os.utime(tmp_path / f"events-p-0-{year}0601T120000Z-0.jsonl", (2e9, 2e9))
    (tmp_path / "events-p-0-20261399T990000Z-0.jsonl").write_text("no time\n")
    sink = Lines()
    deliverer = Deliverer(spool, Position("t"), sink, Selection())
    next(deliverer.steps())
    assert deliverer.waiting().since == 13_089_600.0
    for _ in deliverer.steps():
        pass
    assert sink.taken == [b"no time", b"1970", b"2026", b"2099", b"9999"]
    later = "events-p-0-20990601T120000Z-1.jsonl"
    (tmp_path / later).write_text("later\n")
    os.utime(tmp_path / later, (2e9, 2e9))
    next(deliverer.steps())
    assert deliverer.waiting().since == 2e9


def test_retention_counts_what_was_not_delivered(tmp_path: Path) -> None:
    """Also while no deliverer runs, and of files that none has ever seen."""
    log = EventLog(
        EventLogSettings(
            directory=tmp_path, proxy_id="p", worker=0, retention_bytes=0, delivered=True
        )
    )
    log.append(["one", "two"], 0.0, 0.0)
    log.close(0.0)
    assert log.undelivered == 2
    log.append(["one", "two", "three"], 0.0, 1.0)
    spool = Spool(tmp_path)
    position = Position("t")
    delivered(spool, position, Lines(batch_bytes=10)).save()
    log.append(["four"], 0.0, 1.0)
    log.close(0.0)
    assert log.undelivered == 3
    assert list(tmp_path.glob("events-*")) == []
    spool.close()


def test_retention_removes_what_cannot_be_read(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """One file of another user must not let the others fill the disk."""

    def count(path: Path, offset: int) -> int:
        if path.name == CLOSED:
            raise PermissionError(errno.EACCES, "Permission denied")
        return count_lines(path, offset)

    monkeypatch.setattr("metrics.event_log.count_lines", count)
    (tmp_path / CLOSED).write_text("one\n")
    log = EventLog(
        EventLogSettings(
            directory=tmp_path, proxy_id="p", worker=0, retention_bytes=0, delivered=True
        )
    )
    log.append(["one", "two"], 0.0, 0.0)
    log.close(0.0)
    assert list(tmp_path.iterdir()) == []
    assert log.undelivered == 2
    assert f"{CLOSED}, which retention removes, was delivered (Permission denied)" in caplog.text


@pytest.mark.parametrize("to", ["file:///before", None])
def test_what_another_target_got_is_not_delivered_to_this_one(
    tmp_path: Path, to: str | None
) -> None:
    """Also while this one takes nothing, and after the position was damaged."""

    class Down(Lines):
        def deliver(self, _batch: Batch) -> int:
            raise DeliveryFailed("down")

    log = EventLog(
        EventLogSettings(
            directory=tmp_path, proxy_id="p", worker=0, retention_bytes=15, delivered=True
        )
    )
    log.append(["one", "two"], 0.0, 0.0)
    log.close(0.0)
    spool = Spool(tmp_path)
    delivered(spool, Position.load(spool.fd, to or "t"), Lines()).save()
    if to is None:
        (tmp_path / NAME).write_text(f"{(tmp_path / NAME).read_text()}}}")
    deliverer = Deliverer(spool, Position.load(spool.fd, "t"), Down(), Selection())
    next(deliverer.steps())
    deliverer.save()
    assert json.loads((tmp_path / NAME).read_text()) == {"version": 1, "to": "t", "files": {}}
    log.append(["three", "four"], 0.0, 1.0)
    log.close(0.0)
    assert log.undelivered == 2
    spool.close()


SUMMARY = b'{"schema_version":1,"kind":"summary","connection_id":"c","principal":"User:a"}'
FAILED = (
    b'{"kind":"failed","client_host":"10.1.2.3","claimed_principal":"\\"kind\\":\\"summary\\""}'
)


def test_summary_rows_alone() -> None:
    """A text that a client chose does not make a summary row of another event."""
    assert Selection(kinds=Kinds.SUMMARY).apply([SUMMARY, FAILED]) == ([SUMMARY], 0)


def test_hidden_fields_do_not_leave() -> None:
    lines = [SUMMARY, FAILED, b"garbage 10.1.2.3", b'["10.1.2.3"]', b"\xff", b"[" * 100_000]
    selection = Selection(hide=frozenset({"client_host", "claimed_principal"}))
    kept, refused = selection.apply(lines)
    assert refused == 4
    assert kept[0] == SUMMARY
    assert json.loads(kept[1]) == {
        "kind": "failed",
        "client_host": HIDDEN,
        "claimed_principal": HIDDEN,
    }


def test_hidden_groups_are_still_a_list() -> None:
    line = b'{"kind":"authenticated","groups":["Group:a","Group:b"]}'
    (kept,), _ = Selection(hide=frozenset({"groups"})).apply([line])
    assert json.loads(kept)["groups"] == [HIDDEN]


@pytest.mark.parametrize(
    ("line", "connection"),
    [(SUMMARY, b"c"), (FAILED, None), (b'{"connection_id":"x', None), (b"", None)],
)
def test_the_key_of_a_line(line: bytes, connection: bytes | None) -> None:
    assert connection_of(line) == connection
