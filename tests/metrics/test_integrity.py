import json
import os
from collections.abc import Callable
from pathlib import Path

import pytest

from metrics import integrity
from metrics.event_log import RETRY_SECONDS, EventLog, EventLogSettings
from metrics.integrity import Verification, files_of_log, numbered, verify
from tests.support.metrics import EPOCH, event, full_disk, to_json_line


def line(number: int, *, run: str = "r", **more: object) -> str:
    return numbered(to_json_line(event(connection_id=f"{run}-{number}", **more)), number)


def log_in(directory: Path, *, chained: bool = True, worker: int = 0) -> EventLog:
    settings = EventLogSettings(directory=directory, proxy_id="p", worker=worker, chained=chained)
    return EventLog(settings)


def write(directory: Path, *files: range, chained: bool = True) -> list[Path]:
    """Write a run of one worker, in a file for each range of numbers."""
    log = log_in(directory, chained=chained)
    for second, numbers in enumerate(files):
        for number in numbers:
            log.append([line(number)], 0.0, EPOCH + second)
        log.close(0.0)
    return sorted(directory.glob("*.jsonl"))


def checked(directory: Path) -> Verification:
    return verify(files_of_log(directory))


def lines_of(path: Path, change: Callable[[list[bytes]], object]) -> None:
    """Change the lines of a file in place."""
    lines = path.read_bytes().splitlines(keepends=True)
    change(lines)
    path.write_bytes(b"".join(lines))


def test_an_untouched_log_has_no_findings(tmp_path: Path) -> None:
    write(tmp_path, range(3), range(3, 9))
    log_in(tmp_path, worker=1).append([line(0, run="other")], 0.0, EPOCH)  # left open
    assert checked(tmp_path) == Verification(files=3, records=10)


