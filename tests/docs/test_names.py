"""Names in backticks, in pages, docstrings and comments, exist."""

import re
from functools import cache
from pathlib import Path
from typing import Final

import pytest

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("proxy", "sasl", "metrics")
PAGES: Final = sorted({*ROOT.glob("*.md"), *ROOT.glob("*/*.md")} - {ROOT / "CHANGELOG.md"})
"""The changelog also names removed things."""
SOURCES: Final = ("proxy", "sasl", "metrics", "tests", "benchmarks", "docs", "deploy", ".ci")
SUFFIXES: Final = {".conf", ".go", ".in", ".java", ".json", ".mod", ".pyi", ".sh", ".tpl", ".toml"}
SUFFIXES_TOO: Final = {".txt", ".xml", ".yaml", ".yml", ".socket", ".service", ""}
PATH: Final = re.compile(
    r"(?<![\w/-])(?:proxy|sasl|metrics|tests|docs|deploy|benchmarks|requirements)/[\w./-]*[\w/]"
)
OURS: Final = re.compile(
    r"[a-z]\w*(?:_\w+)+|_\w+"  # snake_case
    r"|(?:[A-Z][a-z0-9]+){2,}"  # CamelCase
    r"|[A-Z]+(?:_[A-Z0-9]+)+"  # CONSTANT
)

FENCED: Final = re.compile(r"^ *```.*?^ *```$", re.MULTILINE | re.DOTALL)
DOCSTRING: Final = re.compile(r'^ *r?"""(.*?)"""', re.MULTILINE | re.DOTALL)
COMMENT: Final = re.compile(r"(?:^|(?<=\s))#:? .*")

FOREIGN: Final = frozenset(
    re.findall(
        r"\w+",
        """
        Kafka: AclEntry ApiKeys ClaimValidationUtils ClientQuotaCallback ControllerApis
        CoordinatorType ExpiringCredentialRefreshingLogin KafkaApis KafkaChannel MAX_NAME_LENGTH
        MAX_PARTITIONS_PER_BATCH MAX_RECORDS_PER_USER_OP PathUtils QuorumController
        ReplicationControlManager RequestHeaderData ScramCredentialUtils ScramFormatter
        ScramSaslServer SecurityUtils WindowedSum ZERO_UUID ZkData
        Linux, systemd, OpenSSL, Kubernetes, Prometheus: CrashLoopBackOff HTTPS_PROXY
        SD_LISTEN_FDS_START SSL_CERT_DIR SSL_MODE_RELEASE_BUFFERS malloc_trim rmem_max
        scrape_timeout tcp_tw_reuse
        Python, Spark, franz-go, the release workflow: AvailableNow ProtocolError
        PurgeTopicsFromClient REGISTRY_PASSWORD REGISTRY_USER start_unix_server timestamp_millis
        """,
    )
)
"""Names of other programs, which the code does not contain."""


def words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text))


@cache
def vocabulary() -> frozenset[str]:
    """Return every word of the code, without docstrings and comments."""
    found: set[str] = set()
    for folder in SOURCES:
        for file in (ROOT / folder).rglob("*"):
            if file.suffix == ".py" and file != Path(__file__):
                found |= words(COMMENT.sub("", DOCSTRING.sub("", file.read_text())))
            elif file.suffix in SUFFIXES | SUFFIXES_TOO and file.is_file():
                found |= words(file.read_text(errors="ignore"))
            found.add(file.stem)
    for file in ROOT.iterdir():
        if file.is_file() and file.suffix not in (".md", ".pyc"):
            found |= words(file.read_text(errors="ignore"))
    return frozenset(found)


def prose(file: Path) -> str:
    text = file.read_text()
    if file.suffix == ".md":
        return FENCED.sub("", text)
    return "\n".join([*DOCSTRING.findall(text), *COMMENT.findall(DOCSTRING.sub("", text))])


def unknown(text: str) -> set[str]:
    """Return the names in backticks that look like ours and are nowhere in the code."""
    found: set[str] = set()
    for quoted in re.findall(r"`([^`\n]+)`", text):
        for path in PATH.findall(quoted):
            if not (ROOT / path).exists() and "/" in path.rstrip("/"):
                found.add(path)
        for name in re.split(r"\W+", PATH.sub("", quoted)):
            if name.endswith("Exception"):  # what Java clients report
                continue
            declared = name.removeprefix("kafka_reauth_proxy_").removesuffix("_bucket")
            if OURS.fullmatch(name) and not {name, declared} & (vocabulary() | FOREIGN):
                found.add(name)
    return found


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_names_on_pages_exist(page: Path) -> None:
    assert unknown(prose(page)) == set()


@pytest.mark.parametrize("package", PACKAGES)
def test_names_in_docstrings_and_comments_exist(package: str) -> None:
    found = {
        str(file.relative_to(ROOT)): names
        for file in (ROOT / package).rglob("*.py")
        if (names := unknown(prose(file)))
    }
    assert found == {}


def test_a_name_that_is_gone_is_found() -> None:
    text = "`wait_for_gone`, `Connection.outlives_gone`, `proxy/gone.py`, `GoneClass` and `gone`"
    names = {"wait_for_gone", "outlives_gone", "proxy/gone.py", "GoneClass"}
    assert unknown(text) == names
