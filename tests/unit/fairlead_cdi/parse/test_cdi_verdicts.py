"""Foreign truth: what the reference library (CDI 1.1.0) says about each edge of the format, restated as data.

Every row was put to that library once, through a harness over its ReadSpec; running this needs nothing of it.
"""

from __future__ import annotations

import copy
import json
from typing import Any

import pytest

from fairlead_cdi import errors, parse, spec

BASE: dict[str, Any] = {
    "cdiVersion": "0.3.0",
    "kind": "vendor.com/gpu",
    "devices": [{"name": "gpu0", "containerEdits": {"env": ["A=b"]}}],
}
EDITS = ("devices", 0, "containerEdits")


def spec_with(path: tuple[Any, ...], value: Any, declared: str = "1.1.0") -> bytes:
    """Return the base spec with one value set."""
    document = copy.deepcopy(BASE)
    document["cdiVersion"] = declared
    place: Any = document
    for key in path[:-1]:
        place = place[key] if isinstance(place, list) else place.setdefault(key, {})
    place[path[-1]] = value
    return json.dumps(document).encode()


def edit(name: str, value: Any, declared: str = "1.1.0") -> bytes:
    return spec_with((*EDITS, name), value, declared)


def node(declared: str = "1.1.0", **fields: Any) -> bytes:
    return edit("deviceNodes", [{"path": "/dev/x", **fields}], declared)


def hook(**fields: Any) -> bytes:
    return edit("hooks", [{"hookName": "createContainer", "path": "/bin/x", **fields}])


def mount(declared: str = "1.1.0", **fields: Any) -> bytes:
    return edit("mounts", [{"hostPath": "/a", "containerPath": "/b", **fields}], declared)


TWO_NETS = [{"hostInterfaceName": "eth0", "name": "a"}, {"hostInterfaceName": "eth0", "name": "b"}]
TWO_NAMES = [{"hostInterfaceName": "eth0", "name": "a"}, {"hostInterfaceName": "eth1", "name": "a"}]