def test_lines_that_were_written_together_are_chained_alike(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.append([line(0), line(1)], 0.0, EPOCH)
    log.append([line(2)], 0.0, EPOCH)
    log.close(0.0)
    assert checked(tmp_path) == Verification(files=1, records=3)


CHANGED = "does not match its chain: it, or what was before it, was changed"


def test_a_changed_record_is_found_at_its_line_alone(tmp_path: Path) -> None:
    (path,) = write(tmp_path, range(5))
    path.write_bytes(path.read_bytes().replace(b'"r-2"', b'"r-3"'))
    assert [(one.line, one.problem) for one in checked(tmp_path).findings] == [(3, CHANGED)]


@pytest.mark.parametrize(
    ("change", "expected"),
    [
        (lambda lines: lines.pop(2), [(3, CHANGED), (3, "record 2 is missing before it")]),
        (
            lambda lines: lines.__delitem__(slice(1, 3)),
            [(2, CHANGED), (2, "records 1 to 2 are missing before it")],
        ),
        (
            lambda lines: lines.insert(2, lines[1]),
            [(3, CHANGED), (3, "has the number 1, but 2 is next")],
        ),
        (
            lambda lines: lines.__setitem__(2, line(2).encode() + b"\n"),
            [(3, "has no chain: it was changed or inserted")],
        ),
        (
            lambda lines: lines.__setitem__(2, b"[" * 100_000 + b"\n"),
            [
                (3, "has no chain: it was changed or inserted"),
                (3, "has no number: it was changed or inserted"),
                (4, "record 2 is missing before it"),
            ],
        ),
        (lambda lines: lines.__setitem__(4, lines[4][:-9]), [(5, "is cut off")]),
        (
            lambda lines: lines.__setitem__(2, line(2, run="x").encode() + b"\n"),
            [
                (3, "has no chain: it was changed or inserted"),
                (3, "is of another worker or start than the records before it"),
                (4, "record 2 is missing before it"),
            ],
        ),
    ],
)
def test_what_was_done_to_a_file_is_found_at_its_line(
    tmp_path: Path, change: Callable[[list[bytes]], object], expected: list[tuple[int, str]]
) -> None:
    (path,) = write(tmp_path, range(5))
    lines_of(path, change)
    assert [(one.line, one.problem) for one in checked(tmp_path).findings] == expected


def test_gaps_between_files_are_found(tmp_path: Path) -> None:
    first, second, third = write(tmp_path, range(3), range(3, 6), range(6, 9))
    lines_of(first, lambda lines: lines.pop())
    third.rename(tmp_path / "events-moved.jsonl")
    second.unlink()
    (finding,) = checked(tmp_path).findings
    assert (finding.file, finding.line) == ("events-moved.jsonl", 1)
    assert finding.problem == (
        f"records 2 to 5 are missing before it: {first.name} was cut off, a file is missing, or the"
        " proxy dropped them"
    )


def test_a_copied_file_is_found(tmp_path: Path) -> None:
    (path,) = write(tmp_path, range(3))
    (tmp_path / "events-z.jsonl").write_bytes(path.read_bytes())
    assert [one.problem for one in checked(tmp_path).findings] == [
        f"record 0 is also in {path.name}"
    ]


def test_retention_is_no_finding_but_is_counted(tmp_path: Path) -> None:
    first, _ = write(tmp_path, range(3), range(3, 6))
    first.unlink()
    assert checked(tmp_path) == Verification(files=1, records=3, begun_late=1)


def test_what_the_proxy_dropped_is_told_from_what_was_removed(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.append([line(0)], 0.0, EPOCH)
    log.append([line(4)], 0.0, EPOCH)
    log.close(0.0)
    (finding,) = checked(tmp_path).findings
    assert finding.problem == (
        "records 1 to 3 are missing before it, as the chain confirms: the proxy dropped them"
    )


def test_a_full_disk_leaves_a_gap_and_a_chain_that_holds(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    log.append([line(0)], 0.0, EPOCH)
    (path,) = tmp_path.iterdir()
    with full_disk(path.stat().st_size + 50):
        log.append([line(1)], 1.0, EPOCH + 1)
    log.append([line(2)], 1.0 + RETRY_SECONDS, EPOCH + 9)
    log.close(9.0)
    result = checked(tmp_path)
    assert (result.files, result.records) == (2, 2)
    assert [one.line for one in result.findings] == [1]
    assert result.findings[0].problem.startswith("record 1 is missing before it")


def test_a_file_that_was_emptied_is_found(tmp_path: Path) -> None:
    (path,) = write(tmp_path, range(1))
    path.write_bytes(b"")
    assert [(one.line, one.problem) for one in checked(tmp_path).findings] == [
        (None, "has no whole record: it was cut off")
    ]


def test_without_a_chain_the_numbers_are_checked(tmp_path: Path) -> None:
    (path,) = write(tmp_path, range(5), chained=False)
    lines_of(path, lambda lines: lines.pop(2))
    result = checked(tmp_path)
    assert result.unchained_files == 1
    assert [(one.line, one.problem) for one in result.findings] == [
        (3, "record 2 is missing before it")
    ]


def test_a_first_record_without_its_chain_or_number_does_not_hide_the_rest(tmp_path: Path) -> None:
    (path,) = write(tmp_path, range(3))
    lines_of(path, lambda lines: lines.__setitem__(0, to_json_line(event()).encode() + b"\n"))
    assert [(one.line, one.problem) for one in checked(tmp_path).findings] == [
        (2, CHANGED),
        (2, "has a number, and the records before it have none"),
    ]


def test_files_of_an_older_version_are_counted(tmp_path: Path) -> None:
    old = to_json_line(event())
    (tmp_path / "events-a.jsonl").write_text(f"{old}\n{old}\nnot JSON\n")
    result = checked(tmp_path)
    assert (result.unchained_files, result.unnumbered_files) == (1, 1)
    assert [(one.line, one.problem) for one in result.findings] == [
        (3, "is no record: it was changed")
    ]


def test_hostile_files_take_bounded_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(integrity, "MAX_FINDINGS", 10)
    (tmp_path / "events-a.jsonl").write_bytes(b"{}\n" + b"x\n" * 50)
    (tmp_path / "events-b.jsonl").write_bytes(b"x" * (3 << 20))
    (tmp_path / "events-c.jsonl").symlink_to("/dev/zero")
    os.mkfifo(tmp_path / "events-d.jsonl")
    result = checked(tmp_path)
    assert (result.files, len(result.findings), result.unlisted_findings) == (2, 10, 42)


def test_values_of_clients_cannot_pass_for_numbers_or_chains(tmp_path: Path) -> None:
    log = log_in(tmp_path)
    hostile = '","log_sequence":7,"chain":"' + "0" * 64 + '"}'
    log.append([line(0, client_id=hostile), line(1)], 0.0, EPOCH)
    log.close(0.0)
    assert checked(tmp_path) == Verification(files=1, records=2)
    (path,) = tmp_path.iterdir()
    assert json.loads(path.read_text().splitlines()[0])["client_id"] == hostile
