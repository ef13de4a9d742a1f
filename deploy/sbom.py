"""Prints a software bill of materials of this Python environment: CycloneDX 1.5 as JSON.

Standard library alone, so that it describes an environment without being part of it.
"""

# ruff: noqa: T201 - a script, for the person or the job that runs it

import json
import sys
from importlib.metadata import Distribution, distributions
from typing import Any

PROJECT = "kafka-reauth-proxy"


def component(distribution: Distribution) -> dict[str, Any]:
    """Describe a distribution."""
    metadata = distribution.metadata
    name, version = metadata["Name"], distribution.version
    reference = f"pkg:pypi/{name.lower().replace('_', '-')}@{version}"
    found: dict[str, Any] = {
        "type": "application" if name == PROJECT else "library",
        "bom-ref": reference,
        "name": name,
        "version": version,
        "purl": reference,
    }
    if expressions := metadata.get_all("License-Expression", []):
        found["licenses"] = [{"expression": one} for one in expressions]
    elif classifiers := [
        one.rpartition(" :: ")[2]
        for one in metadata.get_all("Classifier", [])
        if one.startswith("License :: ")
    ]:
        found["licenses"] = [{"license": {"name": one}} for one in classifiers]
    return found


def bill() -> dict[str, Any]:
    """Describe the environment."""
    components = sorted(map(component, distributions()), key=lambda one: str(one["purl"]))
    python = ".".join(map(str, sys.version_info[:3]))
    return {
        "bomFormat": "CycloneDX",
        "specVersion": "1.5",
        "version": 1,
        "metadata": {"component": next(one for one in components if one["name"] == PROJECT)},
        "components": [
            *(one for one in components if one["name"] != PROJECT),
            {"type": "platform", "name": "python", "version": python},
        ],
    }


if __name__ == "__main__":
    json.dump(bill(), sys.stdout, indent=1)
    print()
