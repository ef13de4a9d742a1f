"""Generated files of the chart; `make docs` writes them.

The schema of `config` in values.schema.json is the proxy's own, so that Helm refuses what the proxy
would refuse. Rules, dashboards and policies are copies: Helm reads nothing outside of the chart.
"""

import json
from pathlib import Path
from typing import Any

from proxy.config import json_schema

DEPLOY = Path(__file__).parent.parent
CHART = DEPLOY / "helm" / "kafka-reauth-proxy"
COPIES = (
    "grafana/migration.json",
    "grafana/operation.json",
    "prometheus/alerts.rules.yaml",
    "prometheus/recording.rules.yaml",
    "kustomize/injection/definition.yaml",
    "kustomize/injection/mutating.yaml",
    "kustomize/injection/template.yaml",
    "kustomize/injection/validating.yaml",
)
NAME = {"type": "string", "pattern": "^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", "maxLength": 40}
TEXT = {"type": "string"}
SOME_TEXT = {"type": "string", "minLength": 1}
FLAG = {"type": "boolean"}
ANYTHING = {"type": "object"}
"""Value with a schema of Kubernetes, which the API server checks."""
SELECTED = ["app", "reauth-proxy", "reauth-report"]
"""Labels by which the chart's own selectors find pods."""
RULES = {"type": "array", "items": ANYTHING}
DIGEST = {"type": "string", "pattern": "^(sha256:[0-9a-f]{64})?$"}
IMAGE: dict[str, Any] = {"repository": SOME_TEXT, "tag": TEXT, "digest": DIGEST}
DURATION = {"type": "string", "pattern": "^[0-9]+(ms|s|m|h)$"}
COUNT = {"type": "integer", "minimum": 0}
POSITIVE = {"type": "integer", "minimum": 1}
PULL_POLICY = {"enum": ["Always", "IfNotPresent", "Never"]}
ABSOLUTE = {"type": "string", "pattern": "^/"}


def section(required: tuple[str, ...] = (), **properties: Any) -> dict[str, Any]:
    """Describe an object that has these keys and no others."""
    return {
        "type": "object",
        "additionalProperties": False,
        "properties": properties,
        "required": list(required),
    }


SECRETS = {
    "type": "array",
    "items": section(
        ("name", "secretName", "mountPath", "keys"),
        name=NAME,
        secretName=SOME_TEXT,
        mountPath=ABSOLUTE,
        keys={"type": "array", "items": SOME_TEXT, "minItems": 1},
    ),
}


def schema() -> dict[str, Any]:
    """Return the schema of the chart's values."""
    config = json_schema()
    definitions = config.pop("$defs")
    config.pop("$schema")
    values = section(
        ("name", "config"),
        name=NAME,
        config=ANYTHING,  # below, as it depends on the mode
        workload=section(
            kind={"enum": ["", "StatefulSet", "Deployment"]},
            name=TEXT,
            spec=ANYTHING,
            included=FLAG,
        ),
        liveConfig=FLAG,
        mode={"enum": ["sidecar", "gateway", "report"]},
        replicas=POSITIVE,
        service=section(
            type={"enum": ["ClusterIP", "LoadBalancer", "NodePort"]},
            annotations=ANYTHING,
            externalTrafficPolicy={"enum": ["", "Cluster", "Local"]},
            loadBalancerClass=TEXT,
            loadBalancerSourceRanges={"type": "array", "items": SOME_TEXT},
            brokers={"type": "array", "items": COUNT, "minItems": 1},
            tlsRoute=section(parentRefs=RULES),
        ),
        serviceAccountName=TEXT,
        affinity=ANYTHING,
        topologySpreadConstraints=RULES,
        podAnnotations=ANYTHING,
        podLabels={"type": "object", "properties": dict.fromkeys(SELECTED, False)},
        nodeSelector=ANYTHING,
        tolerations=RULES,
        priorityClassName=TEXT,
        image=section(**IMAGE, pullPolicy=PULL_POLICY),
        resources=ANYTHING,
        terminationGracePeriodSeconds=POSITIVE,
        preStopSeconds=POSITIVE,
        secrets=SECRETS,
        tokens={
            "type": "array",
            "items": section(
                ("name", "audience", "mountPath"),
                name=NAME,
                audience=SOME_TEXT,
                mountPath=ABSOLUTE,
                expirationSeconds={"type": "integer", "minimum": 600},  # the API server's own
            ),
        },
        env=RULES,
        imagePullSecrets=RULES,
        volumes=RULES,
        volumeMounts=RULES,
        state=ANYTHING,
        events=ANYTHING,
        redirect=section(
            enabled=FLAG,
            image=section(**IMAGE),
            brokerPorts={"type": "array", "items": {"type": "integer"}, "minItems": 1},
        ),
        networkPolicy=section(
            enabled=FLAG, monitoringNamespace=SOME_TEXT, clients=RULES, ingress=RULES, egress=RULES
        ),
        podDisruptionBudget=section(enabled=FLAG, maxUnavailable={"type": ["integer", "string"]}),
        podMonitor=section(enabled=FLAG, labels=ANYTHING, interval=DURATION),
        prometheusRule=section(enabled=FLAG, labels=ANYTHING, runbooks=TEXT),
        dashboards=section(enabled=FLAG, labels=ANYTHING),
        injection=section(enabled=FLAG),
        report=report(),
    )
    # Helm adds this for a chart that is a dependency.
    values["properties"]["global"] = ANYTHING
    return {
        "$schema": "https://json-schema.org/draft/2020-12/schema",
        "$defs": definitions,
        **values,
        "if": {"properties": {"mode": {"const": "report"}}},
        "else": {"properties": {"config": config}},
    }


def report() -> dict[str, Any]:
    """Return the schema of the report's values."""
    return section(
        enabled=FLAG,
        schedule={"type": "string", "pattern": r"^(@[a-z]+|\S+( +\S+){4})$"},
        timeZone=TEXT,
        suspend=FLAG,
        events=TEXT,
        commandConfig=TEXT,
        bootstrapServers=TEXT,
        state=TEXT,
        out=SOME_TEXT,
        history=TEXT,
        historyDays=POSITIVE,
        options={"type": "array", "items": {"type": "string", "pattern": "^--"}},
        image=section(**IMAGE, pullPolicy=PULL_POLICY),
        resources=ANYTHING,
        scratchSize=SOME_TEXT,
        activeDeadlineSeconds=POSITIVE,
        successfulJobsHistoryLimit=COUNT,
        failedJobsHistoryLimit=COUNT,
        volume=ANYTHING,
        claim=section(
            size=SOME_TEXT,
            storageClassName=TEXT,
            # The run writes, and the page reads all the while.
            accessModes={
                "type": "array",
                "items": {"enum": ["ReadWriteOnce", "ReadWriteMany"]},
                "minItems": 1,
            },
        ),
        serviceAccount=section(annotations=ANYTHING),
        env=RULES,
        secrets=SECRETS,
        volumes=RULES,
        volumeMounts=RULES,
        networkPolicy=section(ingress=RULES, egress=RULES),
        serve=section(enabled=FLAG, resources=ANYTHING),
    )


def chart() -> dict[Path, str]:
    """Return the chart's generated files."""
    files = {CHART / "values.schema.json": json.dumps(schema(), indent=1) + "\n"}
    copies = {CHART / "files" / Path(copy).name: (DEPLOY / copy).read_text() for copy in COPIES}
    return files | copies
