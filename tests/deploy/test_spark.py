"""The manifests of deploy/spark: valid, without privilege, and the same for both ways."""

import importlib
import json
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

import proxy
from tests.support import deploy
from tests.support.deploy import DEPLOY, Document, kustomized, load, of_kind, of_text, run

APPLICATION: Document = load(DEPLOY / "spark/spark-application.yaml")
EXECUTOR: Document = load(DEPLOY / "spark/executor.yaml")
IMAGE = f"kafka-reauth-proxy-report:{proxy.__version__}"
OPERATOR = (
    "github.com/kubeflow/spark-operator/v2",
    "v2.3.0",
    "h1:cYN/331gwkdZ0S/ai72JQoUv7UK52O2OQOWFpl8XhPc=",
)
"""The Go module that has the operator's definitions, its version and checksum."""


@pytest.fixture(scope="module")
def documents() -> list[Document]:
    return of_text(run("kustomize", "build", DEPLOY / "spark"))


def driver(documents: list[Document]) -> Document:
    template: Document = of_kind(documents, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]
    return template


def settings(documents: list[Document]) -> dict[str, str]:
    lines = of_kind(documents, "ConfigMap")["data"]["spark-defaults.conf"].splitlines()
    found = (line.split(None, 1) for line in lines if not line.startswith("#"))
    return {name: value.strip() for name, value in found}


def contexts(pod: Document) -> Document:
    """Of a pod's spec with one container."""
    (container,) = pod["containers"]
    found: Document = pod["securityContext"] | container["securityContext"]
    return found


def test_the_api_server_would_take_them(kubernetes: ModuleType, documents: list[Document]) -> None:
    for document in documents:
        kubernetes.validate(document, "1.33", strict=True)


def test_driver_and_executors_have_no_privilege(documents: list[Document]) -> None:
    """No more than the proxy has: what `restricted` asks for, and a read-only root."""
    wanted = deploy.container(kustomized("gateway"))["securityContext"]
    assert wanted.items() <= contexts(driver(documents)["spec"]).items()
    assert wanted.items() <= contexts(EXECUTOR["spec"]).items()
    for role in ("driver", "executor"):
        part = APPLICATION["spec"][role]
        assert wanted.items() <= (part["podSecurityContext"] | part["securityContext"]).items()
    assert EXECUTOR["spec"]["automountServiceAccountToken"] is False


def test_executors_mount_what_the_driver_mounts_at_the_same_places(
    documents: list[Document],
) -> None:
    def places(container: Document) -> set[str]:
        return {one["mountPath"] for one in container["volumeMounts"]}

    (of_driver,), (of_executor,) = (
        driver(documents)["spec"]["containers"],
        EXECUTOR["spec"]["containers"],
    )
    assert places(of_driver) - places(of_executor) == {"/etc/spark"}
    assert places(of_executor) == places(APPLICATION["spec"]["executor"])


def test_all_are_one_image_and_one_job(documents: list[Document]) -> None:
    (container,) = driver(documents)["spec"]["containers"]
    of_conf = settings(documents)
    assert {container["image"], of_conf["spark.kubernetes.container.image"]} == {IMAGE}
    assert APPLICATION["spec"]["image"] == IMAGE
    assert container["args"][-3:] == APPLICATION["spec"]["arguments"]
    assert f"local://{container['args'][-4]}" == APPLICATION["spec"]["mainApplicationFile"]
    shared = APPLICATION["spec"]["sparkConf"].items()
    assert shared <= of_conf.items()
    assert of_conf["spark.executor.memory"] == APPLICATION["spec"]["executor"]["memory"]


def unknown(value: Any, schema: Any, path: str) -> Iterator[str]:
    """The fields that a definition does not have; an API server drops them, with a warning."""
    if isinstance(value, list):
        for one in value:
            yield from unknown(one, schema["items"], path)
    elif isinstance(value, dict) and "properties" in schema:
        for name, each in value.items():
            if name in schema["properties"]:
                yield from unknown(each, schema["properties"][name], f"{path}.{name}")
            else:
                yield f"{path}.{name}"


@pytest.mark.slow
@pytest.mark.usefixtures("kubernetes")
def test_the_operator_would_take_its_application() -> None:
    """By its own definition of a SparkApplication; a misspelt field is noticed."""
    jsonschema: Any = importlib.import_module("jsonschema")  # comes with kubernetes-validate
    name, version, digest = OPERATOR
    found = json.loads(run("go", "mod", "download", "-json", f"{name}@{version}"))
    assert found["Sum"] == digest
    file = "config/crd/bases/sparkoperator.k8s.io_sparkapplications.yaml"
    (of_version,) = load(Path(found["Dir"], file))["spec"]["versions"]
    schema = of_version["schema"]["openAPIV3Schema"]["properties"]["spec"]
    application = json.loads(json.dumps(APPLICATION))["spec"]  # without YAML's references
    jsonschema.validate(application, schema)
    assert not [*unknown(application, schema, "spec")]
    application["driver"]["memmory"] = "1g"
    assert [*unknown(application, schema, "spec")] == ["spec.driver.memmory"]
