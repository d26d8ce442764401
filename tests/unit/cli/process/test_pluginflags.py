"""NVIDIA's flags and variables stand for our settings, with the documented precedence."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import click
import pytest
from click.testing import CliRunner

from fairlead import errors, settings
from fairlead.cli.core import invocation
from fairlead.cli.process import agentcheck, pluginflags
from fairlead.wire.nvidia import pluginconfig


def load(*args: str, env: dict[str, str] | None = None) -> settings.Settings:
    found: list[settings.Settings] = []

    @click.command()
    @pluginflags.settings_options("node", "plugin", "silicon")
    def verb(config: settings.Settings) -> None:
        found.append(config)

    call = invocation.Invocation(env=env or {}, config=Path("/dev/null"))
    verb.main(list(args), standalone_mode=False, obj=call)
    return found[0]


def value(config: settings.Settings, key: str) -> Any:
    group, name = key.split(".")
    return getattr(getattr(config, group), name)


@pytest.mark.parametrize(
    ("flag", "env", "text", "key", "expected"),
    [
        ("--mig-strategy", "MIG_STRATEGY", "mixed", "node.mig_strategy", "mixed"),
        ("--device-list-strategy", "DEVICE_LIST_STRATEGY", "envvar", "node.device_list_strategy", "envvar"),
        ("--device-id-strategy", "DEVICE_ID_STRATEGY", "index", "node.device_id_strategy", "index"),
        ("--pass-device-specs", "PASS_DEVICE_SPECS", "true", "node.pass_device_specs", True),
        ("--nvidia-driver-root", "NVIDIA_DRIVER_ROOT", "/d", "silicon.driver_root", Path("/d")),
        ("--driver-root", "NVIDIA_DRIVER_ROOT", "/d", "silicon.driver_root", Path("/d")),
        ("--dev-root", "NVIDIA_DEV_ROOT", "/d", "silicon.dev_root", Path("/d")),
        ("--config-file", "CONFIG_FILE", "/c.yaml", "plugin.config_file", Path("/c.yaml")),
        ("--kubelet-socket", "KUBELET_SOCKET", "/k/kubelet.sock", "node.kubelet_folder", Path("/k")),
        (
            "--shared-devices-allocation-policy",
            "SHARED_DEVICES_ALLOCATION_POLICY",
            "packed",
            "plugin.sharing_policy",
            "packed",
        ),
    ],
)
def test_a_flag_and_a_variable_of_nvidias_set_ours(flag: str, env: str, text: str, key: str, expected: object) -> None:
    by_flag, by_env = load(flag, text), load(env={env: text})
    assert (value(by_flag, key), value(by_env, key)) == (expected, expected)
    assert key in by_flag.given & by_env.given


def test_a_boolean_flag_needs_no_value() -> None:
    assert load("--pass-device-specs").node.pass_device_specs
    assert not load("--pass-device-specs=false").node.pass_device_specs


def test_a_list_flag_may_be_given_twice() -> None:
    found = load("--device-list-strategy", "envvar", "--device-list-strategy", "cdi-cri")
    assert found.node.device_list_strategy == "envvar,cdi-cri"


def test_a_flag_wins_over_a_variable_and_our_variable_over_nvidias() -> None:
    env = {"MIG_STRATEGY": "mixed", "FAIRLEAD_NODE_MIG_STRATEGY": "single"}
    assert load(env=env).node.mig_strategy == "single"
    assert load("--mig-strategy", "none", env=env).node.mig_strategy == "none"


def test_two_flags_for_one_setting_that_disagree_are_an_error() -> None:
    with pytest.raises(errors.Invalid, match="--mig-strategy says mixed and --node-mig-strategy says none"):
        load("--mig-strategy", "mixed", "--node-mig-strategy", "none")
    assert load("--mig-strategy", "mixed", "--node-mig-strategy", "mixed").node.mig_strategy == "mixed"


@pytest.mark.parametrize(
    ("env", "named"),
    [({"MIG_STRATEGY": "some"}, "MIG_STRATEGY"), ({"PASS_DEVICE_SPECS": "maybe"}, "PASS_DEVICE_SPECS")],
)
def test_a_wrong_variable_is_named(env: dict[str, str], named: str) -> None:
    with pytest.raises(errors.Invalid, match=named):
        load(env=env)


def test_what_has_nothing_to_do_here_is_taken() -> None:
    env = {
        name: "true" if flag.kind is bool else "x"
        for flag in pluginconfig.FLAGS
        for name in flag.envs
        if not flag.choices and not flag.setting
    }
    assert load("--fail-on-init-error=false", env=env) == load()


def test_an_empty_variable_is_none() -> None:
    assert load(env={"MIG_STRATEGY": "", "CONFIG_FILE": ""}) == load()


def test_a_file_sets_where_the_driver_is_before_the_start(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("flags: {nvidiaDriverRoot: /file}")
    assert pluginflags.with_file(load("--config-file", str(file))).silicon.driver_root == Path("/file")
    assert pluginflags.with_file(
        load("--config-file", str(file), "--driver-root", "/flag")
    ).silicon.driver_root == Path("/flag")


def test_a_wrong_file_keeps_the_agent_from_starting(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("flags: {migStrateg: none}")
    with pytest.raises(errors.Invalid, match=r"c.yaml: flags.migStrateg: unknown field"):
        pluginflags.with_file(load("--config-file", str(file)))
    with pytest.raises(errors.Unavailable, match="No such file"):
        pluginflags.with_file(load("--config-file", str(tmp_path / "none")))


def test_check_says_what_a_file_does_and_what_is_wrong(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text(
        "flags: {gdsEnabled: true}\n"
        "sharing: {timeSlicing: {renameByDefault: true, resources: [{name: gpu, replicas: 4}]}}"
    )
    found = CliRunner().invoke(agentcheck.check, [str(file)], standalone_mode=False)
    assert found.exception is None
    shown = " ".join(found.output.split())
    assert "every device of nvidia.com/gpu shared by time-slicing: 4 replicas of each" in shown
    assert "in force at once: whether containers get the GPUDirect Storage devices beside their GPUs" in shown
    assert max(map(len, found.output.splitlines())) <= 80


def test_check_explains_a_list_of_counters_line_by_line(tmp_path: Path) -> None:
    file = tmp_path / "counters.csv"
    file.write_text(
        "# Clocks\nDCGM_FI_DEV_SM_CLOCK,  gauge, SM clock frequency (in MHz).\n"
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE, gauge, tensor\nDCGM_FI_DRIVER_VERSION, label, driver\n"
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL, counter, all lanes\n"
    )
    found = CliRunner().invoke(agentcheck.check, [str(file), "-o", "json"], standalone_mode=False)
    assert found.exception is None
    effects = {one["path"]: one["effect"] for one in json.loads(found.output)["fields"]}
    assert effects == {
        "DCGM_FI_DEV_SM_CLOCK": "in force from the next start",
        "DCGM_FI_PROF_PIPE_TENSOR_ACTIVE": "in force from the next start",
        "DCGM_FI_DRIVER_VERSION": "in force from the next start",
        "DCGM_FI_DEV_NVLINK_BANDWIDTH_TOTAL": "not carried out",
    }
    file.write_text("DCGM_FI_DEV_SM_CLOCK, clock, MHz\n")
    wrong = CliRunner().invoke(agentcheck.check, [str(file)], standalone_mode=False)
    assert isinstance(wrong.exception, errors.Invalid)
    assert "line 1" in wrong.output


def test_check_of_a_wrong_file_ends_with_an_error(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("flags: {migStrateg: none}")
    found = CliRunner().invoke(agentcheck.check, [str(file), "-o", "json"], standalone_mode=False)
    assert isinstance(found.exception, errors.Invalid)
    assert json.loads(found.output)["problems"] == ['flags.migStrateg: unknown field, did you mean "migStrategy"?']
