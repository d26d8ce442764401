"""`fairlead manifests` as a person and a pipe see it."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead.wire.chart import files as chart
from tests.unit.cli.conftest import fairlead


def objects(*argv: str, stdin: str | None = None) -> list[dict[str, Any]]:
    done = fairlead("manifests", *argv, stdin=stdin)
    assert done.exit_code == 0, done.output
    return chart.parse_objects(done.stdout)


def kinds(found: list[dict[str, Any]]) -> set[str]:
    return {item["kind"] for item in found}


def image(found: list[dict[str, Any]]) -> str:
    (agent,) = (item for item in found if item["kind"] == "DaemonSet")
    return str(agent["spec"]["template"]["spec"]["containers"][0]["image"])


def test_without_any_option_everything_is_there_namespace_and_kinds_too() -> None:
    found = objects()
    assert {"Namespace", "CustomResourceDefinition", "DaemonSet", "Deployment"} <= kinds(found)
    assert {item["metadata"].get("namespace") for item in found} == {None, "fairlead"}


def test_namespace_and_kinds_can_be_left_out_and_names_chosen() -> None:
    found = objects("-n", "gpus", "--name", "mine", "--no-crds", "--no-create-namespace")
    assert not kinds(found) & {"Namespace", "CustomResourceDefinition"}
    assert "mine-agent" in {item["metadata"]["name"] for item in found}
    assert {item["metadata"].get("namespace") for item in found} == {None, "gpus"}


def test_files_come_before_settings_and_later_ones_win(tmp_path: Path) -> None:
    (tmp_path / "a.yaml").write_text("image: {repository: a, tag: one}\n")
    (tmp_path / "b.yaml").write_text("image: {tag: two}\n")
    files = ("-f", str(tmp_path / "a.yaml"), "-f", str(tmp_path / "b.yaml"))
    assert image(objects(*files)) == "a:two"
    assert image(objects("--set-string", "image.tag=3", *files)) == "a:3"
    assert image(objects("-f", "-", stdin="image: {tag: piped}\n")) == "fairlead/fairlead:piped"


@pytest.mark.parametrize(
    ("argv", "said"),
    [
        (("--set", "agnet.enabled=false"), 'value agnet is not known: did you mean "agent"?'),
        (("--set", "agent.enabled=perhaps"), 'value agent.enabled = "perhaps" is not of type boolean'),
        (("--set", "agent"), '"agent" sets no value'),
        (("-n", "Not A Name"), 'namespace name "Not A Name"'),
        (("--name", "x" * 64), "release name"),
    ],
)
def test_what_cannot_be_is_refused_by_name_and_prints_no_manifest(argv: tuple[str, ...], said: str) -> None:
    done = fairlead("manifests", *argv)
    assert done.exit_code == 2
    assert said in done.stderr
    assert done.stdout == ""
