"""The compiled data path, as in the image, behaves like the source."""

import subprocess
import sys
import tomllib
from itertools import chain
from pathlib import Path

import pytest

from proxy.connection.frames import COMPILED
from tests.support.compiled import ROOT, compiled_copy, lacking
from tests.support.deploy import missing

pytestmark = pytest.mark.slow

TEST_SECONDS = 1_200
SUITES = (
    "metrics/test_event*.py",
    "metrics/test_history.py",
    "metrics/test_tally.py",
    "proxy/connection/test_connection*.py",
    "proxy/connection/test_latency.py",
    "proxy/connection/test_long_work.py",
    "proxy/connection/test_relayed_*.py",
    "proxy/connection/test_thrott*.py",
    "proxy/connection/test_upstream_login*.py",
    "proxy/net/test_relay.py",
    "proxy/net/test_tls_handshake.py",
    "proxy/net/test_tls_transport*.py",
    "proxy/ops/test_observer*.py",
    "proxy/wire",
    "proxy/worker/test_connection_limits.py",
    "proxy/worker/test_listener*.py",
    "proxy/worker/test_relayed_listener.py",
    "sasl",
)


@pytest.fixture(scope="module")
def copy(tmp_path_factory: pytest.TempPathFactory) -> Path:
    if (words := lacking()) is not None:
        missing(words)
    before = _built()
    copy = compiled_copy(tmp_path_factory.mktemp("compiled"))
    assert _built() == before, "compiling leaves something in the checkout"
    return copy


def _built() -> set[Path]:
    """Files that compiling a wheel would leave in a checkout."""
    beside = {*ROOT.glob("*.so"), *ROOT.glob("dist/*"), *ROOT.glob("*.egg-info")}
    return beside.union(*((ROOT / name).rglob("*.so") for name in ("metrics", "proxy", "sasl")))


def _python(copy: Path, *arguments: str) -> str:
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=copy,
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=TEST_SECONDS,
    )
    assert done.returncode == 0, (done.stdout + done.stderr)[-8000:]
    return done.stdout


def test_what_is_to_be_compiled_is(copy: Path) -> None:
    """Otherwise the tests below would prove nothing."""
    build = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["hatch"]["build"]
    sources = build["targets"]["wheel"]["hooks"]["mypyc"]["include"]
    modules = [source.strip("/").removesuffix(".py").replace("/", ".") for source in sources]
    words = (
        "import importlib, sys; print(*(importlib.import_module(m).__file__ for m in sys.argv[1:]))"
    )
    files = _python(copy, "-c", words, *modules).split()
    assert len(files) == len(modules)
    assert all(file.startswith(str(copy)) and file.endswith(".so") for file in files), files


def test_it_says_that_it_is_compiled(copy: Path) -> None:
    """A checkout reports that it is not, for `build_info` and the benchmarks."""
    said = _python(copy, "-c", "from proxy.connection.frames import COMPILED; print(COMPILED)")
    assert said == "True\n"
    assert _python(copy, "-m", "proxy", "--version").endswith(" (compiled)\n")
    assert not COMPILED


def test_it_passes_the_data_paths_own_tests(copy: Path) -> None:
    found = [sorted(str(path) for path in (copy / "tests").glob(suite)) for suite in SUITES]
    assert all(found), "a suite has no tests"
    tests = list(chain.from_iterable(found))
    _python(copy, "-m", "pytest", "-q", "-p", "no:cacheprovider", "-m", "not slow", *tests)
