"""`fairlead dra check`: what an API server would refuse or drop, and what is wrong between objects."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from click.testing import CliRunner, Result

from fairlead import errors
from fairlead.cli.layer.dra import group

_SLICE = """
apiVersion: resource.k8s.io/v1beta1
kind: ResourceSlice
metadata: {name: a}
spec:
  driver: gpu.example.com
  nodeName: n1
  pool: {name: n1, generation: 2, resourceSliceCount: 1}
  devices:
  - {name: gpu-0, basic: {attributes: {type: {string: gpu}}}}
"""
_CLAIM = """
---
apiVersion: resource.k8s.io/v1
kind: ResourceClaim
metadata: {name: %s, namespace: team}
spec: {devices: {requests: [{name: a, exactly: {deviceClassName: gpu.example.com}}]}}
status:
  allocation: {devices: {results: [{request: a, driver: gpu.example.com, pool: n1, device: gpu-0}]}}
"""


def _check(*words: str, stdin: str | None = None) -> Result:
    return CliRunner().invoke(group.group, ["check", *words], input=stdin, standalone_mode=False)


def test_objects_that_are_right_end_with_0(tmp_path: Path) -> None:
    file = tmp_path / "all.yaml"
    file.write_text(_SLICE + _CLAIM % "one")
    done = _check("-f", str(file))
    assert (done.return_value, done.stdout.splitlines()[0]) == (0, "2 objects looked at: nothing is wrong.")
    assert "Not judged: whether a namespace allows" in done.stdout


def test_a_device_given_twice_and_a_field_that_is_none_end_with_1() -> None:
    text = _SLICE + _CLAIM % "one" + (_CLAIM % "two").replace("deviceClassName", "cout: 1, deviceClassName")
    done = _check("-f", "-", stdin=text + "\n---\napiVersion: v1\nkind: Pod\nmetadata: {name: x}\n")
    assert done.return_value == 1
    assert (
        "  wrong: has device gpu.example.com/n1/gpu-0, which is given to ResourceClaim team/two as well" in done.stdout
    )
    assert "  not a field, or not read: spec.devices.requests[0].exactly.cout" in done.stdout
    assert "Passed over: 1 Pod." in done.stdout


def test_what_a_server_refuses_is_said_in_its_words_in_every_version() -> None:
    bad = _SLICE.replace("name: gpu-0", "name: GPU_0")
    for text in (bad, bad.replace("v1beta1", "v1beta2").replace("basic: {attributes: {type: {string: gpu}}}", "x: 1")):
        done = _check("-f", "-", "-o", "json", stdin=text)
        (finding,) = json.loads(done.stdout)["findings"]
        assert finding["item"] == "ResourceSlice a"
        assert finding["refused"][0].startswith('spec.devices[0].name: Invalid value: "GPU_0"')


def test_a_field_of_a_feature_that_is_off_is_said_to_be_dropped() -> None:
    text = _SLICE.replace("type: {string: gpu}", "type: {strings: [gpu]}")
    dropped = _check("-f", "-", stdin=text)
    assert "its feature is off" in dropped.stdout or "refused" in dropped.stdout
    kept = _check("-f", "-", "--feature-gate", "DRAListTypeAttributes=true", stdin=text)
    assert (kept.return_value, "nothing is wrong" in kept.stdout) == (0, True)


def test_a_list_as_kubectl_prints_it_is_read(tmp_path: Path) -> None:
    items = [
        {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}, "spec": {}}
        for name in ("one", "two")
    ]
    file = tmp_path / "list.json"
    file.write_text(json.dumps({"apiVersion": "v1", "kind": "List", "items": items}))
    assert _check("-f", str(file)).stdout.startswith("2 objects looked at: nothing is wrong.")


@pytest.mark.parametrize(
    ("words", "stdin", "says"),
    [
        (("-f", "/nope"), "", "cannot read /nope"),
        (("-f", "-"), "apiVersion: v1\nkind: Pod\n", "no object of resource.k8s.io is in -"),
        (("-f", "-"), "a: [", "the manifest"),
        (("-f", "-"), "\0", "the manifest"),
        (("-f", "-"), "[" * 5000, "the manifest"),
        (("-f", "-", "--feature-gate", "DRAPartitionableDevice=true"), _SLICE, "did you mean DRAPartitionableDevices?"),
        (("-f", "-", "--feature-gate", "DRAPartitionableDevices"), _SLICE, "is no feature gate with its value"),
    ],
)
def test_what_cannot_be_read_says_why(words: tuple[str, ...], stdin: str, says: str) -> None:
    done = _check(*words, stdin=stdin)
    assert isinstance(done.exception, errors.RequestError)
    assert says in f"{done.exception.message}\n{done.exception.hint}"


def test_an_object_that_cannot_be_read_does_not_hide_the_others() -> None:
    text = _SLICE + "\n---\napiVersion: resource.k8s.io/v1\nkind: ResourceClaim\nmetadata: {name: 3}\nspec: 4\n"
    done = _check("-f", "-", stdin=text)
    assert done.return_value == 1
    assert "unreadable: -: document 2:" in done.stdout
    assert "2 objects looked at: something is wrong with 1 of them." in done.stdout


def test_an_item_of_a_list_that_is_no_object_does_not_hide_the_others() -> None:
    done = _check("-f", "-", stdin=json.dumps({"apiVersion": "v1", "kind": "List", "items": ["x", _CLASS]}))
    assert "unreadable: -: items[0]: the manifest cannot be read: it is a string, not a map" in done.stdout
    assert "2 objects looked at: something is wrong with 1 of them." in done.stdout


_CLASS = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": "gpu"}, "spec": {}}
