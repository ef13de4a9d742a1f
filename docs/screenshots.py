"""Screenshots of the README (`make pictures`); Chromium takes them.

They differ from machine to machine. The diagram, pictures/diagram.svg, is edited by hand.
"""

import subprocess
import sys
import tempfile
from pathlib import Path
from typing import Final

HERE: Final = Path(__file__).parent / "pictures"
CHROMIUM: Final = "chromium"


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