REJECT: dict[str, bytes] = {
    "version 0.1.0": spec_with(("cdiVersion",), "0.1.0"),
    "version 0.2.0": spec_with(("cdiVersion",), "0.2.0"),
    "version 1.2.0": spec_with(("cdiVersion",), "1.2.0"),
    "version 0.5.1": spec_with(("cdiVersion",), "0.5.1"),
    "version of two parts": spec_with(("cdiVersion",), 0.3),
    "version missing": spec_with(("cdiVersion",), None),
    "version with two v": spec_with(("cdiVersion",), "vv0.3.0"),
    "vendor with a digit first": spec_with(("kind",), "3com.com/gpu"),
    "class with a slash": spec_with(("kind",), "vendor.com/a/b"),
    "class ending in a dash": spec_with(("kind",), "vendor.com/x-"),
    "vendor not ascii": spec_with(("kind",), "vendör.com/gpu"),
    "vendor missing": spec_with(("kind",), "/gpu"),
    "class missing": spec_with(("kind",), "vendor.com/"),
    "kind with a newline": spec_with(("kind",), "vendor.com/gpu\n"),
    "class dot below 0.6.0": spec_with(("kind",), "vendor.com/a.b", "0.5.0"),
    "digit name below 0.5.0": spec_with(("devices", 0, "name"), "0", "0.4.0"),
    "no devices": spec_with(("devices",), []),
    "devices null": spec_with(("devices",), None),
    "devices an object": spec_with(("devices",), {}),
    "name ending in a dash": spec_with(("devices", 0, "name"), "a-"),
    "name empty": spec_with(("devices", 0, "name"), ""),
    "name with a space": spec_with(("devices", 0, "name"), "a b"),
    "name not ascii": spec_with(("devices", 0, "name"), "\uff41"),
    "edits empty": spec_with(EDITS, {}),
    "edits null": spec_with(EDITS, None),
    "duplicate device": spec_with(("devices",), BASE["devices"] * 2),
    "unknown field on top": spec_with(("extra",), 1),
    "unknown field in a device": spec_with(("devices", 0, "extra"), 1),
    "unknown field in a node": node(extra=1),
    "env without =": edit("env", ["A"]),
    "env without a name": edit("env", ["=b"]),
    "env empty": edit("env", [""]),
    "env a text": edit("env", "A=b"),
    "env nested": edit("env", [["A=b"]]),
    "node path empty": node(path=""),
    "permissions rx": node(permissions="rx"),
    "permissions rxw": node(permissions="rxw"),
    "type char": node(type="char"),
    "gid negative": node(gid=-1),
    "gid too large": node(gid=2**32),
    "uid a text": node(uid="0"),
    "major a text": node(major="1"),
    "major a fraction": node(major=1.5),
    "major a boolean": node(major=True),
    "major too large": node(major=2**63),
    "fileMode a text": node(fileMode="0666"),
    "hostPath below 0.5.0": node("0.4.0", hostPath="/dev/y"),
    "node a text": edit("deviceNodes", ["x"]),
    "hook stage unknown": hook(hookName="nope"),
    "hook path empty": hook(path=""),
    "hook env without =": hook(env=["A"]),
    "hook timeout a text": hook(timeout="1"),
    "mount hostPath empty": mount(hostPath=""),
    "mount containerPath empty": mount(containerPath=""),
    "mount options a text": mount(options="ro"),
    "mount type below 0.4.0": mount("0.3.0", type="bind"),
    "closID ..": edit("intelRdt", {"closID": ".."}),
    "closID .": edit("intelRdt", {"closID": "."}),
    "closID with a slash": edit("intelRdt", {"closID": "a/b"}),
    "closID with a newline": edit("intelRdt", {"closID": "a\nb"}),
    "closID too long": edit("intelRdt", {"closID": "x" * 4096}),
    "enableCMT": edit("intelRdt", {"enableCMT": True}, "0.7.0"),
    "enableMonitoring a text": edit("intelRdt", {"enableMonitoring": "true"}),
    "intelRdt below 0.7.0": edit("intelRdt", {}, "0.6.0"),
    "schemata below 1.1.0": edit("intelRdt", {"schemata": []}, "1.0.0"),
    "netDevices below 1.1.0": edit("netDevices", TWO_NETS[:1], "0.8.0"),
    "host interface twice": edit("netDevices", TWO_NETS),
    "container interface twice": edit("netDevices", TWO_NAMES),
    "interface without a name": edit("netDevices", [{"hostInterfaceName": "eth0"}]),
    "gids below 0.7.0": edit("additionalGids", [1], "0.6.0"),
    "gid in list negative": edit("additionalGids", [-1]),
    "gid in list a text": edit("additionalGids", ["1"]),
    "annotations below 0.6.0": spec_with(("annotations",), {"a": "b"}, "0.5.0"),
    "empty file": b"",
    "null": b"null",
    "list": b"[]",
    "empty object": b"{}",
    "key twice": b'{"cdiVersion": "0.3.0", "cdiVersion": "0.3.0"}',
    "not json": b"{",
    "NaN": b'{"cdiVersion": NaN}',
    "not utf-8": b'{"cdiVersion": "\xff"}',
}

