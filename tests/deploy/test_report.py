"""The manifests of a fleet's report: valid, the same from both tools, and no contradictions."""

import copy
import http.client
import importlib
import re
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
import yaml
from typer.testing import CliRunner

from proxy.cli import app
from tests.support import deploy
from tests.support.deploy import (
    CHART,
    DEPLOY,
    NO_PRIVILEGE,
    Document,
    newest,
    normal,
    operator_schema,
)
from tests.support.report import put_report, served_by_nginx
from tests.support.tables import table

NGINX = DEPLOY / "report" / "nginx.conf"

VALUES: Document = {
    "name": "reauth-proxy",
    "mode": "report",
    "report": {
        "events": "kafka:session-events",
        "commandConfig": "/etc/reauth-report/report.properties",
        "secrets": [
            {
                "name": "client",
                "secretName": "reauth-report",
                "mountPath": "/etc/reauth-report",
                "keys": ["report.properties"],
            }
        ],
    },
}
"""The overlay's settings, as the chart's values."""
BUCKET = {"out": "s3a://fleet/report", "state": "", "serve": {"enabled": False}}
"""Nothing on a volume."""


def changed(report: Document, **others: Any) -> Document:
    """The values, with some of the report's values and others replaced."""
    made = copy.deepcopy(VALUES) | others
    made["report"] |= report
    return made


def helm(values: Document = VALUES) -> list[Document]:
    """What `helm install` would send."""
    return deploy.of_text(deploy.templated(values))


def kustomized() -> list[Document]:
    """What `kubectl apply -k` would send."""
    return deploy.kustomized("report")


@pytest.fixture
def documents() -> list[Document]:
    """What kustomize makes; the chart makes the same, by `test_both_tools_make_the_same`."""
    return kustomized()


def job_pod(documents: list[Document]) -> Document:
    """The pod of a run."""
    job = deploy.of_kind(documents, "CronJob")["spec"]["jobTemplate"]["spec"]
    pod: Document = job["template"]["spec"]
    return pod


def arguments(documents: list[Document]) -> list[str]:
    """The arguments of a run."""
    (container,) = job_pod(documents)["containers"]
    found: list[str] = container["args"]
    return found


def test_the_api_server_would_take_them(kubernetes: ModuleType, documents: list[Document]) -> None:
    for version in newest(kubernetes):
        for document in documents:
            if document["kind"] != "PodMonitor":
                kubernetes.validate(document, version, strict=True)
    jsonschema: Any = importlib.import_module("jsonschema")  # comes with kubernetes-validate
    jsonschema.validate(deploy.of_kind(documents, "PodMonitor"), operator_schema("podmonitors"))


def test_both_tools_make_the_same() -> None:
    kinds = {document["kind"] for document in kustomized()}
    assert normal(helm(), kinds) == normal(kustomized(), kinds)
    assert len(kinds) == len(kustomized()) == len(helm())


def test_lint_has_nothing_to_say(tmp_path: Path) -> None:
    file = tmp_path / "values.yaml"
    file.write_text(yaml.safe_dump(VALUES))
    options = ("--values", file, "--strict", "--kube-version", "1.34.0")
    assert "0 chart(s) failed" in deploy.run("helm", "lint", CHART, *options)


def test_both_pods_pass_restricted_and_have_no_token(documents: list[Document]) -> None:
    for pod in (job_pod(documents), deploy.pod(documents)):
        assert pod["automountServiceAccountToken"] is False
        assert pod["serviceAccountName"] == "reauth-proxy-report"
        assert pod["securityContext"]["fsGroup"] == NO_PRIVILEGE["runAsGroup"]
        for container in (*pod.get("initContainers", ()), *pod["containers"]):
            assert container["securityContext"] == NO_PRIVILEGE
            assert {"requests", "limits"} <= container["resources"].keys()
    account = deploy.of_kind(documents, "ServiceAccount")
    assert account["automountServiceAccountToken"] is False


