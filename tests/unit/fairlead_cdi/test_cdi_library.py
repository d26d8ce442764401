"""The library as others use it: one line, YAML where it can be read, and errors for what cannot have been meant."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

import fairlead_cdi
from fairlead_cdi import annotation, cache, directory, errors, inject, oci, parse, spec

JSON_SPEC = {
    "cdiVersion": "0.5.0",
    "kind": "vv.com/gpu",
    "devices": [{"name": "0", "containerEdits": {"env": ["FROM=json"]}}],
}
YAML_SPEC = 'cdiVersion: "0.5.0"\nkind: ww.com/gpu\ndevices: [{name: 1:0, containerEdits: {env: [FROM=yaml]}}]\n'


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    (tmp_path / "a.json").write_text(json.dumps(JSON_SPEC))
    (tmp_path / "b.yaml").write_text(YAML_SPEC)
    return tmp_path


def test_one_line_injects_from_the_folders_that_engines_read(folder: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(directory, "DEFAULT_DIRECTORIES", (str(folder),))
    found = fairlead_cdi.Registry.default().inject({"ociVersion": "1.0.2"}, ["vv.com/gpu=0", "ww.com/gpu=1:0"])
    assert found == {"ociVersion": "1.0.2", "process": {"env": ["FROM=yaml"]}}


def test_the_default_is_the_folders_that_engines_read() -> None:
    assert fairlead_cdi.Registry.default().directories == ("/etc/cdi", "/var/run/cdi")


def test_a_registry_explains_what_it_would_inject(folder: Path) -> None:
    (change,) = fairlead_cdi.scan([folder]).explain({}, ["vv.com/gpu=0"])
    assert (change.action, change.what, change.subject, change.source) == ("added", "env", "FROM", "vv.com/gpu=0")


def test_host_nodes_are_read_from_this_host_unless_a_reader_is_given(tmp_path: Path) -> None:
    edits = {"deviceNodes": [{"path": "/dev/null"}]}
    document = {**JSON_SPEC, "devices": [{"name": "0", "containerEdits": edits}]}
    (tmp_path / "a.json").write_text(json.dumps(document))
    registry = fairlead_cdi.scan([tmp_path])
    (device,) = registry.inject({}, ["vv.com/gpu=0"])["linux"]["devices"]
    assert (device["major"], device["minor"]) == (1, 3)
    with pytest.raises(fairlead_cdi.HostError):
        registry.inject({}, ["vv.com/gpu=0"], stat=lambda _: None)


def test_every_public_name_is_there_and_no_other() -> None:
    assert {name: getattr(fairlead_cdi, name).__name__ for name in fairlead_cdi.__all__} == {
        name: name for name in fairlead_cdi.__all__
    }
    assert set(fairlead_cdi.__all__) <= set(dir(fairlead_cdi))
    with pytest.raises(AttributeError, match="registry"):
        _ = fairlead_cdi.registry  # type: ignore[attr-defined]  # a misspelt name


def run(code: str, *arguments: str, paths: list[str] | None = None) -> Any:
    """Run code in an interpreter that finds only these folders of packages; return what it prints as JSON."""
    source = str(Path(fairlead_cdi.__file__).parent.parent)
    begin = f"import sys, json; sys.path[:0] = {[source] if paths is None else paths!r}"
    argv = [sys.executable, "-I", "-S", "-c", f"{begin}\n{code}", *arguments]
    return json.loads(subprocess.run(argv, capture_output=True, text=True, check=True).stdout)


def test_without_a_yaml_reader_yaml_is_a_problem_and_json_is_read(folder: Path) -> None:
    found = run(
        "from fairlead_cdi import scan\n"
        "found = scan([sys.argv[1]])\n"
        "problems = {path: [[e.reason, e.hint] for e in all] for path, all in found.problems.items()}\n"
        "try:\n    found.resolve(['ww.com/gpu=1:0'])\nexcept Exception as error:\n    why = str(error)\n"
        "print(json.dumps([list(found.devices), problems, why]))",
        str(folder),
    )
    devices, problems, why = found
    assert devices == ["vv.com/gpu=0"]
    assert problems == {
        f"{folder}/b.yaml": [
            ["SpecFormatUnread", "pip install 'fairlead-cdi[yaml]', or write the spec as JSON"],
        ]
    }
    assert f"not usable: {folder}/b.yaml" in why


def test_a_yaml_reader_without_its_c_part_reads_the_same(folder: Path) -> None:
    code = (
        "import yaml; del yaml.CSafeLoader\n"
        "from fairlead_cdi import scan, yamlfile\n"
        "found = scan([sys.argv[1]])\n"
        "print(json.dumps([issubclass(yamlfile._Loader, yaml.SafeLoader), list(found.devices)]))"
    )
    assert run(code, str(folder), paths=sys.path) == [True, ["vv.com/gpu=0", "ww.com/gpu=1:0"]]


EDITS = spec.ContainerEdits(env=("A=b",))
MISTAKES: dict[str, Callable[[], object]] = {
    "one name to resolve": lambda: directory.scan([]).resolve("vv.com/gpu=0"),
    "one name to inject": lambda: directory.scan([]).inject({}, "vv.com/gpu=0"),
    "one name to explain": lambda: directory.scan([]).explain({}, "vv.com/gpu=0"),
    "one folder": lambda: directory.scan("/var/run/cdi"),
    "one folder as bytes": lambda: directory.scan(b"/var/run/cdi"),  # type: ignore[arg-type]
    "one path": lambda: directory.scan(Path("/var/run/cdi")),  # type: ignore[arg-type]
    "a folder that is no path": lambda: directory.scan([5]),  # type: ignore[list-item]
    "a folder as bytes": lambda: directory.scan([b"/a"]),  # type: ignore[list-item]
    "one folder to watch": lambda: cache.Cache("/var/run/cdi"),
    "names where devices are due": lambda: inject.inject({}, ["vv.com/gpu=0"]),  # type: ignore[list-item]
    "one name where devices are due": lambda: inject.inject({}, "vv.com/gpu=0"),  # type: ignore[arg-type]
    "a dict for edits": lambda: inject.inject_edits({}, [("us", {"env": ["A=b"]})]),  # type: ignore[list-item]
    "a text for the pairs": lambda: inject.inject_edits({}, "xy"),  # type: ignore[arg-type]
    "one pair for the pairs": lambda: inject.inject_edits({}, ("us", EDITS)),  # type: ignore[arg-type]
    "three for a pair": lambda: inject.inject_edits({}, [("us", EDITS, EDITS)]),  # type: ignore[list-item]
    "edits without a source": lambda: inject.inject_edits({}, [(EDITS, EDITS)]),  # type: ignore[list-item]
    "a runtime spec as text": lambda: inject.inject_edits("{}", []),  # type: ignore[arg-type]
    "a dict for a device's edits": lambda: spec.Device(name="0", edits={"env": []}),  # type: ignore[arg-type]
    "no edits of a device": lambda: spec.Device(name="0", edits=None),  # type: ignore[arg-type]
    "one device of a spec": lambda: spec.Spec(cdi_version="", kind="a/b", devices=5),  # type: ignore[arg-type]
    "a dict of a spec's devices": lambda: spec.Spec(cdi_version="", kind="a/b", devices={}),  # type: ignore[arg-type]
    "one variable": lambda: spec.ContainerEdits(env="A=b"),  # type: ignore[arg-type]
    "a dict for a node": lambda: spec.ContainerEdits(device_nodes=({"path": "/dev/x"},)),  # type: ignore[arg-type]
    "a dict for RDT": lambda: spec.ContainerEdits(intel_rdt={}),  # type: ignore[arg-type]
    "one argument of a hook": lambda: spec.Hook(hook_name="prestart", path="/x", args="x"),  # type: ignore[arg-type]
    "one option": lambda: spec.Mount(host_path="/a", container_path="/b", options="ro"),  # type: ignore[arg-type]
    "one schema": lambda: spec.IntelRdt(schemata="L3"),  # type: ignore[arg-type]
    "one device by annotation": lambda: annotation.emit_value("vv.com/gpu=0"),
}


@pytest.mark.parametrize("name", MISTAKES)
def test_a_value_of_another_type_is_refused_where_it_is_given(name: str) -> None:
    with pytest.raises(errors.WrongType) as caught:
        MISTAKES[name]()
    assert isinstance(caught.value, TypeError)
    assert caught.value.reason in {"ListExpected", "WrongType"}
    assert "must" in caught.value.message


def test_a_list_becomes_a_tuple_so_that_values_stay_equal() -> None:
    assert spec.ContainerEdits(env=["A=b"]) == EDITS  # type: ignore[arg-type]
    assert spec.IntelRdt(schemata=[]).schemata == ()  # type: ignore[arg-type]


def test_an_error_says_its_next_step_when_it_is_printed() -> None:
    error = errors.DocumentError("it is broken", reason="Broken", hint="mend it", path="/x")
    assert str(error) == "it is broken (mend it)"
    assert error.context == {"path": "/x"}
    assert str(errors.HostError("it is gone", reason="Gone")) == "it is gone"


def test_a_runtime_spec_goes_from_bytes_to_bytes(folder: Path) -> None:
    config = oci.decode_config(b'{"process":{"env":["A=b"]}}')
    found = fairlead_cdi.scan([folder]).inject(config, ["vv.com/gpu=0"])
    assert oci.encode_config(found) == b'{"process":{"env":["A=b","FROM=json"]}}'
    assert parse.build_edits({"env": ["FROM=json"]}) == spec.ContainerEdits(env=("FROM=json",))
