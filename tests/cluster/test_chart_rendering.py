"""What is shipped beside the chart, held against the real helm and kubectl; no cluster is needed."""

from __future__ import annotations

import subprocess
from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.cli.admin import manifests
from tests.unit.cli.conftest import fairlead
from tools import render_chart
from tools.cluster import build

pytestmark = [pytest.mark.cluster, pytest.mark.timeout(60)]


def helm(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = (str(render_chart.helm()), *arguments)
    return subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)


def _keyed(text: str) -> dict[tuple[str, str, str], dict[str, Any]]:
    objects = manifests.parse(text)
    keyed = {(item["kind"], item["metadata"].get("namespace", ""), item["metadata"]["name"]): item for item in objects}
    assert len(keyed) == len(objects) > 10
    return keyed


def test_what_is_shipped_is_what_helm_renders_now() -> None:
    assert render_chart.committed() == render_chart.files()


_CHOICES: list[tuple[tuple[str, ...], tuple[str, ...]]] = [
    ((), ()),
    (("--image", "host:5000/team/fairlead:2"), ("image.repository=host:5000/team/fairlead", "image.tag=2")),
    (
        ("--simulate", "h200x8", "--image", f"a/b@sha256:{'0' * 64}"),
        ("silicon.simulate=h200x8", "image.repository=a/b", f"image.digest=sha256:{'0' * 64}"),
    ),
]


@pytest.mark.parametrize(("options", "values"), _CHOICES)
def test_an_option_of_the_verb_does_what_the_value_does(options: tuple[str, ...], values: tuple[str, ...]) -> None:
    ours = fairlead("manifests", "-n", "elsewhere", *options)
    assert ours.exit_code == 0, ours.output
    words = [
        word
        for value in ("namespace.create=true", *values)
        for word in ("--set-string" if "tag" in value else "--set", value)
    ]
    theirs = render_chart.template("--no-hooks", *words, namespace="elsewhere")
    assert _keyed(ours.stdout) == _keyed(theirs)


# kustomize moves the accounts, and not what names them inside a policy: docs/how-to/kubernetes.md has this patch
_POLICY = {"kind": "ValidatingAdmissionPolicy", "name": "fairlead-reserved-names"}
_PARTS = ("agent", "scheduler", "controller")
_NAMES = ", ".join(f"'system:serviceaccount:elsewhere:fairlead-{name}'" for name in _PARTS)
_ACCOUNTS = [
    {
        "op": "replace",
        "path": "/spec/matchConditions/0/expression",
        "value": f"!(request.userInfo.username in [{_NAMES}])",
    }
]


@pytest.mark.parametrize("folder", ["hardware", "simulated"])
def test_kustomize_makes_the_same_of_a_folder_and_moves_it(tmp_path: Path, folder: str) -> None:
    assert fairlead("manifests", "--write", str(tmp_path / "out")).exit_code == 0
    (tmp_path / "own").mkdir()
    own = {
        "resources": [f"../out/kustomize/{folder}"],
        "namespace": "elsewhere",
        "images": [{"name": "fairlead/fairlead", "newName": "host:5000/team/fairlead", "newTag": "2"}],
        "patches": [{"target": _POLICY, "patch": yaml.safe_dump(_ACCOUNTS)}],
    }
    (tmp_path / "own" / "kustomization.yaml").write_text(yaml.safe_dump(own))
    kubectl = build.folder_of(build.modules(build.DEFAULT_VERSION)[0]) / "kubectl"
    command = (str(kubectl), "kustomize", str(tmp_path / "own"))
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=50)
    assert done.returncode == 0, done.stderr

    options = ("--simulate", "h100x8") if folder == "simulated" else ()
    ours = fairlead("manifests", "-n", "elsewhere", "--image", "host:5000/team/fairlead:2", *options)
    # kustomize takes kinds that it does not know for namespaced; the API server leaves that out (test_helm.py)
    moved = manifests.parse(done.stdout)
    for item in moved:
        if item["kind"].startswith("ValidatingAdmissionPolicy"):
            assert item["metadata"].pop("namespace") == "elsewhere"
    assert _keyed(manifests.emit(moved)) == _keyed(ours.stdout)


_MONITORING = "podMonitor.enabled=true,serviceMonitor.enabled=true,prometheusRule.enabled=true"


