"""Report of what a release of Kafka has that this proxy does not know: `python -m tests.drift`.

Exits with 0 whatever it finds, with 2 if the release or a part of it cannot be read.
"""

import sys
import tempfile
import zipfile
from collections.abc import Iterable, Sequence
from pathlib import Path

from tests.drift.comparison import Unknown, unknown_apis, unknown_fields, unknown_versions
from tests.drift.definitions import read_definitions
from tests.drift.settings import read_settings
from tests.support.kafka.java import KAFKA_VERSION, KafkaUnavailable, class_path, fetch_jar

CLIENTS = "kafka-clients"
OTHERS_WITH_SETTINGS = ("kafka-server-common", "kafka-server")
"""Artifacts whose classes name settings of brokers; the clients' jar has those of clients."""


def main(arguments: Sequence[str]) -> int:
    """Print the report of the release that is named, or of the newest; return the exit status."""
    version = arguments[0] if arguments else "RELEASE"
    try:
        with tempfile.TemporaryDirectory() as directory:
            return _compare(version, Path(directory))
    except (KafkaUnavailable, OSError, ValueError, zipfile.BadZipFile) as error:
        print(f"kafka-drift: {error}", file=sys.stderr)
        return 2


def _compare(version: str, directory: Path) -> int:
    newest = fetch_jar(CLIENTS, version, directory / "newest")
    version = newest.stem.removeprefix(f"{CLIENTS}-")
    definitions = read_definitions(newest)
    others = (fetch_jar(one, version, directory / one) for one in OTHERS_WITH_SETTINGS)
    settings = read_settings([newest, *others]) - read_settings(_jars_of_tests())
    print(f"Apache Kafka {version} beside this proxy, whose tests run with {KAFKA_VERSION}\n")
    _print("APIs that proxy/wire/apis.py does not have", unknown_apis(definitions))
    _print("Versions above those of proxy/wire/apis.py", unknown_versions(definitions))
    _print("Fields of known versions that are read otherwise", unknown_fields(definitions))
    _print(f"Settings that {KAFKA_VERSION} does not have", map(Unknown, sorted(settings)))
    for sentence in definitions.unreadable:
        print(f"kafka-drift: cannot be read: {sentence}", file=sys.stderr)
    return 2 if definitions.unreadable else 0


def _jars_of_tests() -> list[Path]:
    jars = Path(class_path().removesuffix("/*"))
    return [jars / f"{one}-{KAFKA_VERSION}.jar" for one in (CLIENTS, *OTHERS_WITH_SETTINGS)]


def _print(heading: str, unknown: Iterable[Unknown]) -> None:
    print(heading)
    for one in list(unknown) or [Unknown("none")]:
        print(f"  {one.title}")
        for line in one.fields:
            print(f"      {line}")
    print()


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
