"""The chart as the real helm renders it, for tests that need no cluster."""

from __future__ import annotations

import tempfile
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import yaml

from fairlead.cli.admin import manifests
from tools import render_chart


def render(
    *given: Mapping[str, Any], name: str = "fairlead", namespace: str = "gpus", hooks: bool = False
) -> tuple[dict[str, Any], ...]:
    """Return the chart's objects with these values, later ones over earlier ones."""
    with tempfile.TemporaryDirectory() as folder:
        words = [] if hooks else ["--no-hooks"]
        for place, values in enumerate(given):
            path = Path(folder) / f"{place}.yaml"
            path.write_text(yaml.safe_dump(dict(values)))
            words += ["-f", str(path)]
        return tuple(manifests.parse(render_chart.template(*words, name=name, namespace=namespace)))


def one(found: tuple[dict[str, Any], ...], kind: str, name: str = "") -> dict[str, Any]:
    """Return the one object of a kind whose name ends so."""
    (item,) = (item for item in found if item["kind"] == kind and item["metadata"]["name"].endswith(name))
    return item


def pod(found: tuple[dict[str, Any], ...], kind: str, name: str) -> dict[str, Any]:
    """Return the pod's spec of a workload."""
    spec: dict[str, Any] = one(found, kind, name)["spec"]["template"]["spec"]
    return spec
