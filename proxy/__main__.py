"""Entry point of `reauth-proxy` and of `python -m proxy`."""

import gc
import sys
from collections.abc import Sequence
from pathlib import Path

from proxy import declarations


def main() -> None:
    """Run the command line.

    `serve` runs without the command line's libraries, which would stay in memory for as long as the
    proxy runs. The libraries handle all other commands, and unusual options of `serve`.
    """
    arguments = _of_serve(sys.argv[1:])
    if arguments is None:
        from proxy.cli import main as run

        run()
        return
    gc.disable()  # until workers are forked: loaded modules stay in memory in any case
    declarations.hold_only()
    from proxy.process.start import serve

    path, options = arguments
    sys.exit(serve(path, follow="--follow" in options, take_over="--take-over" in options))


def _of_serve(arguments: Sequence[str]) -> tuple[Path, frozenset[str]] | None:
    """Return file and flags of `serve`; None for another command, or unusual options."""
    if sys.platform != "linux":
        return None
    flags = frozenset({"--follow", "--take-over"}.intersection(arguments))
    match [one for one in arguments if one not in flags]:
        case ["serve", "--config", file]:
            pass
        case ["serve", option] if option.startswith("--config="):
            file = option.removeprefix("--config=")
        case ["serve", file] if not file.startswith("-"):
            pass
        case _:
            return None
    return Path(file), flags


if __name__ == "__main__":
    main()
