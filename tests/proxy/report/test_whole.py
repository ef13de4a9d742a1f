"""Reading of a report: all of one run, or a sentence that says why not."""

import errno
import json
import os
import shutil
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from metrics.report.page import BODY_BEGINS, run_mark
from proxy.errors import ConfigError
from proxy.report import whole
from proxy.report.address import place_of
from proxy.report.folder import Folder
from proxy.report.place import MissingError, UnusableReportError
from proxy.report.watcher import Watcher
from proxy.report.whole import open_table, read_whole
from tests.support.report import RUNS, facts_of, put_copy, put_report

LEFT = {"index.html", "report.json", "tables", "runs"}
SECRET = "of nobody's business"


def test_a_report_is_read_whole(tmp_path: Path) -> None:
    put_report(tmp_path)
    report = read_whole(Folder(tmp_path))
    assert (report.run_id, report.folder) == (RUNS[0], f"runs/{RUNS[0]}/tables")
    assert json.loads(report.json) == facts_of()
    assert BODY_BEGINS.encode().join(report.page) == (tmp_path / "index.html").read_bytes()
    assert list(report.tables) == [
        "clients/part-00000.parquet",
        "sessions/day=2026-06-01/part-00000.parquet",
    ]
    assert {each.size for each in report.tables.values()} == {len(RUNS[0])}


def test_runs_with_folders_of_their_own_are_read_there(tmp_path: Path) -> None:
    """As a report at an address is; the page beside is replaced after the JSON."""
    put_copy(tmp_path, RUNS[0])
    put_copy(tmp_path / "runs" / RUNS[1], RUNS[1])
    (tmp_path / "report.json").write_bytes(
        (tmp_path / "runs" / RUNS[1] / "report.json").read_bytes()
    )
    report = read_whole(Folder(tmp_path))
    assert (report.run_id, report.folder) == (RUNS[1], f"runs/{RUNS[1]}/tables")
    assert run_mark(RUNS[1]).encode() in report.page[1]
    assert len(report.tables) == 2


def test_what_runs_replace_meanwhile_is_never_mixed(tmp_path: Path) -> None:
    put_report(tmp_path)
    place = Folder(tmp_path)
    done = threading.Event()

    def replace() -> None:
        for run_id in RUNS[1:]:
            put_report(tmp_path, run_id)
        done.set()

    replacing = threading.Thread(target=replace)
    replacing.start()
    seen: set[str] = set()
    refusals: list[UnusableReportError] = []
    while not done.is_set() or not seen:
        try:
            report = read_whole(place)
            file = open_table(place, report, "clients/part-00000.parquet")
        except UnusableReportError as error:
            refusals.append(error)
            continue
        table = file.read(0)
        file.close()
        assert json.loads(report.json)["run_id"] == report.run_id == table.decode()
        assert run_mark(report.run_id).encode() in report.page[1]
        seen.add(report.run_id)
    replacing.join()
    assert not [one for one in refusals if isinstance(one, MissingError)], "report.json was there"
    assert read_whole(place).run_id == RUNS[-1]


