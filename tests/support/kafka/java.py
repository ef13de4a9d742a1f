"""Kafka's jars and Java programs: fetched once, compiled once, run with a deadline."""

import fcntl
import hashlib
import os
import shutil
import subprocess
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

#: Another one shows what is the same with it: not what transcripts of this one say word for word.
KAFKA_VERSION = os.environ.get("KAFKA_VERSION") or "4.4.0"

_HERE = Path(__file__).parent
_POM = _HERE / "pom.xml"
_CLIENTS_POM = _HERE / "clients-pom.xml"
_SOURCES = _HERE / "java"
_LOG4J = f"-Dlog4j2.configurationFile={_SOURCES / 'log4j2.properties'}"
_INSTALL_HINT = "install a JDK 17 and Maven (Debian: openjdk-17-jdk-headless maven)"

#: The classes behind Kafka's shell scripts.
TOOLS = {
    "kafka-acls": "org.apache.kafka.tools.AclCommand",
    "kafka-broker-api-versions": "org.apache.kafka.tools.BrokerApiVersionsCommand",
    "kafka-cluster": "org.apache.kafka.tools.ClusterTool",
    "kafka-configs": "org.apache.kafka.tools.ConfigCommand",
    "kafka-console-consumer": "org.apache.kafka.tools.consumer.ConsoleConsumer",
    "kafka-console-producer": "org.apache.kafka.tools.ConsoleProducer",
    "kafka-consumer-groups": "org.apache.kafka.tools.consumer.group.ConsumerGroupCommand",
    "kafka-features": "org.apache.kafka.tools.FeatureCommand",
    "kafka-get-offsets": "org.apache.kafka.tools.GetOffsetShell",
    "kafka-producer-perf-test": "org.apache.kafka.tools.ProducerPerformance",
    "kafka-reassign-partitions": "org.apache.kafka.tools.reassign.ReassignPartitionsCommand",
    "kafka-storage": "kafka.tools.StorageTool",
    "kafka-topics": "org.apache.kafka.tools.TopicCommand",
    "kafka-transactions": "org.apache.kafka.tools.TransactionsCommand",
}

#: Those that Kafka 4.4 and 4.0 moved.
_TOOLS_BEFORE_4_4 = {"kafka-configs": "kafka.admin.ConfigCommand"}
_TOOLS_BEFORE_4 = {
    "kafka-acls": "kafka.admin.AclCommand",
    "kafka-broker-api-versions": "kafka.admin.BrokerApiVersionsCommand",
    "kafka-console-producer": "kafka.tools.ConsoleProducer",
}

#: Timeout of a program on a busy machine.
RUN_SECONDS = 300.0

#: Short-lived programs: start fast rather than run fast.
FAST_START = ("-XX:TieredStopAtLevel=1", "-XX:+UseSerialGC", "-Xshare:auto")


class KafkaUnavailable(Exception):
    """This machine cannot run Kafka; the message names what to install."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Finished:
    """Exit status and output of a Java program."""

    exit_status: int
    stdout: str
    stderr: str


def is_since(release: str) -> bool:
    """Whether the release under test is this one or later."""
    return _numbers(KAFKA_VERSION) >= _numbers(release)


def _numbers(release: str) -> list[int]:
    return [int(number) for number in release.split(".")]


def cache_directory() -> Path:
    """The user's cache directory, shared by checkouts."""
    root = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(root) / "kafka-reauth-proxy"


def class_path(release: str = KAFKA_VERSION) -> str:
    """Kafka's class path, fetched by Maven on first use; raises `KafkaUnavailable`."""
    if shutil.which("java") is None:
        raise KafkaUnavailable(f"no java on PATH: {_INSTALL_HINT}")
    given = os.environ.get("KAFKA_JARS")
    if given and release == KAFKA_VERSION:
        if not any(Path(given).glob("kafka_*.jar")):
            raise KafkaUnavailable(f"KAFKA_JARS={given} holds no kafka_*.jar")
        return f"{given}/*"
    return f"{_fetched_jars(release)}/*"


def client_class_path(release: str) -> str:
    """The class path of the clients of a release; raises `KafkaUnavailable`."""
    return f"{_jars_of(_CLIENTS_POM, 'kafka-clients', release)}/*"


def _fetched_jars(release: str) -> Path:
    return _jars_of(_POM, "kafka", release)


def _jars_of(pom: Path, name: str, release: str) -> Path:
    # The pom's digest is part of the name, so each version has its own directory.
    digest = hashlib.sha256(pom.read_bytes()).hexdigest()[:12]
    jars = cache_directory() / f"{name}-{release}-{digest}"
    if jars.is_dir():
        return jars
    with _locked(cache_directory() / "kafka.lock"):
        if not jars.is_dir():
            _copy_dependencies(pom, release, jars)
    return jars


