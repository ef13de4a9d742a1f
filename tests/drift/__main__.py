"""Report of changes in a release of Kafka: `python -m tests.drift`.

It is the difference between the data file that `make schemas` would generate of the release and the
one that is there, and the settings that are new. Exits with 0 whatever it finds, with 2 if the
release or a part of it cannot be read.
"""

import sys
import tempfile
import zipfile
from collections.abc import Sequence
from difflib import unified_diff
from pathlib import Path

from tests.drift.generate import CLIENTS, MESSAGES, messages_of
from tests.drift.settings import read_settings
from tests.support.kafka.java import KAFKA_VERSION, KafkaUnavailable, class_path, fetch_jar

OTHERS_WITH_SETTINGS = ("kafka-server-common", "kafka-server")
"""Artifacts with the names of broker settings; the clients' jar has those of clients."""


def main(arguments: Sequence[str]) -> int:
    """Print the report on the named or newest release; return the exit status."""
    version = arguments[0] if arguments else "RELEASE"
    try:
        with tempfile.TemporaryDirectory() as directory:
            print(_compared(version, Path(directory)))
    except (KafkaUnavailable, OSError, ValueError, zipfile.BadZipFile) as error:
        print(f"kafka-drift: {error}", file=sys.stderr)
        return 2
    return 0


def _compared(version: str, directory: Path) -> str:
    newest = fetch_jar(CLIENTS, version, directory / "newest")
    version = newest.stem.removeprefix(f"{CLIENTS}-")
    messages = messages_of(version, newest, directory)
    others = (fetch_jar(one, version, directory / one) for one in OTHERS_WITH_SETTINGS)
    settings = read_settings([newest, *others]) - read_settings(_jars_of_tests())
    lines = (
        f"Apache Kafka {version} beside this proxy, whose tests run with {KAFKA_VERSION}",
        "",
        f"Messages: what `make schemas KAFKA={version}` would change",
        *(differences(MESSAGES.read_text(), messages) or ["  nothing"]),
        "",
        f"Settings that {KAFKA_VERSION} does not have",
        *(f"  {one}" for one in sorted(settings) or ["none"]),
    )
    return "\n".join(lines)


def differences(before: str, after: str) -> list[str]:
    """Return the changed lines, each after its message's line."""
    blocks, changed = (
        {block.split(" ", 2)[1]: block for block in _blocks(one)} for one in (before, after)
    )
    lines: list[str] = []
    for name in sorted(blocks.keys() | changed.keys()):
        old, new = blocks.get(name, ""), changed.get(name, "")
        if old != new:
            found = unified_diff(old.splitlines(), new.splitlines(), n=0, lineterm="")
            lines += [f"  {name}", *(f"    {one}" for one in [*found][2:] if one[0] != "@")]
    return lines


def _blocks(text: str) -> list[str]:
    return text.split("\n\n")[1:]


def _jars_of_tests() -> list[Path]:
    jars = Path(class_path().removesuffix("/*"))
    return [jars / f"{one}-{KAFKA_VERSION}.jar" for one in (CLIENTS, *OTHERS_WITH_SETTINGS)]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
