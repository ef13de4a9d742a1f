"""Programs that judge what is in deploy/, and files in it."""

import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

ROOT = Path(__file__).resolve().parents[2]
DEPLOY = ROOT / "deploy"
RUN_SECONDS = 120

_HINTS = {
    "promtool": "apt-get install prometheus",
    "prometheus": "apt-get install prometheus",
    "helm": "go install helm.sh/helm/v3/cmd/helm@v3.22.0",
    "kustomize": "go install sigs.k8s.io/kustomize/kustomize/v5@v5.7.1",
    "debootstrap": "apt-get install debootstrap",
}


def find(program: str) -> str:
    """The path of a program. Without it: skips with a hint, but in CI it is a fault."""
    go = os.environ.get("GOBIN") or str(Path.home() / "go/bin")
    path = shutil.which(program, path=os.environ["PATH"] + os.pathsep + go)
    return path or missing(f"no {program} here: {_HINTS[program]}")


def missing(words: str) -> Any:
    """Skips, or fails in CI."""
    if os.environ.get("CI") == "true":
        pytest.fail(words)
    pytest.skip(words)


def run(program: str, *arguments: str | Path, check: bool = True) -> str:
    """What a program wrote, stdout and stderr; it must succeed, or fail with `check=False`."""
    done = subprocess.run(
        [find(program), *arguments],
        stdin=subprocess.DEVNULL,
        capture_output=True,
        text=True,
        timeout=RUN_SECONDS,
    )
    assert (done.returncode == 0) is check, f"{program} {arguments}\n{done.stdout}{done.stderr}"
    return done.stdout + done.stderr


def load(path: Path) -> Any:
    """A YAML file of one document."""
    return yaml.safe_load(path.read_text())


def metric_names(promql: str) -> set[str]:
    """The metrics of the proxy, and recorded series, that a query reads."""
    return set(re.findall(r"\bkafka_reauth_proxy[:_][a-z0-9_:]+", promql))
