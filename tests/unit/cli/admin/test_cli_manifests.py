"""`fairlead manifests` as a person and a pipe see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import yaml

from fairlead.cli.admin import manifests
from tests.unit.cli.conftest import fairlead


def objects(*argv: str) -> list[dict[str, Any]]:
    done = fairlead("manifests", *argv)
    assert done.exit_code == 0, done.output
    return manifests.parse(done.stdout)


def kinds(found: list[dict[str, Any]]) -> set[str]:
    return {item["kind"] for item in found}


def containers(found: list[dict[str, Any]]) -> list[dict[str, Any]]:
    workloads = [item for item in found if item["kind"] in {"DaemonSet", "Deployment"}]
    return [one for item in workloads for one in item["spec"]["template"]["spec"]["containers"]]


def test_without_any_option_it_prints_what_is_shipped() -> None:
    found = objects()
    assert tuple(found) == manifests.load("hardware")
    assert {"Namespace", "CustomResourceDefinition", "DaemonSet", "Deployment"} <= kinds(found)


def test_namespace_and_kinds_can_be_left_out_and_a_namespace_chosen() -> None:
    found = objects("-n", "gpus", "--no-crds", "--no-create-namespace")
    assert not kinds(found) & {"Namespace", "CustomResourceDefinition"}
    assert {item["metadata"].get("namespace") for item in found} == {None, "gpus"}
    subjects = [one for item in found for one in item.get("subjects", ())]
    assert {one["namespace"] for one in subjects} == {"gpus"}
    assert [item["metadata"]["name"] for item in objects("-n", "gpus") if item["kind"] == "Namespace"] == ["gpus"]


def test_an_image_is_put_into_every_container() -> None:
    digest = f"host:5000/team/fairlead:1@sha256:{'0' * 64}"
    assert {one["image"] for one in containers(objects("--image", digest))} == {digest}
    assert len(containers(objects())) == 3


def test_simulated_silicon_has_its_own_agent_with_the_profile_chosen() -> None:
    (agent,) = (one for one in containers(objects("--simulate", "h200x8")) if one["name"] == "agent")
    assert {"name": "FAIRLEAD_SILICON_SIMULATE", "value": "h200x8"} in agent["env"]
    assert "privileged" not in agent["securityContext"]


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("-n", "Not A Name"), 'namespace name "Not A Name"'),
        (("--image", "--privileged"), '"--privileged" is not the name of an image'),
        (("--image", "a b"), '"a b" is not the name of an image'),
        (("--image", "a:b\nimage: c"), "is not the name of an image"),
        (("--simulate", "h1000x8"), 'there is no profile "h1000x8"'),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_prints_no_manifest(argv: tuple[str, ...], said: str) -> None:
    done = fairlead("manifests", *argv)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stdout == ""


def test_a_value_of_the_chart_is_answered_with_helms_command() -> None:
    done = fairlead(
        "manifests", "-n", "gpus", "--set", "scheduler.replicas=1", "-f", "my values.yaml", "--name", "mine"
    )
    assert done.exit_code == 2
    assert done.stdout == ""
    assert "--set scheduler.replicas=1" in done.stderr
    command = " ".join(done.stderr.split())
    assert f"helm template mine {manifests.CHART} -n gpus --include-crds --no-hooks" in command
    assert "--set scheduler.replicas=1 --values 'my values.yaml' | kubectl apply -f -" in command


def test_chart_and_kustomizes_folders_can_be_taken_along(tmp_path: Path) -> None:
    done = fairlead("manifests", "--write", str(tmp_path / "new"))
    assert (done.exit_code, done.stdout) == (0, "")
    assert (tmp_path / "new/chart/values.yaml").read_bytes() == (manifests.CHART / "values.yaml").read_bytes()
    for folder in ("hardware", "simulated"):
        kustomization = yaml.safe_load((tmp_path / "new/kustomize" / folder / "kustomization.yaml").read_text())
        for resource in kustomization["resources"]:
            assert (tmp_path / "new/kustomize" / folder / resource).exists()
    again = fairlead("manifests", "--write", str(tmp_path / "new"))
    assert again.exit_code == 2
    assert "is there already" in again.stderr


def test_a_package_without_its_manifests_says_so(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(manifests, "FOLDER", tmp_path)
    done = fairlead("manifests")
    assert done.exit_code == 6
    assert f"cannot read the manifests in {tmp_path}" in done.stderr