def test_whenever_a_run_is_killed_a_whole_report_is_left(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What is on the disk before each step in which a run replaces the report."""
    out = tmp_path / "report"
    put_report(out)
    seen: list[Path] = []

    def watched(module: Any, name: str) -> Callable[..., Any]:
        step = getattr(module, name)

        def keep_and_step(*given: Any, **more: Any) -> Any:
            kept = tmp_path / f"at-{len(seen)}"
            shutil.copytree(out, kept)
            seen.append(kept)
            return step(*given, **more)

        return keep_and_step

    with monkeypatch.context() as patched:
        for module, name in ((Path, "rename"), (Path, "replace"), (os, "link"), (os, "rmdir")):
            patched.setattr(module, name, watched(module, name))
        put_report(out, RUNS[1])
    found = []
    for each in (*seen, out):
        place = Folder(each)
        report = read_whole(place)
        found.append(report.run_id)
        file = open_table(place, report, "clients/part-00000.parquet")
        assert file.read(0).decode() == report.run_id
        assert run_mark(report.run_id).encode() in report.page[1]
        file.close()
        put_report(each, RUNS[2])
        assert read_whole(place).run_id == RUNS[2]
        assert {path.name for path in each.iterdir()} == LEFT
        assert {path.name for path in (each / "runs").iterdir()} == {report.run_id, RUNS[2]}
    assert found == sorted(found)
    assert set(found) == set(RUNS[:2])
    assert len(found) > 10


def test_without_hard_links_files_are_there_twice(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(*_: object) -> None:
        raise OSError(errno.EOPNOTSUPP, "Operation not supported")

    monkeypatch.setattr(os, "link", refused)
    put_report(tmp_path)
    assert read_whole(Folder(tmp_path)).folder == f"runs/{RUNS[0]}/tables"
    assert {path.name for path in tmp_path.iterdir()} == LEFT


def _json(**more: Any) -> Callable[[Path], None]:
    return _write("report.json", lambda given: json.dumps(json.loads(given) | more).encode())


def _write(name: str, change: Callable[[bytes], bytes]) -> Callable[[Path], None]:
    def spoil(out: Path) -> None:
        put_copy(out)
        (out / name).write_bytes(change((out / name).read_bytes()))

    return spoil


def _link(name: str) -> Callable[[Path], None]:
    def spoil(out: Path) -> None:
        put_copy(out)
        elsewhere = out.with_name("elsewhere")
        (out / name).rename(elsewhere)
        (out / name).symlink_to(elsewhere)

    return spoil


def _pipe(out: Path) -> None:
    put_copy(out)
    (out / "report.json").unlink()
    os.mkfifo(out / "report.json")


def _folder(out: Path) -> None:
    put_copy(out)
    (out / "index.html").unlink()
    (out / "index.html").mkdir()


def _other_run(out: Path) -> None:
    put_copy(out)
    page = (out / "index.html").read_bytes()
    put_copy(out, RUNS[1])
    (out / "index.html").write_bytes(page)


def _other_tables(out: Path) -> None:
    put_copy(out)
    (out / "tables" / "_RUN").write_text(RUNS[1])


def _without(name: str) -> Callable[[Path], None]:
    def spoil(out: Path) -> None:
        put_copy(out)
        (out / name).rename(out / "gone")

    return spoil


_NO_REPORT = "report.json is not that of a readiness report"
BAD = {
    "cut JSON": (_write("report.json", lambda given: given[:-9]), "is no JSON, or cut off"),
    "empty JSON": (_write("report.json", lambda _: b""), "is no JSON, or cut off"),
    "no UTF-8": (_write("report.json", lambda _: b'{"a":"\xff"}'), "is no JSON, or cut off"),
    "NaN": (_write("report.json", lambda _: b'{"as_of_ms":NaN}'), "is no JSON, or cut off"),
    "deep": (_write("report.json", lambda _: b"[" * 200_000), "is no JSON, or cut off"),
    "digits": (_write("report.json", lambda _: b"1" * 9_000), "is no JSON, or cut off"),
    "a list": (_write("report.json", lambda _: b"[]"), _NO_REPORT),
    "newer": (_json(schema_version=2), "is of schema version 2, and this program knows 1"),
    "older": (_json(schema_version=0), "is of schema version 0, and this program knows 1"),
    "no number": (_json(schema_version="1"), "is of schema version none"),
    "a flag": (_json(schema_version=True), "is of schema version True"),
    "no verdicts": (_json(clients_by_verdict=None), _NO_REPORT),
    "verdicts": (_json(clients_by_verdict={"ready": 1}), "has no unproven"),
    "text": (_json(clients_by_verdict={"ready": "1"}), "has no ready"),
    "negative": (_json(clients_by_verdict={"ready": -1}), "has no ready"),
    "too much": (_json(clients_by_verdict={"ready": 2**63}), "has no ready"),
    "no time": (_json(as_of_ms=10**15), "has no as_of_ms"),
    "rows": (_json(what_if=[7]), _NO_REPORT),
    "no rows": (_json(what_if={}), "has no what_if"),
    "infinite": (
        _json(what_if=[{"lifetime_ms": 1, "killed_clients": 0, "kills_per_day_least": 1e308}]),
        "has no kills_per_day_least",
    ),
    "cut page": (_write("index.html", lambda page: page[:-9]), "index.html is not that of"),
    "another page": (_write("index.html", lambda _: b"<script>"), "index.html is not that of"),
    "other run": (_other_run, "index.html and report.json are not of the same run"),
    "other tables": (_other_tables, "tables and report.json are not of the same run"),
    "no page": (_without("index.html"), "index.html cannot be read: No such file"),
    "no tables": (_without("tables"), "tables cannot be read: No such file"),
    "linked JSON": (_link("report.json"), "report.json cannot be read: Too many levels of"),
    "linked page": (_link("index.html"), "index.html cannot be read: Too many levels of"),
    "linked tables": (_link("tables"), "tables/_RUN cannot be read: Not a directory"),
    "a pipe": (_pipe, "report.json is no file"),
    "a folder": (_folder, "index.html is a folder"),
}


@pytest.mark.parametrize(("spoil", "sentence"), BAD.values(), ids=BAD)
def test_a_report_that_is_none_is_refused_in_a_sentence(
    spoil: Callable[[Path], None], sentence: str, tmp_path: Path
) -> None:
    out = tmp_path / "report"
    spoil(out)
    with pytest.raises(UnusableReportError) as refused:
        read_whole(Folder(out))
    assert sentence in str(refused.value)
    assert not isinstance(refused.value, MissingError)


@pytest.mark.parametrize(
    ("name", "limit"), [("report.json", "MAX_JSON_BYTES"), ("index.html", "MAX_PAGE_BYTES")]
)
def test_what_is_huge_is_not_read(name: str, limit: str, tmp_path: Path) -> None:
    put_copy(tmp_path)
    most = getattr(whole, limit)
    os.truncate(tmp_path / name, most + 1)
    with pytest.raises(UnusableReportError, match=f"{name} is larger than {most >> 20} MiB"):
        read_whole(Folder(tmp_path))


def test_tables_that_link_out_of_the_folder_are_not_listed(tmp_path: Path) -> None:
    out, secret = tmp_path / "report", tmp_path / "secret.parquet"
    secret.write_text(SECRET)
    put_copy(out)
    (out / "tables" / "clients" / "link.parquet").symlink_to(secret)
    (out / "tables" / "linked").symlink_to(tmp_path)
    (out / "tables" / "clients" / ".hidden.parquet").touch()
    place = Folder(out)
    report = read_whole(place)
    assert len(report.tables) == 2
    for path in ("clients/link.parquet", "linked/secret.parquet", "../../secret.parquet"):
        with pytest.raises(UnusableReportError):
            open_table(place, report, path).close()


def test_tables_of_a_run_that_replaced_the_report_are_not_opened(tmp_path: Path) -> None:
    put_copy(tmp_path)
    place = Folder(tmp_path)
    report = read_whole(place)
    put_copy(tmp_path, RUNS[1])
    with pytest.raises(UnusableReportError, match="not of the same run"):
        open_table(place, report, "clients/part-00000.parquet")
    with pytest.raises(MissingError):
        open_table(place, report, "clients/other.parquet")


def test_a_problem_leaves_the_last_whole_report_and_a_removal_does_not(tmp_path: Path) -> None:
    watcher = Watcher(Folder(tmp_path))
    watcher.stop()  # no pauses
    watcher.look()
    assert watcher.state().report is None
    assert str(watcher.state().problem).startswith("there is no report: report.json cannot be read")
    put_copy(tmp_path)
    watcher.look()
    first = watcher.state()
    assert first.problem is None
    watcher.look()
    assert watcher.state() is first
    (tmp_path / "index.html").write_bytes(b"half")
    watcher.look()
    assert watcher.state().report is first.report
    assert "index.html" in str(watcher.state().problem)
    put_copy(tmp_path, RUNS[1])
    watcher.look()
    assert watcher.state().report is not first.report
    assert watcher.state().problem is None
    (tmp_path / "report.json").unlink()
    watcher.look()
    assert watcher.state().report is None


def test_an_unforeseen_error_is_shown_and_the_report_is_read_again(tmp_path: Path) -> None:
    class Broken(Folder):
        is_broken = True

        def read(self, path: str, most: int) -> bytes:
            if self.is_broken:
                raise MemoryError
            return super().read(path, most)

    place = Broken(tmp_path)
    watcher = Watcher(place)
    watcher.stop()  # no pauses
    put_report(tmp_path)
    watcher.look()
    assert str(watcher.state().problem).startswith("the report cannot be looked at")
    place.is_broken = False
    put_report(tmp_path, RUNS[1])
    watcher.look()
    assert watcher.state().problem is None


def test_a_folder_in_the_place_of_a_file_keeps_nothing_open(tmp_path: Path) -> None:
    (tmp_path / "report.json").mkdir()
    before = len([*Path("/proc/self/fd").iterdir()])
    for _ in range(5):
        with pytest.raises(UnusableReportError, match="is a folder"):
            Folder(tmp_path).read("report.json", 100)
    assert len([*Path("/proc/self/fd").iterdir()]) == before


@pytest.mark.parametrize(
    "given", ["gs://a/b", "hdfs:///a", "kafka:/t", "kafka://t", "s3a://", "file://host/x"]
)
def test_places_that_cannot_be_read_are_named(given: str) -> None:
    with pytest.raises(ConfigError, match=r"must be a folder, file:///FOLDER or s3a://BUCKET"):
        place_of(given)


def test_a_folder_may_be_given_as_an_address_and_be_a_link(tmp_path: Path) -> None:
    put_report(tmp_path / "report")
    (tmp_path / "link").symlink_to("report")
    for given in (str(tmp_path / "link"), (tmp_path / "link").as_uri()):
        assert read_whole(place_of(given)).run_id == RUNS[0]