def test_one_run_at_a_time_ends_before_the_next(documents: list[Document]) -> None:
    """And a requirement that is not met, exit status 1, is not tried again."""
    cron_job = deploy.of_kind(documents, "CronJob")["spec"]
    assert cron_job["concurrencyPolicy"] == "Forbid"
    job = cron_job["jobTemplate"]["spec"]
    assert job["activeDeadlineSeconds"] < 3600
    (rule,) = job["podFailurePolicy"]["rules"]
    assert (rule["action"], rule["onExitCodes"]["values"]) == ("FailJob", [1])
    assert job["template"]["spec"]["restartPolicy"] == "Never"  # else the API server refuses it


def test_the_page_reads_what_the_run_writes(documents: list[Document]) -> None:
    (page,) = deploy.pod(documents)["containers"]
    (out,) = (one for one in arguments(documents) if one.startswith("--out="))
    assert page["args"] == ["page"]
    served = re.findall(r"^ *root (\S+);", NGINX.read_text(), re.MULTILINE)
    assert served == [out.removeprefix("--out=")]
    mount, temporary = page["volumeMounts"]
    assert temporary["mountPath"] == "/tmp"  # noqa: S108
    (run,) = job_pod(documents)["containers"]
    assert mount["readOnly"]
    assert {"name": mount["name"], "mountPath": mount["mountPath"]} in run["volumeMounts"]
    volumes = [
        {one["name"]: one for one in pod["volumes"]}[mount["name"]]
        for pod in (job_pod(documents), deploy.pod(documents))
    ]
    assert volumes[0] == volumes[1]


def test_selectors_find_the_pods(documents: list[Document]) -> None:
    """And none of those of a proxy's does: the report is no proxy."""
    labels = deploy.of_kind(documents, "Deployment")["spec"]["template"]["metadata"]["labels"]
    job = deploy.of_kind(documents, "CronJob")["spec"]["jobTemplate"]["spec"]["template"]
    policy = deploy.of_kind(documents, "NetworkPolicy")["spec"]
    selector = policy["podSelector"]["matchLabels"].items()
    assert selector <= labels.items()
    assert selector <= job["metadata"]["labels"].items()
    for kind in ("Service", "PodMonitor"):
        found = deploy.of_kind(documents, kind)["spec"]["selector"]
        assert found.get("matchLabels", found).items() <= labels.items()
        assert not found.get("matchLabels", found).items() <= job["metadata"]["labels"].items()
    assert "reauth-proxy" not in labels.keys() | job["metadata"]["labels"].keys()
    (rule,) = policy["ingress"]
    assert rule["from"], "the page names people: not everybody may read it"


def test_the_command_knows_all_options() -> None:
    """Those of the run, with everything that the chart can be asked for."""
    values = changed(
        {
            "bootstrapServers": "kafka:9092",
            "history": "/var/lib/reauth-report/history",
            "options": ["--lifetime=2h", "--require=95%"],
        }
    )
    given = arguments(helm(values))
    done = CliRunner().invoke(app, ["report", "--help"], env={"COLUMNS": "200"})
    named = {one.partition("=")[0] for one in given if one.startswith("--")}
    assert given[0] == "report"
    assert named <= {*re.findall(r"--[a-z-]+", done.stdout)}
    assert "--bootstrap-server" in named


def test_a_gateway_reports_on_what_it_delivers_itself() -> None:
    values = deploy.values("gateway")
    values["config"]["events"]["deliver"] = {"to": "kafka:session-events"}
    values["report"] = {"enabled": True, "bootstrapServers": "kafka:9092"}
    documents = helm(values)
    names = {(one["kind"], one["metadata"]["name"]) for one in documents}
    assert {("Deployment", "reauth-proxy"), ("CronJob", "reauth-proxy-report")} <= names
    assert "--events=kafka:session-events" in arguments(documents)


