"""Pictures of the README: the diagram, which `make docs` draws; as a program, screenshots.

Chromium takes the screenshots, which differ from machine to machine.
"""

import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final
from xml.sax.saxutils import escape

HERE: Final = Path(__file__).parent / "pictures"
CHROMIUM: Final = "chromium"

_WIDTH, _HEIGHT = 860, 300
_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#1f2937}"
    ".small{font-size:11px;fill:#4b5563}.title{font-weight:600}"
    ".box{fill:#f8fafc;stroke:#64748b;rx:8}.proxy{fill:#eff6ff;stroke:#1d4ed8;rx:8}"
    ".line{stroke:#475569;stroke-width:1.6;fill:none;marker-end:url(#tip)}"
    ".thin{stroke:#94a3b8;stroke-width:1.2;stroke-dasharray:4 3;fill:none;marker-end:url(#tip)}"
)


def diagrams() -> dict[Path, str]:
    """Return the file of the diagram of clients, proxy and brokers."""
    body = "\n".join(_parts())
    diagram = (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {_WIDTH} {_HEIGHT}"'
        f' width="{_WIDTH}" height="{_HEIGHT}" role="img"'
        ' aria-label="Clients connect to the proxy, the proxy to the brokers">\n'
        f"<style>{_STYLE}</style>\n"
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7"'
        ' markerHeight="7" orient="auto-start-reverse">'
        '<path d="M0 0 8 4 0 8z" fill="#475569"/></marker></defs>\n'
        f'<rect width="{_WIDTH}" height="{_HEIGHT}" fill="#ffffff"/>\n{body}\n</svg>\n'
    )
    return {HERE / "diagram.svg": diagram}


def _parts() -> Iterator[str]:
    for row, (name, note) in enumerate(
        (
            ("client that re-authenticates", "keeps working"),
            ("client that cannot", "reported, then disconnected"),
            ("client without credentials", "never reaches a broker"),
        )
    ):
        top = 24 + row * 64
        yield from _box(16, top, 220, 48, name, [note])
        yield f'<path class="line" d="M236 {top + 24} L338 112"/>'
    yield from _box(
        340,
        40,
        210,
        146,
        "reauth-proxy",
        [
            "authenticates, or relays SASL",
            "holds sessions (KIP-368)",
            "ACLs and quotas",
            "observe → probe → enforce",
        ],
        kind="proxy",
    )
    for row in range(3):
        top = 24 + row * 64
        yield f'<path class="line" d="M550 112 L652 {top + 24}"/>'
        yield from _box(654, top, 190, 48, f"Kafka broker {row}", ["TLS or a login, if required"])
    for target, (left, width, name, note) in enumerate(
        (
            (16, 220, "identity provider", "signing keys (JWKS)"),
            (260, 180, "Prometheus, Grafana", "/metrics, alerts"),
            (464, 180, "readiness report", "from the event log"),
            (668, 176, "operator", "status page, commands"),
        )
    ):
        yield from _box(left, 236, width, 48, name, [note])
        yield f'<path class="thin" d="M{left + width // 2} 236 L{385 + target * 40} 188"/>'


def _box(
    left: int, top: int, width: int, height: int, title: str, notes: list[str], *, kind: str = "box"
) -> Iterator[str]:
    yield f'<rect class="{kind}" x="{left}" y="{top}" width="{width}" height="{height}"/>'
    yield _text(left + 12, top + 20, title, "title")
    for row, note in enumerate(notes):
        yield _text(left + 12, top + 38 + row * 20, note, "small")


def _text(left: int, top: int, text: str, kind: str) -> str:
    return f'<text class="{kind}" x="{left}" y="{top}">{escape(text)}</text>'


def take_pages() -> None:
    """Take the pages of a demo that has just run, and of the status page's example."""
    with tempfile.TemporaryDirectory() as name:
        directory = Path(name)
        demo = [sys.executable, "-m", "proxy", "demo", "--seconds", "45"]
        done = subprocess.run(  # noqa: S603 - this project's own program
            demo, env={"TMPDIR": name, "PATH": "/usr/bin:/bin"}, capture_output=True, text=True
        )
        report = done.stdout.rpartition("Readiness report: ")[2].strip()
        status = [sys.executable, "-m", "tests.support.status", str(directory)]
        subprocess.run(status, check=True)  # noqa: S603 - this project's own program
        _take(Path(report), HERE / "readiness.png", 1100, 760)
        _take(directory / "all.html", HERE / "status.png", 1100, 760)


def _take(page: Path, picture: Path, width: int, height: int) -> None:
    options = ["--headless", "--no-sandbox", "--hide-scrollbars", f"--window-size={width},{height}"]
    subprocess.run(  # noqa: S603 - as the caller's PATH has it
        [CHROMIUM, *options, f"--screenshot={picture}", page.as_uri()],
        check=True,
        capture_output=True,  # it complains of desktops that are not there
    )


if __name__ == "__main__":
    take_pages()
