"""`fairlead cdi …` as a script sees it: output, errors, and what is written."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click.testing
import pytest
import yaml

from fairlead import errors
from fairlead.cli.core import invocation
from fairlead.cli.layer.cdi import group as cdi
from fairlead.wire.cdi import stamp
from fairlead_cdi import parse, yamlfile
from fairlead_cdi import spec as cdi_spec

EDITS = {"env": ["A=b"], "deviceNodes": [{"path": "/dev/null", "permissions": "rw"}]}


def run(*args: object, env: dict[str, str] | None = None, text: str = "") -> click.testing.Result:
    """Run one verb; what it raises is raised here."""
    arguments = [str(arg) for arg in args]
    runner = click.testing.CliRunner()
    given = invocation.Invocation(env=env or {})
    return runner.invoke(cdi.group, arguments, input=text, obj=given, catch_exceptions=False, standalone_mode=False)


def raised(*args: object, **more: Any) -> tuple[errors.FairleadError, str]:
    """Run one verb that fails, and return its error and what it printed before."""
    runner = click.testing.CliRunner()
    result = runner.invoke(
        cdi.group, [str(arg) for arg in args], obj=invocation.Invocation(**more), standalone_mode=False
    )
    assert isinstance(result.exception, errors.FairleadError)
    return result.exception, result.stdout


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    path = tmp_path / "cdi"
    path.mkdir(mode=0o755)
    document = {"cdiVersion": "0.5.0", "kind": "vendor.com/gpu", "devices": [{"name": "0", "containerEdits": EDITS}]}
    (path / "a.json").write_text(json.dumps(document))
    return path


def test_devices_are_listed_with_errors_by_file(folder: Path) -> None:
    (folder / "b.yaml").write_text("{")
    found = json.loads(run("list", "--spec-dir", folder, "-o", "json").stdout)
    assert [device["name"] for device in found["devices"]] == ["vendor.com/gpu=0"]
    assert found["errors"][str(folder / "b.yaml")][0]["reason"] == "SpecUndecodable"


def test_the_table_goes_to_stdout_and_warnings_to_stderr(folder: Path) -> None:
    (folder / "b.json").write_text("{")
    result = run("list", "--spec-dir", folder)
    assert result.stdout.splitlines()[1].split() == ["vendor.com/gpu=0", str(folder / "a.json"), "0.5.0"]
    assert result.stderr.startswith(f"warning: {folder}/b.json: ")


def test_valid_specs_pass(folder: Path) -> None:
    assert "valid" in run("validate", "--spec-dir", folder).stdout
    assert json.loads(run("validate", folder / "a.json", "-o", "json").stdout)[str(folder / "a.json")]["valid"] is True


def test_an_invalid_spec_is_told_with_all_its_faults_and_fails(folder: Path) -> None:
    bad = {"cdiVersion": "9", "kind": "x", "devices": []}
    (folder / "b.json").write_text(json.dumps(bad))
    error, shown = raised("validate", "--spec-dir", folder, "-o", "json")
    assert errors.row_of(error).exit == 8
    assert len(json.loads(shown)[str(folder / "b.json")]["problems"]) >= 3


def test_a_conflict_between_files_fails_validation(folder: Path) -> None:
    (folder / "b.json").write_text((folder / "a.json").read_text())
    error, shown = raised("validate", "--spec-dir", folder)
    assert error.reason == "SpecInvalid"
    assert shown.count("is defined in") == 2


def test_writers_are_held_to_more(folder: Path) -> None:
    (folder / "a.json").write_text((folder / "a.json").read_text().replace("vendor.com/gpu", "vendor.com/g"))
    run("validate", folder / "a.json")
    error, _ = raised("validate", "--strict", folder / "a.json")
    assert error.reason == "SpecInvalid"


def test_a_missing_file_is_told(folder: Path) -> None:
    _, shown = raised("validate", folder / "nope.json")
    assert "cannot read" in shown


def test_inject_prints_the_edited_runtime_spec(folder: Path) -> None:
    config = {"ociVersion": "1.0.2", "future": 1, "process": {"env": ["P=1"]}}
    result = run("inject", "-", "vendor.com/gpu=0", "--spec-dir", folder, text=json.dumps(config))
    edited = json.loads(result.stdout)
    assert edited["process"]["env"] == ["P=1", "A=b"]
    assert edited["linux"]["devices"][0]["minor"] == 3
    assert edited["future"] == 1


def test_inject_refuses_what_is_not_there_and_prints_nothing(folder: Path, tmp_path: Path) -> None:
    (tmp_path / "config.json").write_text("{}")
    error, shown = raised("inject", tmp_path / "config.json", "vendor.com/gpu=9", "--spec-dir", folder)
    assert (type(error), shown) == (errors.NotFound, "")
    assert errors.row_of(error).exit == 2


def test_explain_tells_what_would_change(folder: Path) -> None:
    found = json.loads(run("explain", "vendor.com/gpu=0", "--spec-dir", folder, "-o", "json").stdout)
    assert [(change["what"], change["subject"]) for change in found] == [
        ("env", "A"),
        ("device", "/dev/null"),
        ("rule", "c 1:3 rw"),
    ]
    assert "/dev/null" in run("explain", "vendor.com/gpu=0", "--spec-dir", folder).stdout


def test_diff_compares_files_and_devices(folder: Path) -> None:
    other = folder / "b.yaml"
    document = {
        "cdiVersion": "0.5.0",
        "kind": "vendor.com/gpu",
        "devices": [{"name": "1", "containerEdits": {"env": ["A=c"]}}],
    }
    other.write_text(yaml.safe_dump(document))
    found = json.loads(run("diff", folder / "a.json", other, "-o", "json").stdout)
    assert {change["where"] for change in found} >= {"devices[0]", "devices[1]"}
    rows = run("diff", "vendor.com/gpu=0", "vendor.com/gpu=1", "--spec-dir", folder).stdout.splitlines()
    assert [row.split()[:2] for row in rows[1:]] == [["removed", "deviceNodes[/dev/null]"], ["changed", "env[A]"]]
    assert run("diff", folder / "a.json", folder / "a.json").stdout.splitlines()[1:] == []


def test_lint_finds_dangers_and_fails_on_errors_only(folder: Path) -> None:
    assert "node-mknod" not in run("lint", "--spec-dir", folder).stdout
    (folder / "a.json").write_text((folder / "a.json").read_text().replace("vendor.com/gpu", "vendor.com/g"))
    error, shown = raised("lint", "--spec-dir", folder, "-o", "json")
    assert error.reason == "SpecDangerous"
    assert [finding["code"] for finding in json.loads(shown)] == ["kind-crashes-engines"]


def test_lint_of_what_cannot_be_read_says_so(folder: Path) -> None:
    (folder / "a.json").write_text("{")
    _, shown = raised("lint", folder / "a.json")
    assert "spec-invalid" in shown


def simulated(tmp_path: Path) -> dict[str, str]:
    return {"FAIRLEAD_STATE_FOLDER": str(tmp_path / "state")}


def test_generate_writes_a_spec_of_simulated_gpus(tmp_path: Path) -> None:
    target = tmp_path / "gpu.json"
    result = run("generate", "--simulate", "t4x4", "--output", target, env=simulated(tmp_path))
    spec = parse.parse_spec(target.read_bytes())
    assert (spec.kind, spec.cdi_version, len(spec.devices)) == ("nvidia.com/gpu", "0.5.0", 9)
    assert "9 devices, CDI 0.5.0" in result.stderr
    assert target.stat().st_mode & 0o777 == 0o644


def test_generate_prints_yaml_that_engines_read(tmp_path: Path) -> None:
    result = run("generate", "--simulate", "t4x4", env=simulated(tmp_path))
    assert parse.parse_spec(result.stdout.encode(), decode=yamlfile.decode_yaml).kind == "nvidia.com/gpu"


def test_generate_names_files_in_a_folder_itself(tmp_path: Path) -> None:
    out = tmp_path / "out"
    out.mkdir()
    run("generate", "--simulate", "t4x4", "--output", out, "--format", "json", env=simulated(tmp_path))
    assert sorted(path.name for path in out.iterdir()) == ["nvidia.com-gpu.json", "nvidia.com-gpu.json.stamp"]


def test_generate_refuses_a_name_that_engines_do_not_read(tmp_path: Path) -> None:
    error, _ = raised("generate", "--simulate", "t4x4", "--output", tmp_path / "x.yml", env=simulated(tmp_path))
    assert error.reason == "OutputInvalid"


def test_generate_writes_nothing_where_there_are_no_gpus(tmp_path: Path) -> None:
    target = tmp_path / "gpu.json"
    result = run("generate", "--root", tmp_path / "empty", "--output", target)
    assert "nothing is written" in result.stderr
    assert not target.exists()


def generated(*args: object, tmp_path: Path, name: str = "gpu.json") -> tuple[cdi_spec.Spec, Path]:
    target = tmp_path / name
    run("generate", "--simulate", "t4x4", "--output", target, *args, env=simulated(tmp_path))
    return parse.parse_spec(target.read_bytes()), target


def test_generate_takes_names_devices_and_kind_as_the_peer_does(tmp_path: Path) -> None:
    args = ("--device-name-strategy", "type-index", "--device-id", "1", "--no-all-device")
    spec, _ = generated(*args, "--vendor", "example.com", "--class", "board", tmp_path=tmp_path)
    assert (spec.kind, [device.name for device in spec.devices]) == ("example.com/board", ["gpu1"])


def test_generate_shows_the_part_of_the_driver_that_is_asked_for(tmp_path: Path) -> None:
    spec, _ = generated("--capability", "utility", tmp_path=tmp_path)
    shown = {Path(mount.container_path).name.partition(".so")[0] for mount in spec.edits.mounts}
    assert "libnvidia-ml" in shown
    assert "libcuda" not in shown


def test_generate_names_our_hook_and_leaves_out_what_it_is_told_to(tmp_path: Path) -> None:
    hook = ("--hook", "/usr/libexec/fairlead/fairlead-hook", "--ldconfig-path", "/sbin/ldconfig")
    spec, _ = generated(*hook, "--disable-hook", "enable-cuda-compat", tmp_path=tmp_path)
    (made,) = spec.edits.hooks
    assert (made.path, made.args[-2:]) == (hook[1], ("--ldconfig", "/sbin/ldconfig"))
    assert "--driver" not in made.args
    spec, _ = generated(*hook, "--disable-hook", "all", tmp_path=tmp_path)
    assert spec.edits.hooks == ()


def test_generate_makes_a_file_for_each_variant_in_a_folder(tmp_path: Path) -> None:
    (tmp_path / "out").mkdir()
    run("generate", "--simulate", "t4x4", "--variants", "--output", tmp_path / "out", env=simulated(tmp_path))
    names = sorted(path.name for path in (tmp_path / "out").glob("*.yaml"))
    assert len(names) == 8
    assert "nvidia.com-gpu-compute.yaml" in names
    run("validate", "--spec-dir", tmp_path / "out", env=simulated(tmp_path))


def test_several_modes_need_a_folder_and_kinds_of_their_own(tmp_path: Path) -> None:
    args = ("generate", "--simulate", "t4x4", "--mode", "nvml", "--mode", "management")
    error, _ = raised(*args, "--output", tmp_path / "x.json", env=simulated(tmp_path))
    assert error.reason == "OutputAmbiguous"
    error, _ = raised(*args, "--vendor", "a.com", "--class", "gpu", env=simulated(tmp_path))
    assert error.reason == "KindAmbiguous"


def test_a_second_spec_of_the_same_devices_in_one_folder_is_warned_of(tmp_path: Path) -> None:
    generated(tmp_path=tmp_path)
    again = ("generate", "--simulate", "t4x4", "--output", tmp_path / "b.yaml")
    read = {**simulated(tmp_path), "FAIRLEAD_NODE_CDI_FOLDER": str(tmp_path)}
    (line,) = (line for line in run(*again, env=read).stderr.splitlines() if "engines will find neither" in line)
    assert "and 8 more are defined in" in line


def test_a_folder_that_nothing_reads_holds_no_conflict(tmp_path: Path) -> None:
    generated(tmp_path=tmp_path)
    again = ("generate", "--simulate", "t4x4", "--output", tmp_path / "b.yaml")
    assert "warning" not in run(*again, env=simulated(tmp_path)).stderr


def test_a_spec_of_another_boot_is_told_by_validate_and_lint(tmp_path: Path) -> None:
    _, target = generated(tmp_path=tmp_path)
    run("validate", target)
    old = stamp.Stamp(boot_id="earlier", driver="nvidia", version="1")
    stamp.beside(target).write_bytes(stamp.emit_stamp(old, target.read_bytes()))
    error, shown = raised("validate", target)
    assert (error.reason, "stale: was generated in another boot" in shown) == ("SpecInvalid", True)
    assert "spec-stale" in run("lint", target).stdout


def test_a_stamp_can_be_in_annotations_at_the_price_of_a_version(tmp_path: Path) -> None:
    spec, target = generated("--stamp", "annotations", tmp_path=tmp_path)
    assert spec.cdi_version == "0.6.0"
    assert spec.annotations["fairlead.dev/driver"] == "nvidia"
    assert not stamp.beside(target).exists()


def shim(tmp_path: Path, specs: Path | None = None) -> Path:
    """Write the policy of a shim that reads the folder `specs`; returns its path."""
    folder = specs or tmp_path / "specs"
    folder.mkdir(exist_ok=True)
    kept = {"cache": str(tmp_path / "run/cache.json"), "yamlCache": str(tmp_path / "run/yaml")}
    config = tmp_path / "runtime.json"
    config.write_text(json.dumps({"specDirs": [str(folder)], **kept}))
    return config


def test_generate_has_the_shim_know_the_new_spec_yaml_or_not(tmp_path: Path) -> None:
    config = shim(tmp_path)
    generated("--runtime-config", config, tmp_path=tmp_path, name="specs/gpu.json")
    cache = json.loads((tmp_path / "run/cache.json").read_bytes())
    assert "nvidia.com/gpu=all" in cache["devices"]
    (tmp_path / "specs/gpu.json").unlink()
    args = ("--output", tmp_path / "specs/gpu.yaml", "--runtime-config", config)
    run("generate", "--simulate", "t4x4", *args, env=simulated(tmp_path))
    assert "nvidia.com/gpu=all" in json.loads((tmp_path / "run/cache.json").read_bytes())["devices"]
    assert len(list((tmp_path / "run/yaml").iterdir())) == 1


def test_prepare_converts_and_says_so(tmp_path: Path) -> None:
    config = shim(tmp_path)
    (tmp_path / "specs/a.yaml").write_text("cdiVersion: 0.5.0\nkind: a.com/b\n")
    assert run("prepare", "--runtime-config", config).stdout.startswith("1 YAML specs converted; cache: ")


def wait_for(holds: Callable[[], bool]) -> None:
    """Wait for another process's work, which nothing announces."""
    limit = time.monotonic() + 20
    while not holds():
        assert time.monotonic() < limit
        time.sleep(0.02)