@pytest.mark.parametrize("given", [None, "https://reports.example.com/"])
def test_a_gateway_links_to_the_report_of_its_release(given: str | None) -> None:
    """To its Service, unless people read it elsewhere."""
    values = deploy.values("gateway")
    values["report"] = {"enabled": True, "events": "kafka:a", "bootstrapServers": "kafka:9092"}
    if given is not None:
        values["config"]["http"]["report.url"] = given
    documents = helm(values)
    http = yaml.safe_load(deploy.configuration(documents))["http"]
    service = next(
        one for one in documents if one["kind"] == "Service" and "report" in one["metadata"]["name"]
    )
    (port,) = service["spec"]["ports"]
    url = f"http://{service['metadata']['name']}.default.svc:{port['port']}/"
    assert http["report.url"] == (given or url)
    values["report"]["serve"] = {"enabled": False}
    http = yaml.safe_load(deploy.configuration(helm(values)))["http"]
    assert http.get("report.url") == given


def test_the_report_alone_makes_no_proxy() -> None:
    names = {one["metadata"]["name"] for one in helm()}
    assert names == {"reauth-proxy-report"}
    without = deploy.of_text(deploy.templated(VALUES, operator=False))
    assert not any(one["kind"] == "PodMonitor" for one in without)


def test_a_bucket_needs_no_volume() -> None:
    documents = helm(
        changed(
            BUCKET
            | {
                "events": "s3a://fleet/events",
                "commandConfig": "",
                "secrets": [],
                "serviceAccount": {"annotations": {"eks.amazonaws.com/role-arn": "arn:aws:role"}},
                "env": [{"name": "AWS_REGION", "value": "eu-central-1"}],
            }
        )
    )
    assert not any(one["kind"] == "PersistentVolumeClaim" for one in documents)
    assert not any(one["kind"] == "Deployment" for one in documents)
    assert deploy.of_kind(documents, "ServiceAccount")["metadata"]["annotations"]
    env = job_pod(documents)["containers"][0]["env"]
    assert env == [{"name": "AWS_REGION", "value": "eu-central-1"}]


def test_a_history_is_kept_for_days() -> None:
    given = arguments(helm(changed({"history": "/var/lib/reauth-report/h", "historyDays": 7})))
    assert {"--history=/var/lib/reauth-report/h", "--history-days=7"} <= {*given}
    assert not any(one.startswith("--history") for one in arguments(helm()))


@pytest.mark.parametrize(("report", "others", "words"), table(__file__, "chart_contradictions"))
def test_the_chart_refuses_contradictions(report: Document, others: Document, words: str) -> None:
    assert words in deploy.templated(changed(report, **others), check=False)


def test_a_report_of_another_topic_than_the_proxies_is_refused() -> None:
    values = deploy.values("gateway")
    values["config"]["events"]["deliver"] = {"to": "kafka:mine"}
    values["report"] = {"enabled": True, "events": "kafka:other", "bootstrapServers": "kafka:9092"}
    assert "report.events is kafka:other, and config" in deploy.templated(values, check=False)


def test_a_web_server_serves_the_folder(tmp_path: Path) -> None:
    """As the report's image configures it."""
    put_report(tmp_path / "report")
    (tmp_path / "report" / ".half-1").write_text("of a run that goes on")
    (tmp_path / "secret").write_text("elsewhere")
    (tmp_path / "report" / "link.json").symlink_to(tmp_path / "secret")
    types = {
        "/": "text/html; charset=utf-8",
        "/report.json": "application/json",
        "/report.prom": "text/plain; version=0.0.4; charset=utf-8",
        "/tables/clients/part-00000.parquet": "application/vnd.apache.parquet",
    }
    with served_by_nginx(tmp_path / "report", tmp_path) as address:

        def ask(path: str, method: str = "GET") -> tuple[int, str | None, str | None]:
            connection = http.client.HTTPConnection(address, timeout=60)
            connection.request(method, path)
            answer = connection.getresponse()
            found = answer.getheader("Content-Type"), answer.getheader("Content-Security-Policy")
            connection.close()
            return answer.status, *found

        for path, content_type in types.items():
            status, found, policy = ask(path)
            assert (status, found) == (200, content_type)
            assert policy is not None
            assert "default-src 'none'" in policy
        assert ask("/healthz")[0] == 200
        assert ask("/.half-1")[0] == 404
        assert ask("/tables/")[0] == 403, "folders are not listed"
        assert ask("/link.json")[0] == 403
        assert ask("/", "POST")[0] == 403