ACCEPT: dict[str, tuple[bytes, str]] = {
    "v prefix": (spec_with(("cdiVersion",), "v0.3.0"), "0.3.0"),
    "vendor in capitals with underscore": (spec_with(("kind",), "Vendor_x/GPU"), "0.3.0"),
    "vendor without a dot": (spec_with(("kind",), "vendor/gpu"), "0.3.0"),
    "vendor of 300 characters": (spec_with(("kind",), "a" * 300 + "/gpu"), "0.3.0"),
    "one-character class (released engines panic)": (spec_with(("kind",), "vendor.com/g"), "0.3.0"),
    "class dot": (spec_with(("kind",), "vendor.com/a.b"), "0.6.0"),
    "name N:M": (spec_with(("devices", 0, "name"), "0:1"), "0.5.0"),
    "name of 200 characters": (spec_with(("devices", 0, "name"), "x" * 200), "0.3.0"),
    "name a number": (spec_with(("devices", 0, "name"), 1), "0.5.0"),
    "name a boolean": (spec_with(("devices", 0, "name"), True), "0.3.0"),
    "env value empty": (edit("env", ["A="]), "0.3.0"),
    "permissions rr": (node(permissions="rr"), "0.3.0"),
    "permissions none": (node(permissions="none"), "0.3.0"),
    "major a whole float": (node(major=1.0), "0.3.0"),
    "major negative": (node(major=-1), "0.3.0"),
    "type p": (node(type="p"), "0.3.0"),
    "hostPath": (node(hostPath="/dev/y"), "0.5.0"),
    "hostPath empty": (node(hostPath=""), "0.3.0"),
    "hook path relative": (hook(path="rel"), "0.3.0"),
    "hook timeout 0": (hook(timeout=0), "0.3.0"),
    "hook args coerced": (hook(args=[1, None, True, 1.5]), "0.3.0"),
    "mount type": (mount(type="bind"), "0.4.0"),
    "mount type empty": (mount(type=""), "0.3.0"),
    "intelRdt empty": (edit("intelRdt", {}), "0.7.0"),
    "closID /": (edit("intelRdt", {"closID": "/"}), "0.7.0"),
    "closID long": (edit("intelRdt", {"closID": "x" * 4095}), "0.7.0"),
    "schemata empty": (edit("intelRdt", {"schemata": []}), "1.1.0"),
    "schemata null": (edit("intelRdt", {"schemata": None}), "0.7.0"),
    "monitoring off": (edit("intelRdt", {"enableMonitoring": False}), "0.7.0"),
    "monitoring on": (edit("intelRdt", {"enableMonitoring": True}), "1.1.0"),
    "netDevices": (edit("netDevices", TWO_NETS[:1]), "1.1.0"),
    "gids": (edit("additionalGids", [5]), "0.7.0"),
    "gid 0 counts as an edit": (spec_with(EDITS, {"additionalGids": [0]}), "0.7.0"),
    "additionalGIDs in other case": (edit("additionalGIDs", [5]), "0.7.0"),
    "Kind in other case": (spec_with(("Kind",), "other.com/gpu"), "0.3.0"),
    "annotations with any key": (spec_with(("annotations",), {"bad key!": "x"}), "0.6.0"),
    "annotations coerced": (spec_with(("annotations",), {"a": 1, "b": None, "c": True}), "0.6.0"),
    "annotations of a device": (spec_with(("devices", 0, "annotations"), {"x": "y"}), "0.6.0"),
    "annotations empty": (spec_with(("annotations",), {}), "0.3.0"),
}


@pytest.mark.parametrize("name", REJECT)
def test_what_engines_refuse_is_refused(name: str) -> None:
    with pytest.raises(errors.DocumentError):
        parse.parse_spec(REJECT[name])


@pytest.mark.parametrize("name", ACCEPT)
def test_what_engines_accept_is_accepted_with_the_same_minimum_version(name: str) -> None:
    data, lowest = ACCEPT[name]
    assert spec.minimum_version(parse.parse_spec(data)) == lowest


def test_of_two_spellings_of_a_key_the_same_one_wins() -> None:
    data = json.dumps({"kind": "exact.com/gpu", **{k: v for k, v in BASE.items() if k != "kind"}, "Kind": "b.com/gpu"})
    assert parse.parse_spec(data.encode()).kind == "exact.com/gpu"


def test_an_error_names_place_and_value() -> None:
    with pytest.raises(errors.DocumentError) as caught:
        parse.parse_spec(node(gid=-1))
    assert caught.value.message.startswith("devices[0].containerEdits.deviceNodes[0].gid must be")
    assert "-1" in caught.value.message


def test_annotations_are_an_object_and_an_absent_number_is_null() -> None:
    with pytest.raises(errors.DocumentError, match="annotations must be an object"):
        parse.parse_spec(spec_with(("annotations",), ["a", "b"]))
    assert parse.parse_spec(node(minor=None)) == parse.parse_spec(node())


def test_a_huge_value_is_cut_in_the_error() -> None:
    with pytest.raises(errors.DocumentError) as caught:
        parse.parse_spec(spec_with(("devices",), "x" * 100_000))
    assert len(caught.value.message) < 200


def test_a_deep_document_is_refused_and_crashes_nothing() -> None:
    with pytest.raises(errors.DocumentError):
        parse.parse_spec(b'{"devices":' + b"[" * 200_000)


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (1e6, "1e+06"),
        (100000.0, "100000"),
        (1.5, "1.5"),
        (0.0, "0"),
        (1e-5, "1e-05"),
        (-2.5e7, "-2.5e+07"),
        (-0.5, "-0.5"),
    ],
)
def test_numbers_become_text_as_in_go(value: float, text: str) -> None:
    assert parse.scalar_text(value, "x") == text


def test_an_infinite_number_is_no_crash() -> None:
    with pytest.raises(errors.DocumentError):
        parse.parse_spec(edit("deviceNodes", [{"path": "/dev/x", "major": 0}]).replace(b": 0}", b": 1e999}"))
    assert parse.scalar_text(float("inf"), "x") == "inf"
