"""Generated parts of the chart; `make docs` writes them.

In values.schema.json these are `$defs` and the schema of `config`, which is the proxy's own, so
that Helm refuses what the proxy would refuse; the rest of it is edited there. Rules, dashboards and
policies are copies: Helm reads nothing outside of the chart.
"""

import json
from pathlib import Path

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


def chart() -> dict[Path, str]:
    """Return the chart's files that have generated parts."""
    config = json_schema()
    del config["$schema"]
    file = CHART / "values.schema.json"
    schema = json.loads(file.read_text())
    schema["$defs"] = config.pop("$defs")
    schema["else"]["properties"]["config"] = config
    copies = {CHART / "files" / Path(copy).name: (DEPLOY / copy).read_text() for copy in COPIES}
    return {file: json.dumps(schema, indent=1) + "\n"} | copies