def fetch_jar(artifact: str, version: str, directory: Path) -> Path:
    """Fetch a jar of Kafka; version `RELEASE` is the newest release.

    Raises `KafkaUnavailable`.
    """
    if shutil.which("mvn") is None:
        raise KafkaUnavailable(f"no mvn on PATH: {_INSTALL_HINT}")
    directory.mkdir(parents=True)
    goal = "org.apache.maven.plugins:maven-dependency-plugin:3.8.1:copy"
    what = f"-Dartifact=org.apache.kafka:{artifact}:{version}"
    command = ["mvn", "-q", "-B", goal, what, f"-DoutputDirectory={directory}"]
    done = subprocess.run(command, capture_output=True, text=True, timeout=1200)
    jars = list(directory.glob("*.jar"))
    if done.returncode != 0 or len(jars) != 1:
        raise KafkaUnavailable(
            f"Maven could not fetch {artifact} {version}; is there such a release?\n"
            f"{done.stdout[:500]}"
        )
    return jars[0]


def _copy_dependencies(pom: Path, release: str, jars: Path) -> None:
    if shutil.which("mvn") is None:
        raise KafkaUnavailable(f"no mvn on PATH and KAFKA_JARS is not set: {_INSTALL_HINT}")
    partial = jars.with_suffix(".partial")
    shutil.rmtree(partial, ignore_errors=True)
    command = ["mvn", "-q", "-B", "-f", str(pom), "dependency:copy-dependencies"]
    options = ["-DincludeScope=runtime", f"-DoutputDirectory={partial}"]
    options.append(f"-Dkafka.version={release}")
    options.append("-DexcludeArtifactIds=slf4j-reload4j")  # before Kafka 4, a second binding
    done = subprocess.run([*command, *options], capture_output=True, text=True, timeout=1200)
    if done.returncode != 0:
        shutil.rmtree(partial, ignore_errors=True)
        raise KafkaUnavailable(f"mvn could not fetch Kafka's jars:\n{done.stdout[-2000:]}")
    partial.rename(jars)  # atomic, so that an interrupted fetch is not taken for a complete one


@contextmanager
def _locked(path: Path) -> Iterator[None]:
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def run_java(
    main_class: str,
    arguments: Sequence[str] = (),
    *,
    jvm_options: Sequence[str] = (),
    extra_class_path: Path | None = None,
    stdin: str | None = None,
    timeout_seconds: float = RUN_SECONDS,
    release: str = KAFKA_VERSION,
) -> Finished:
    """Run a main class; kill it after the deadline."""
    path = class_path(release)
    if extra_class_path is not None:
        path = f"{extra_class_path}:{path}"
    done = subprocess.run(
        ["java", "-Xmx256m", *FAST_START, *jvm_options, "-cp", path, main_class, *arguments],
        input=stdin,
        capture_output=True,
        text=True,
        timeout=timeout_seconds,
    )
    return Finished(exit_status=done.returncode, stdout=done.stdout, stderr=done.stderr)


def run_tool(
    tool: str,
    arguments: Sequence[str],
    *,
    stdin: str | None = None,
    timeout_seconds: float = RUN_SECONDS,
) -> Finished:
    """Run the main class behind `tool.sh` of a Kafka distribution."""
    classes = TOOLS if is_since("4.4") else TOOLS | _TOOLS_BEFORE_4_4
    if not is_since("4.0"):
        classes |= _TOOLS_BEFORE_4
    return run_java(classes[tool], arguments, stdin=stdin, timeout_seconds=timeout_seconds)


def compiled(name: str) -> Path:
    """Compile `java/NAME.java` once per source text; return its class directory."""
    source = _SOURCES / f"{name}.java"
    digest = hashlib.sha256(source.read_bytes()).hexdigest()[:12]
    classes = cache_directory() / "classes" / f"{name}-{digest}"
    if classes.is_dir():
        return classes
    if shutil.which("javac") is None:
        raise KafkaUnavailable(f"no javac on PATH: {_INSTALL_HINT}")
    path = class_path()
    with _locked(cache_directory() / "classes.lock"):
        if not classes.is_dir():
            partial = classes.with_suffix(".partial")
            shutil.rmtree(partial, ignore_errors=True)
            partial.mkdir(parents=True)
            command = ["javac", "-Xlint:all", "-Werror", "-proc:none"]
            subprocess.run(
                [*command, "-cp", path, "-d", str(partial), str(source)],
                check=True,
                timeout=RUN_SECONDS,
            )
            partial.rename(classes)
    return classes


def run_program(
    name: str,
    arguments: Sequence[str],
    *,
    jvm_options: Sequence[str] = (),
    stdin: str | None = None,
    timeout_seconds: float = RUN_SECONDS,
) -> Finished:
    """Compile and run a program of `tests/support/kafka/java/`."""
    return run_java(
        name,
        arguments,
        jvm_options=[_LOG4J, *jvm_options],
        extra_class_path=compiled(name),
        stdin=stdin,
        timeout_seconds=timeout_seconds,
    )
