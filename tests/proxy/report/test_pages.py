"""Report over HTTP: a page with its age, JSON, tables and metrics."""

import asyncio
import json
import re
import socket
import subprocess
import sys
import time
import tracemalloc
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import Any

import pytest
from aiohttp import ClientSession
from yarl import URL

from metrics.registry import METRICS
from proxy.net.sockets import listen
from proxy.ops.http import start_http
from proxy.report.folder import Folder
from proxy.report.pages import make_pages
from proxy.report.place import PIECE_BYTES
from proxy.report.watcher import Watcher
from tests.support.report import RUNS, put_copy, put_report

HOUR_MS = 3_600_000


def with_client(out: Path, test: Callable[[ClientSession, Watcher], Awaitable[None]]) -> None:
    async def run() -> None:
        place = Folder(out)
        watcher = Watcher(place)
        watcher.stop()  # no pauses
        watcher.look()
        listening = listen("127.0.0.1", 0)
        server = await start_http(make_pages(watcher, place), listening)
        url = f"http://127.0.0.1:{listening.getsockname()[1]}"
        async with ClientSession(url, requote_redirect_url=False) as client:
            await test(client, watcher)
        await server.close()

    asyncio.run(run())


def plain_spaces(text: str) -> str:
    return text.replace("\N{NO-BREAK SPACE}", " ")


def now_ms() -> int:
    return time.time_ns() // 1_000_000


def test_the_page_is_the_runs_own_below_its_age(tmp_path: Path) -> None:
    put_report(tmp_path, as_of_ms=now_ms() - 90 * 60_000 - 30_000)

    async def test(client: ClientSession, _watcher: Watcher) -> None:
        async with client.get("/") as response:
            page = await response.text()
        assert response.status == 200
        assert "1 h 30 min old" in plain_spaces(page)
        bar = page[page.index('<aside class="served') : page.index("</aside>") + 8]
        css = page[page.index(".served{") : page.index("</style>")]
        assert page.replace(bar, "").replace(css, "") == (tmp_path / "index.html").read_text()
        policy = response.headers["Content-Security-Policy"]
        assert "default-src 'none'" in policy
        assert "script-src" not in policy
        assert "sandbox" in policy
        assert response.headers["X-Content-Type-Options"] == "nosniff"

    with_client(tmp_path, test)


@pytest.mark.parametrize(
    ("age_ms", "warns"), [(HOUR_MS, False), (27 * HOUR_MS, True), (-HOUR_MS, False)]
)
def test_an_old_report_is_marked(age_ms: int, warns: bool, tmp_path: Path) -> None:
    at = now_ms() - age_ms
    put_report(tmp_path, as_of_ms=at, observed={"connections": 0, "from_ms": at, "to_ms": at})

    async def test(client: ClientSession, _watcher: Watcher) -> None:
        page = await (await client.get("/")).text()
        assert ('<aside class="served warn"' in page) == warns
        assert ("Mind: that is old" in page) == warns
        assert ("less than a minute old" in plain_spaces(page)) == (age_ms < 0)

    with_client(tmp_path, test)


def test_json_and_tables_are_of_the_page_s_run(tmp_path: Path) -> None:
    put_report(tmp_path)

    async def test(client: ClientSession, _watcher: Watcher) -> None:
        page = await client.get("/")
        facts = await client.get("/report.json")
        listed = await client.get("/tables.json")
        assert await facts.read() == (tmp_path / "report.json").read_bytes()
        tables = await listed.json()
        assert tables["run_id"] == RUNS[0]
        tags = {facts.headers["ETag"], listed.headers["ETag"]}
        for file in tables["files"]:
            table = await client.get(file["path"])
            assert await table.text() == RUNS[0]
            assert table.headers["Content-Disposition"] == "attachment"
            tags.add(table.headers["ETag"])
        assert tags == {f'"{RUNS[0]}"'}
        assert page.headers["ETag"].startswith(f'"{RUNS[0]}-')

    with_client(tmp_path, test)


