"""The chart without helm against helm itself: the same objects, the same text, the same refusals."""

from __future__ import annotations

import json
import subprocess
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead import errors
from fairlead.cli.admin import manifests
from fairlead.wire.chart import files as chart
from fairlead.wire.gotemplate import render
from fairlead_cdi import yamlfile
from tests.unit.wire.chart import templatecases
from tools.cluster import build

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60)]

Helm = Callable[..., subprocess.CompletedProcess[str]]

_VALUES: dict[str, dict[str, Any]] = {
    "defaults": {},
    "simulated": {"silicon": {"simulate": "h100x8"}, "trace": {"readBack": True}},
    "everything": {
        "namespace": {"create": True, "podSecurity": "privileged"},
        "podMonitor": {"enabled": True, "labels": {"release": "prometheus"}},
        "runtimeClass": {"create": True, "nodeSelector": {"a": "b"}},
        "priorityClasses": {"batch": {"value": -100, "preemptionPolicy": "Never"}, "urgent": {"value": 1000000000}},
        "image": {"repository": "host:5000/fairlead", "digest": "sha256:" + "0" * 64},
        "imagePullSecrets": [{"name": "pull"}],
    },
    "nothing": {
        "agent": {"enabled": False},
        "scheduler": {"enabled": False},
        "controller": {"enabled": False},
        "rbac": {"create": False},
        "admission": {name: {"enabled": False} for name in ("deviceAccess", "hostNamespaces", "visibleDevices")},
    },
    "articles' nodes": {
        "agent": {
            "nodeSelector": {"accelerator": "nvidia", "kubernetes.io/os": None},
            "tolerations": [{"operator": "Exists"}],
            "affinity": {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [
                {"matchExpressions": [{"key": "gpu-memory", "operator": "Gt", "values": ["32000"]}]}
            ]}}},
            "env": [{"name": "FAIRLEAD_SILICON_RESCAN_S", "value": "1e1"}],
            "podLabels": {"version": "1.10"},
            "podAnnotations": {"note": "yes: # no", "empty": "", "on": "off"},
            "privileged": False,
            "runtimeClassName": "nvidia",
        },
        "scheduler": {"affinity": {"nodeAffinity": {}}, "replicas": 0, "tolerations": [{"operator": "Exists"}]},
        "controller": {"podDisruptionBudget": False},
        "admission": {"tenants": {"matchExpressions": None, "matchLabels": {"tenant": "true"}}},
        "fullnameOverride": "gpus",
        "monitor": {"host": "[::]", "port": 80},
    },
}  # fmt: skip


@pytest.fixture(scope="module")
def helm() -> Helm:
    module = next(one for one in build.SHARED if one.name == "helm")
    program = build.folder_of(module) / "helm"
    assert program.exists(), "run tests/cluster/setup.sh first"

    def run(*arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run((str(program), *arguments), capture_output=True, text=True, check=False, timeout=50)

    return run


def _keyed(objects: list[dict[str, Any]] | tuple[dict[str, Any], ...]) -> dict[tuple[str, str, str], dict[str, Any]]:
    keyed = {(item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]): item for item in objects}
    assert len(keyed) == len(objects)
    return keyed


@pytest.mark.parametrize("name", _VALUES)
def test_the_objects_are_those_of_helm(helm: Helm, tmp_path: Path, name: str) -> None:
    (tmp_path / "values.yaml").write_text(yaml.safe_dump(_VALUES[name]))
    done = helm(
        *("template", "gpus-1", str(manifests.FOLDER), "-n", "here", "--include-crds"),
        *("-f", str(tmp_path / "values.yaml"), "--set", "log.level=debug"),
    )
    assert done.returncode == 0, done.stderr

    given = chart.parse_values((tmp_path / "values.yaml").read_bytes(), name="values"), {"log": {"level": "debug"}}
    ours = chart.render(chart.load(manifests.FOLDER), given, name="gpus-1", namespace="here", hooks=True)

    assert _keyed(ours) == _keyed(chart.parse_objects(done.stdout))


@pytest.mark.parametrize("values", [[], ["--set", "silicon.simulate=h100x8"], ["--set", "scheduler.enabled=false"]])
def test_helm_finds_nothing_to_complain_of(helm: Helm, values: list[str]) -> None:
    done = helm("lint", "--strict", str(manifests.FOLDER), *values)
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout


@pytest.mark.parametrize(
    "setting", ["agnet.enabled=false", "agent.enabled=perhaps", "monitor.port=0", "log.level=loud", "image.tag=a b"]
)
def test_helm_refuses_what_we_refuse(helm: Helm, setting: str) -> None:
    done = helm("template", str(manifests.FOLDER), "--set", setting)
    assert done.returncode != 0
    key = setting.partition("=")[0]
    assert key.rpartition(".")[2] in done.stderr or key.partition(".")[0] in done.stderr
    with pytest.raises(errors.Invalid):
        chart.render(chart.load(manifests.FOLDER), [chart.parse_setting(setting)], name="a", namespace="b")


def _write_chart(folder: Path, values: dict[str, Any], files: dict[str, str]) -> None:
    (folder / "templates").mkdir()
    (folder / "Chart.yaml").write_text("apiVersion: v2\nname: cases\nversion: 1.0.0\n")
    (folder / "values.yaml").write_text(yamlfile.dump(values))
    for name, text in files.items():
        (folder / "templates" / name).write_text(text)


def test_every_case_of_the_known_subset_is_written_as_helm_writes_it(helm: Helm, tmp_path: Path) -> None:
    definitions = "\n".join(
        f'{{{{ define "case{number}" }}}}{text}{{{{ end }}}}' for number, (text, _) in enumerate(templatecases.CASES)
    )
    lines = "\n".join(
        f'  case{number}: {{{{ include "case{number}" .Values | toJson }}}}'
        for number in range(len(templatecases.CASES))
    )
    text = f"apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: cases\ndata:\n{lines}\n"
    _write_chart(tmp_path, templatecases.VALUES, {"_cases.tpl": definitions, "cases.yaml": text})
    done = helm("template", str(tmp_path))
    assert done.returncode == 0, done.stderr

    root = {"Values": templatecases.VALUES}
    ours = render.Templates({"_cases.tpl": definitions, "cases.yaml": text}).render("cases.yaml", root)

    theirs = yaml.safe_load(done.stdout)["data"]
    assert theirs == yaml.safe_load(ours)["data"]
    assert list(theirs.values()) == [written for _, written in templatecases.CASES]


def test_every_setting_makes_the_values_that_helm_makes_of_it(helm: Helm, tmp_path: Path) -> None:
    text = "apiVersion: v1\nkind: ConfigMap\nmetadata:\n  name: cases\ndata:\n  values: {{ toJson .Values | quote }}\n"
    _write_chart(tmp_path, {}, {"cases.yaml": text})
    for setting, values in templatecases.SETTINGS:
        done = helm("template", str(tmp_path), "--set", setting)
        assert done.returncode == 0, (setting, done.stderr)
        theirs = json.loads(yaml.safe_load(done.stdout)["data"]["values"])
        assert theirs == chart.merge({}, values), setting