def test_watch_keeps_a_folder_until_it_is_stopped_and_refuses_a_second(tmp_path: Path) -> None:
    folder = tmp_path / "cdi"
    env = {**simulated(tmp_path), "FAIRLEAD_CONFIG": str(tmp_path / "none.toml")}
    (tmp_path / "none.toml").touch()
    command = [sys.executable, "-m", "fairlead.cli.main", "cdi", "watch", "--simulate", "t4x4", "--output", str(folder)]
    command += ["--runtime-config", str(shim(tmp_path, folder))]
    with subprocess.Popen([*command, "--interval", "0.05"], env=env, stderr=subprocess.PIPE, text=True) as process:
        assert process.stderr is not None
        try:
            assert any("cdi spec written" in line for line in process.stderr)
            (folder / "more.yaml").write_text("cdiVersion: 0.5.0\nkind: a.com/b\n")
            wait_for(lambda: len(list((tmp_path / "run/yaml").glob("*.json"))) == 1)
            second = subprocess.run(command, env=env, capture_output=True, text=True, timeout=30, check=False)
        finally:
            process.terminate()
        process.stderr.read()
        assert process.wait(20) == 0
    assert second.returncode == 4
    assert f"CDI folder {folder} is in use by another fairlead (pid {process.pid})" in second.stderr
    assert (folder / "fairlead-nvidia.com-gpu.json").exists()


def test_generate_reads_hardware_without_an_event_loop_the_logger_or_the_simulation(tmp_path: Path) -> None:
    code = (
        "import sys; from fairlead.cli import main; "
        f"main.invoke(['cdi', 'generate', '--mode', 'nvml', '--root', {str(tmp_path)!r}], env={{}}); "
        "print(*sorted(name for name in sys.modules if name.startswith(('structlog', 'asyncio', 'fairlead.silicon.'))))"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    loaded = done.stdout.split()
    assert "fairlead.silicon.once" in loaded
    assert [name for name in loaded if name.startswith(("structlog", "asyncio", "fairlead.silicon.sim"))] == []
