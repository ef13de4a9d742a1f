"""Screenshots of the status page with thirty sessions of a bad night, to be looked at.

python -m tests.proxy.status_screens DIRECTORY
"""

import asyncio
import sys
import tempfile
from pathlib import Path

from proxy.ops.status.page import render
from proxy.ops.status.session_facts import EVERY_SESSION, Selector
from tests.proxy.chromium import browsing
from tests.proxy.status_given import ABOUT, busy

SCREENS = {"desktop": 1_280, "phone": 390}
SHOWN = {"all": EVERY_SESSION, "one": Selector(principal="User:orders-003")}


async def take(directory: Path) -> list[Path]:
    """Take one of each screen, light and dark; return the files."""
    taken = []
    with tempfile.TemporaryDirectory(ignore_cleanup_errors=True) as profile:
        async with browsing(Path(profile)) as browser:
            for what, selector in SHOWN.items():
                file = directory / f"{what}.html"
                file.write_text(render(busy(30, 9).of(selector), selector, ABOUT))
                for screen, width in SCREENS.items():
                    for scheme in ("light", "dark"):
                        await browser.look(width, 900, dark=scheme == "dark")
                        await browser.open(file.absolute().as_uri())
                        taken.append(directory / f"{what}-{screen}-{scheme}.png")
                        taken[-1].write_bytes(await browser.screenshot())
    return taken


if __name__ == "__main__":
    Path(sys.argv[1]).mkdir(parents=True, exist_ok=True)
    for made in asyncio.run(take(Path(sys.argv[1]))):
        print(made)  # noqa: T201 - what the command is for
