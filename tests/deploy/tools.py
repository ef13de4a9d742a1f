"""Programs that judge what is in deploy/, and files in it."""

import json
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
RUN_SECONDS = 600
OPERATOR = (
    "github.com/prometheus-operator/prometheus-operator",
    "v0.85.0",
    "h1:M5xLCLEoaW2IJfnuCwFzzpL+jSVQu3KGT84Pye+fW8s=",
)
"""The Go module that has its custom resources' definitions, its version and checksum."""

_HINTS = {
    "promtool": "apt-get install prometheus",
    "prometheus": "apt-get install prometheus",
    "helm": "go install helm.sh/helm/v3/cmd/helm@v3.22.0",
    "kustomize": "go install sigs.k8s.io/kustomize/kustomize/v5@v5.7.1",
    "go": "apt-get install golang",
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


def operator_schema(plural: str) -> dict[str, Any]:
    """The schema of a custom resource of the Prometheus operator, an unknown field an error."""
    module, version, digest = OPERATOR
    found = json.loads(run("go", "mod", "download", "-json", f"{module}@{version}"))
    assert found["Sum"] == digest
    directory = Path(found["Dir"], "example", "prometheus-operator-crd")
    definition = load(directory / f"monitoring.coreos.com_{plural}.yaml")
    (of_version,) = definition["spec"]["versions"]
    schema: dict[str, Any] = of_version["schema"]["openAPIV3Schema"]
    schema["properties"]["metadata"] = {}  # Kubernetes' own, as in every object
    strict: dict[str, Any] = _strict(schema)
    return strict


def _strict(schema: Any) -> Any:
    if isinstance(schema, list):
        return [_strict(one) for one in schema]
    if not isinstance(schema, dict):
        return schema
    made = {key: _strict(value) for key, value in schema.items()}
    if isinstance(made.get("properties"), dict) and "type" in made:
        made.setdefault("additionalProperties", False)
    return made


def load(path: Path) -> Any:
    """A YAML file of one document."""
    return yaml.safe_load(path.read_text())


def metric_names(promql: str) -> set[str]:
    """The metrics of the proxy, and recorded series, that a query reads."""
    return set(re.findall(r"\bkafka_reauth_proxy[:_][a-z0-9_:]+", promql))