@pytest.mark.parametrize("values", ["", "silicon.simulate=h100x8", "scheduler.enabled=false", _MONITORING])
def test_helm_finds_nothing_to_complain_of(values: str) -> None:
    done = helm("lint", "--strict", str(manifests.CHART), *(("--set", values) if values else ()))
    assert done.returncode == 0, done.stdout + done.stderr
    assert "WARNING" not in done.stdout


@pytest.mark.parametrize(
    ("setting", "named"),
    [
        ("agnet.enabled=false", "agnet"),
        ("agent.enabled=perhaps", "enabled"),
        ("monitor.port=0", "port"),
        ("monitor.host=localhost", "host"),
        ("log.level=loud", "level"),
        ("image.tag=a b", "tag"),
        ("image.repository=a:b", "repository"),
        ("resource=gpu'", "resource"),
        ("migStrategy=all", "migStrategy"),
        ("config.fallbackStrategies={newest}", "fallbackStrategies"),
        ("deviceListStrategy=cdi", "deviceListStrategy"),
        ("deviceIDStrategy=name", "deviceIDStrategy"),
        ("silicon.simulate=8", "simulate"),
    ],
)
def test_helm_refuses_a_value_that_breaks_the_schema_and_names_it(setting: str, named: str) -> None:
    done = helm("template", str(manifests.CHART), "--set", setting)
    assert done.returncode != 0
    assert named in done.stderr


_VERIFIER = (
    "agent.verifier.folder=/opt/fairlead/verifier",
    f"agent.verifier.image=/opt/fairlead/verifier/image@sha256:{'0' * 64}",
    "agent.verifier.emulator=/opt/fairlead/verifier/qemu",
    "agent.resources.limits.memory=20Gi",
)


def test_the_verifiers_folder_is_mounted_where_the_agent_looks_for_image_and_emulator() -> None:
    done = helm("template", str(manifests.CHART), *(word for one in _VERIFIER for word in ("--set", one)))
    assert done.returncode == 0, done.stderr
    found = [item for item in manifests.parse(done.stdout) if item["kind"] == "DaemonSet"]
    (pod,) = [item["spec"]["template"]["spec"] for item in found]
    container = pod["containers"][0]
    env = {one["name"]: one.get("value") for one in container["env"]}
    assert env["FAIRLEAD_LEASE_VERIFIER_EMULATOR"] == "/opt/fairlead/verifier/qemu"
    assert str(env["FAIRLEAD_LEASE_VERIFIER_IMAGE"]).startswith("/opt/fairlead/verifier/image@sha256:0")
    assert env["FAIRLEAD_LEASE_VERIFIER_MEMORY_MIB"] == "16384"
    (mount,) = [one for one in container["volumeMounts"] if one["name"] == "verifier"]
    assert mount == {"name": "verifier", "mountPath": "/opt/fairlead/verifier", "readOnly": True}
    (volume,) = [one for one in pod["volumes"] if one["name"] == "verifier"]
    assert volume["hostPath"] == {"path": "/opt/fairlead/verifier", "type": "Directory"}


@pytest.mark.parametrize(
    ("changes", "named"),
    [
        (("agent.verifier.folder=",), "agent.verifier.folder is empty"),
        (("agent.verifier.image=",), "agent.verifier.image is empty"),
        (("agent.verifier.emulator=/usr/bin/qemu-system-x86_64",), "is not in agent.verifier.folder"),
        (("agent.verifier.firmware=/usr/share/OVMF.fd",), "is not in agent.verifier.folder"),
        (("agent.verifier.folder=/opt/fairlead",), ""),
        (("agent.verifier.folder=/opt/fair",), "is not in agent.verifier.folder"),
        (("agent.verifier.folder=relative",), "folder"),
        (("agent.verifier.image=/opt/fairlead/verifier/image",), "image"),
        (("agent.privileged=false",), "agent.privileged=true"),
        (("silicon.simulate=h100x8",), "real silicon"),
        (("agent.resources.limits.memory=256Mi",), "256Mi"),
        (("agent.settings.lease\\.verifier_processors=2",), "both given"),
    ],
)
def test_a_verifiers_value_without_effect_is_refused_by_name(changes: tuple[str, ...], named: str) -> None:
    words = [word for one in (*_VERIFIER, *changes) for word in ("--set", one)]
    done = helm("template", str(manifests.CHART), *words)
    assert (done.returncode == 0) is (not named), done.stderr
    assert named in done.stderr
