"""`fairlead agent config`: a configuration is chosen by hand, a wrong one is refused, and the label is named."""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fairlead import errors, settings
from fairlead.cli.process import agentconfig
from fairlead.node.config import source


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    configs = tmp_path / "configs"
    configs.mkdir()
    (configs / "default").write_text("version: v1\n")
    (configs / "shared").write_text(
        "version: v1\nsharing: {timeSlicing: {resources: [{name: nvidia.com/gpu, replicas: 4}]}}\n"
    )
    (configs / "wrong").write_text("version: v7\n")
    return configs


def call(folder: Path, *arguments: str) -> Result:
    state = folder.parent / "state"
    options = (f"--plugin-config-folder={folder}", f"--state-folder={state}")
    return CliRunner().invoke(agentconfig.config, [*arguments, *options], standalone_mode=False)


def in_force(folder: Path) -> str:
    chosen = settings.load(
        flags={"plugin.config_folder": folder, "state.folder": folder.parent / "state"}, env={}, file=None
    )
    return source.read_config(chosen, "").name


def test_a_choice_is_what_an_agent_takes_until_it_is_cleared(folder: Path) -> None:
    assert in_force(folder) == "default"
    assert "shared is chosen" in call(folder, "shared").output
    assert in_force(folder) == "shared"
    assert "shared (chosen by hand)" in call(folder).output.splitlines()
    call(folder, "--clear")
    assert in_force(folder) == "default"


@pytest.mark.parametrize(
    ("name", "kind", "said"),
    [("none", errors.NotFound, "there: default, shared, wrong"), ("wrong", errors.Invalid, "version")],
)
def test_what_no_agent_would_take_is_not_chosen(folder: Path, name: str, kind: type[Exception], said: str) -> None:
    refused = call(folder, name)
    assert isinstance(refused.exception, kind)
    assert said in str(refused.exception)
    assert in_force(folder) == "default"


def test_a_label_that_stands_above_is_named(folder: Path) -> None:
    source.write_choice(source.label_file(folder.parent / "state"), "default")
    assert "nvidia.com/device-plugin.config=default stands above it" in call(folder, "shared").stderr


def test_without_a_folder_the_next_step_is_named() -> None:
    refused = CliRunner().invoke(agentconfig.config, ["shared"], standalone_mode=False)
    assert isinstance(refused.exception, errors.RequestError)
    assert "FAIRLEAD_PLUGIN_CONFIG_FOLDER" in str(refused.exception.hint)