def test_paths_of_tables_are_those_of_urls(tmp_path: Path) -> None:
    """Hive's names of folders have escapes of their own."""
    put_copy(tmp_path)
    name = "clients/listener=a%2Fb+c:d/part-00000.parquet"
    (tmp_path / "tables" / name).parent.mkdir()
    (tmp_path / "tables" / name).write_text("found")

    async def test(client: ClientSession, _watcher: Watcher) -> None:
        files = (await (await client.get("/tables.json")).json())["files"]
        path = next(file["path"] for file in files if file["bytes"] == len("found"))
        assert path == "/tables/clients/listener=a%252Fb+c:d/part-00000.parquet"
        async with client.get(URL(path, encoded=True)) as response:
            assert await response.text() == "found"

    with_client(tmp_path, test)


def test_a_table_of_many_pieces_arrives_whole(tmp_path: Path) -> None:
    put_copy(tmp_path)
    content = bytes(range(256)) * (3 * PIECE_BYTES // 256) + b"end"
    (tmp_path / "tables/clients/part-00000.parquet").write_bytes(content)

    async def test(client: ClientSession, _watcher: Watcher) -> None:
        path = "/tables/clients/part-00000.parquet"
        async with client.get(path) as response:
            assert await response.read() == content
        async with client.head(path) as response:
            assert response.headers["Content-Length"] == str(len(content))
            assert await response.read() == b""
        async with client.get("/healthz") as response:  # the connection is still good
            assert await response.text() == "ok\n"

    with_client(tmp_path, test)


@pytest.mark.parametrize(
    "path", ["/", "/report.json", "/tables.json", "/tables/clients/part-00000.parquet"]
)
def test_what_a_client_has_already_is_not_sent_again(path: str, tmp_path: Path) -> None:
    put_report(tmp_path, as_of_ms=now_ms())

    async def test(client: ClientSession, watcher: Watcher) -> None:
        tag = (await client.get(path)).headers["ETag"]
        for condition in (tag, f'"other", W/{tag}', "*"):
            async with client.get(path, headers={"If-None-Match": condition}) as response:
                assert (response.status, await response.read()) == (304, b"")
                assert response.headers["ETag"] == tag
                assert "Content-Length" not in response.headers
        put_report(tmp_path, RUNS[1], as_of_ms=now_ms())
        watcher.look()
        async with client.get(path, headers={"If-None-Match": tag}) as response:
            assert response.status == 200
        async with client.get(path, headers={"If-Match": tag}) as response:
            assert response.status == 412

    with_client(tmp_path, test)


@pytest.mark.parametrize("path", ["/", "/report.json", "/tables.json", "/tables/clients/a.parquet"])
def test_without_a_report_there_is_a_sentence(path: str, tmp_path: Path) -> None:
    async def test(client: ClientSession, _watcher: Watcher) -> None:
        async with client.get(path) as response:
            assert response.status == 503
            assert response.headers["Retry-After"] == "5"
            assert re.fullmatch("there is no report: .*\n", await response.text())
        async with client.get("/healthz") as response:
            assert response.status == 200
        async with client.get("/metrics") as response:
            body = await response.text()
        assert "kafka_reauth_proxy_readiness_report_read_success 0.0" in body
        assert "readiness_clients" not in body

    with_client(tmp_path, test)


@pytest.mark.parametrize(
    "path",
    [
        "/tables/",
        "/tables",
        "/tables/clients",
        "/tables/../report.json",
        "/tables/%2e%2e/report.json",
        "/tables/..%2f..%2fsecret",
        "/tables//etc/passwd",
        "/tables/_RUN",
        "/tables/clients/none.parquet",
        "/tables/clients/part-00000.parquet%00",
        "/index.html",
        "/..%2freport.json",
    ],
)
def test_nothing_else_is_served(path: str, tmp_path: Path) -> None:
    put_report(tmp_path)

    async def run() -> None:
        place = Folder(tmp_path)
        watcher = Watcher(place)
        watcher.look()
        listening = listen("127.0.0.1", 0)
        server = await start_http(make_pages(watcher, place), listening)
        reader, writer = await asyncio.open_connection(*listening.getsockname())
        writer.write(
            f"GET {path} HTTP/1.1\r\nHost: localhost\r\nConnection: close\r\n\r\n".encode()
        )
        answer = (await reader.read()).decode()
        assert answer.startswith("HTTP/1.1 404 ")
        assert RUNS[0] not in answer
        writer.close()
        await server.close()

    asyncio.run(run())


def test_a_problem_is_told_on_the_page_and_in_the_metrics(tmp_path: Path) -> None:
    put_copy(tmp_path)

    async def test(client: ClientSession, watcher: Watcher) -> None:
        facts = json.loads((tmp_path / "report.json").read_text())
        (tmp_path / "report.json").write_text(json.dumps(facts | {"schema_version": 2}))
        watcher.look()
        page = await (await client.get("/")).text()
        assert '<aside class="served warn"' in page
        assert "report.json is of schema version 2" in page
        metrics = await (await client.get("/metrics")).text()
        assert "kafka_reauth_proxy_readiness_report_read_success 0.0" in metrics
        assert 'kafka_reauth_proxy_readiness_clients{verdict="not_capable"} 1.0' in metrics
        # the tables are still those of the run that is shown
        async with client.get("/tables/clients/part-00000.parquet") as response:
            assert response.status == 200
        put_report(tmp_path, RUNS[1])  # which nobody has looked at yet
        async with client.get("/tables/clients/part-00000.parquet") as response:
            assert response.status == 503
            assert "not of the same run" in await response.text()

    with_client(tmp_path, test)


def test_every_figure_is_a_metric(tmp_path: Path) -> None:
    put_report(tmp_path, regressed={"client_count": 3, "clients": []})

    async def test(client: ClientSession, _watcher: Watcher) -> None:
        body = await (await client.get("/metrics")).text()
        values = dict(re.findall(r"^kafka_reauth_proxy_readiness_(\S+) (\S+)$", body, re.MULTILINE))
        assert values["regressed_clients"] == "3.0"
        assert values["kafka_4_clients"] == "1.0"
        assert values['clients{verdict="not_capable"}'] == "1.0"
        assert values['principals{verdict="not_capable"}'] == "1.0"
        assert values['kills_per_day{bound="most",lifetime_seconds="900"}'] == "5.5"
        assert values['killed_clients{lifetime_seconds="900"}'] == "1.0"
        assert values['failed_authentications{phase="reauthentication"}'] == "1.0"
        assert values["newest_event_timestamp_seconds"] == "60.0"
        names = {name.partition("{")[0] for name in values}
        declared = {one.name.removeprefix("kafka_reauth_proxy_") for one in METRICS}
        assert {f"readiness_{one}" for one in names} == {
            one for one in declared if one.startswith("readiness_")
        }

    with_client(tmp_path, test)


@pytest.mark.parametrize("method", ["POST", "PUT", "DELETE", "OPTIONS"])
def test_it_is_read_only(method: str, tmp_path: Path) -> None:
    put_report(tmp_path)

    async def test(client: ClientSession, _watcher: Watcher) -> None:
        async with client.request(method, "/") as response:
            assert response.status == 405
            assert response.headers["Allow"] == "GET, HEAD"

    with_client(tmp_path, test)


def test_a_site_whose_name_is_bound_to_loopback_reads_nothing(tmp_path: Path) -> None:
    put_report(tmp_path)

    async def test(client: ClientSession, _watcher: Watcher) -> None:
        async with client.get("/", headers={"Host": "attacker.example"}) as response:
            assert response.status == 403

    with_client(tmp_path, test)


def test_clients_that_do_not_read_share_what_is_long(tmp_path: Path) -> None:
    long = "x" * (20 << 20)
    put_report(tmp_path, padding=long)

    async def test(client: ClientSession, _watcher: Watcher) -> None:
        async with client.get("/report.json") as first:
            tracemalloc.start()
            others = [await client.get("/report.json") for _ in range(20)]
            held, _ = tracemalloc.get_traced_memory()
            tracemalloc.stop()
            assert held < 4 * len(long)  # of all 20 together
            assert await others[-1].read() == await first.read()
            for one in others:
                one.close()

    with_client(tmp_path, test)


def test_names_that_clients_chose_stay_text(tmp_path: Path) -> None:
    """Also if one looks like what cuts the page in two."""
    name = "</style></head><body><main><script>alert(1)</script>"
    put_report(tmp_path, source=name)

    async def test(client: ClientSession, _watcher: Watcher) -> None:
        page = await (await client.get("/")).text()
        assert "<script" not in page
        assert page.count("<aside") == page.count("</style>") == 1

    with_client(tmp_path, test)


def test_the_server_loads_neither_an_engine_nor_what_settings_take() -> None:
    program = (
        "import sys, proxy.report.server, proxy.report.address;"
        "print({'pyspark', 'duckdb', 'pydantic', 'obstore', 'aiohttp'} & set(sys.modules))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, check=True, timeout=240
    )
    assert done.stdout == "set()\n"


def end(process: "subprocess.Popen[str]") -> tuple[int, str]:
    process.terminate()
    _, errors = process.communicate(timeout=240)
    return process.returncode, errors


def test_the_command_serves_until_sigterm(tmp_path: Path) -> None:
    put_report(tmp_path)
    command = [sys.executable, "-m", "proxy", "report", "serve", "--from", str(tmp_path)]
    with subprocess.Popen([*command, "--port", "0"], stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        lines = [process.stderr.readline(), process.stderr.readline()]
        port = next(int(line.rpartition(":")[2]) for line in lines if "listening" in line)

        async def get() -> Any:
            async with ClientSession() as client:
                return await (await client.get(f"http://127.0.0.1:{port}/report.json")).json()

        assert asyncio.run(get())["run_id"] == RUNS[0]
        second = subprocess.run(
            [*command, "--port", str(port)], capture_output=True, text=True, timeout=240
        )
        assert second.returncode == 2
        assert second.stderr == (
            f"reauth-proxy: cannot listen on 127.0.0.1:{port}: Address already in use\n"
        )
        assert end(process) == (0, "")


HANGING = """
import logging, sys, threading
from pathlib import Path
from proxy.report.folder import Folder
from proxy.report.server import serve

class Hanging(Folder):
    def open(self, path, listed):
        print("opened", flush=True)
        threading.Event().wait()

logging.basicConfig(level=logging.INFO, stream=sys.stderr)
serve(Hanging(Path(sys.argv[1])), "127.0.0.1", 0)
"""


def test_a_place_that_hangs_does_not_keep_the_process(tmp_path: Path) -> None:
    """As a folder of a server that is away may, for ever."""
    put_report(tmp_path)
    command = [sys.executable, "-c", HANGING, str(tmp_path)]
    with subprocess.Popen(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True
    ) as process:
        assert process.stdout is not None
        lines = iter(process.stdout.readline, "")
        first = (next(lines), next(lines))  # in either order: it listens, and shows the report
        port = next(int(line.rpartition(":")[2]) for line in first if "listening" in line)
        with socket.create_connection(("127.0.0.1", port)) as client:
            client.sendall(
                b"GET /tables/clients/part-00000.parquet HTTP/1.1\r\nHost: localhost\r\n\r\n"
            )
            try:
                assert "opened\n" in lines
                process.terminate()
                assert process.wait(timeout=60) == 0  # asyncio's own threads would keep it
            finally:
                process.kill()
