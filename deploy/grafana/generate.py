"""Grafana dashboards; `make docs` writes them beside this file.

panels.py declares the panels; all other content is the same for all of them.
"""

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from deploy.grafana.panels import ANNOTATIONS, MIGRATION, OPERATION, Annotation, Panel, Row

HERE = Path(__file__).parent
_WIDTH = 24
"""Columns of Grafana's grid."""
_DATASOURCE = {"type": "prometheus", "uid": "${datasource}"}
_REFRESH = "30s"
_ANNOTATION_STEP = "60s"
"""Resolution of annotations: less than the range of their queries, so that none is missed."""

DASHBOARDS = {"migration": MIGRATION, "operation": OPERATION}


def promql(query: str) -> str:
    """Fill in the prefix and the selections."""
    instances = 'job=~"$job", instance=~"$instance"'
    return (
        query.replace("P_", "kafka_reauth_proxy_")
        .replace("%", f'{instances}, listener=~"$listener"')
        .replace("@", instances)
    )


def dashboard(name: str) -> dict[str, Any]:
    """Return a dashboard as Grafana imports it."""
    return {
        "uid": f"reauth-proxy-{name}",
        "title": f"Kafka re-authentication proxy: {name.capitalize()}",
        "tags": ["kafka", "reauth-proxy"],
        "schemaVersion": 39,
        "refresh": _REFRESH,
        "time": {"from": "now-6h", "to": "now"},
        "templating": {"list": _variables()},
        "annotations": {"list": [_annotation(one) for one in ANNOTATIONS]},
        "panels": _laid_out(DASHBOARDS[name]),
    }


def _variables() -> list[dict[str, Any]]:
    def labels(label: str, of: str, title: str) -> dict[str, Any]:
        return {
            "name": label,
            "label": title,
            "type": "query",
            "datasource": _DATASOURCE,
            "query": f"label_values(kafka_reauth_proxy_{of}, {label})",
            "refresh": 2,
            "multi": True,
            "includeAll": True,
            "allValue": ".*",
            "current": {"text": ["All"], "value": ["$__all"]},
        }

    return [
        {"name": "datasource", "label": "Prometheus", "type": "datasource", "query": "prometheus"},
        labels("job", "build_info", "Job"),
        labels("instance", 'build_info{job=~"$job"}', "Proxy"),
        labels("listener", 'connections{job=~"$job"}', "Listener"),
    ]


def _annotation(annotation: Annotation) -> dict[str, Any]:
    return {
        "name": annotation.name,
        "datasource": _DATASOURCE,
        "enable": True,
        "expr": promql(annotation.query),
        "titleFormat": annotation.name,
        "textFormat": annotation.says,
        "iconColor": annotation.colour,
        "step": _ANNOTATION_STEP,
    }


def _laid_out(panels: Sequence[Panel | Row]) -> list[dict[str, Any]]:
    laid_out = []
    x = y = row_height = 0
    for number, panel in enumerate(panels, 1):
        if isinstance(panel, Row):
            y += row_height
            laid_out.append(_row(number, panel, y))
            x, y, row_height = 0, y + 1, 0
            continue
        height = 4 if panel.kind == "stat" else 8
        if x + panel.width > _WIDTH:
            x, y = 0, y + row_height
        laid_out.append(_panel(number, panel, {"x": x, "y": y, "w": panel.width, "h": height}))
        x, row_height = x + panel.width, height
    return laid_out


def _row(number: int, row: Row, y: int) -> dict[str, Any]:
    return {
        "id": number,
        "type": "row",
        "title": row.title,
        "collapsed": False,
        "gridPos": {"x": 0, "y": y, "w": _WIDTH, "h": 1},
        "panels": [],
    }


def _panel(number: int, panel: Panel, place: dict[str, int]) -> dict[str, Any]:
    return {
        "id": number,
        "type": panel.kind,
        "title": panel.title,
        "description": panel.says,
        "gridPos": place,
        "datasource": _DATASOURCE,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0}, "overrides": []},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": _DATASOURCE,
                "expr": promql(query),
                "legendFormat": legend,
                "instant": panel.kind != "timeseries",
                "range": panel.kind == "timeseries",
            }
            for index, (legend, query) in enumerate(panel.queries)
        ],
    }


def dashboards() -> dict[Path, str]:
    """Return the dashboards as files."""
    return {
        HERE / f"{name}.json": json.dumps(dashboard(name), indent=1) + "\n" for name in DASHBOARDS
    }
