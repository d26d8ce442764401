"""What we write is what we read, in both formats; the lowest version is enough and never falls when edits are added."""

from __future__ import annotations

import dataclasses

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from fairlead_cdi import difference, emit, errors, parse, validate, yamlfile, yamltext
from fairlead_cdi import spec as cdi

TEXT = st.text(st.characters(exclude_categories=["Cs", "Cc"]), max_size=12)
WORD = st.from_regex(r"[A-Za-z]([A-Za-z0-9_]{0,7}[A-Za-z0-9])?", fullmatch=True)
PATH = st.lists(st.from_regex(r"[a-z0-9_-]{1,6}", fullmatch=True), min_size=1, max_size=3).map(
    lambda p: "/" + "/".join(p)
)
ENV = st.builds("{}={}".format, WORD, TEXT)
UINT = st.integers(0, 2**32 - 1)
NODES = st.builds(
    cdi.DeviceNode,
    path=PATH,
    host_path=st.just("") | PATH,
    type=st.sampled_from("bcup"),
    major=st.integers(0, 4095),
    minor=st.integers(0, 2**20),
    file_mode=st.none() | st.integers(0, 0o777),
    permissions=st.sampled_from(["", "r", "rw", "rwm"]),
    uid=st.none() | UINT,
    gid=st.none() | UINT,
)
HOOKS = st.builds(
    cdi.Hook,
    hook_name=st.sampled_from(cdi.HOOK_NAMES),
    path=PATH,
    args=st.lists(TEXT, max_size=2).map(tuple),
    env=st.lists(ENV, min_size=1, max_size=2).map(tuple),
    timeout=st.none() | st.integers(1, 60),
)
MOUNTS = st.builds(
    cdi.Mount,
    host_path=PATH,
    container_path=PATH,
    type=st.sampled_from(["", "bind"]),
    options=st.lists(WORD, max_size=2).map(lambda options: (*options, "bind")),
)
RDT = st.builds(
    cdi.IntelRdt,
    clos_id=WORD,
    schemata=st.none() | st.lists(TEXT, max_size=2).map(tuple),
    enable_monitoring=st.booleans(),
)
NETS = (
    st.dictionaries(WORD, WORD, max_size=2)
    .filter(lambda found: len(set(found.values())) == len(found))
    .map(lambda found: tuple(cdi.NetDevice(host_interface_name=key, name=value) for key, value in found.items()))
)
EDITS = st.builds(
    cdi.ContainerEdits,
    env=st.lists(ENV, max_size=3).map(tuple),
    device_nodes=st.lists(NODES, max_size=2).map(tuple),
    net_devices=NETS,
    hooks=st.lists(HOOKS, max_size=2).map(tuple),
    mounts=st.lists(MOUNTS, max_size=2).map(tuple),
    intel_rdt=st.none() | RDT,
    additional_gids=st.lists(UINT, max_size=2).map(tuple),
)
ANNOTATIONS = st.dictionaries(WORD, TEXT, max_size=2)
NAMES = st.from_regex(r"[A-Za-z0-9]([A-Za-z0-9_.:-]{0,8}[A-Za-z0-9])?", fullmatch=True)
SPECS = st.builds(
    cdi.Spec,
    cdi_version=st.just(cdi.CURRENT_VERSION),
    kind=st.sampled_from(["vendor.com/gpu", "vendor/net.card", "a-b.example/gpu1"]),
    annotations=ANNOTATIONS,
    devices=st.lists(
        st.builds(cdi.Device, name=NAMES, annotations=ANNOTATIONS, edits=EDITS.filter(bool)),
        min_size=1,
        max_size=3,
        unique_by=lambda device: device.name,
    ).map(tuple),
    edits=EDITS,
)


@settings(max_examples=40)
@given(SPECS)
def test_json_comes_back_as_written(spec: cdi.Spec) -> None:
    assert parse.parse_spec(emit.emit_json(spec)) == emit.normal_form(spec)


@settings(max_examples=40)
@given(SPECS)
def test_yaml_comes_back_as_written(spec: cdi.Spec) -> None:
    assert parse.parse_spec(yamltext.emit_yaml(spec), decode=yamlfile.decode_yaml) == emit.normal_form(spec)


@settings(max_examples=40)
@given(SPECS)
def test_the_lowest_version_suffices_and_the_one_below_does_not(spec: cdi.Spec) -> None:
    lowest = cdi.minimum_version(spec)
    assert not list(validate.violations(dataclasses.replace(spec, cdi_version=lowest)))
    if lowest != cdi.LOWEST_VERSION:
        below = cdi.VERSIONS[cdi.version_rank(lowest) - 1]
        assert list(validate.violations(dataclasses.replace(spec, cdi_version=below)))


@settings(max_examples=40)
@given(SPECS, EDITS)
def test_adding_edits_never_lowers_the_version(spec: cdi.Spec, more: cdi.ContainerEdits) -> None:
    bare = dataclasses.replace(spec, edits=cdi.ContainerEdits())
    full = dataclasses.replace(spec, edits=more)
    assert cdi.version_rank(cdi.minimum_version(full)) >= cdi.version_rank(cdi.minimum_version(bare))


@settings(max_examples=40)
@given(SPECS, SPECS)
def test_a_spec_differs_from_itself_in_nothing_and_from_others_both_ways(one: cdi.Spec, two: cdi.Spec) -> None:
    assert difference.diff(one, one) == ()
    there, back = difference.diff(one, two), difference.diff(two, one)
    assert [(d.where, d.before, d.after) for d in there] == [(d.where, d.after, d.before) for d in back]


def test_a_redundant_host_path_is_dropped_so_that_old_engines_can_read() -> None:
    node = cdi.DeviceNode(path="/dev/x", host_path="/dev/x", type="c", major=1)
    spec = cdi.Spec(
        cdi_version="1.1.0",
        kind="vendor.com/gpu",
        devices=(cdi.Device(name="gpu0", edits=cdi.ContainerEdits(device_nodes=(node,))),),
    )
    assert b'"cdiVersion": "0.3.0"' in emit.emit_json(spec)
    assert b"hostPath" not in emit.emit_json(spec)


GOOD = cdi.ContainerEdits(env=("A=b",))
UNWRITABLE: dict[str, cdi.ContainerEdits] = {
    "mount without bind": cdi.ContainerEdits(mounts=(cdi.Mount(host_path="/a", container_path="/b"),)),
    "relative mount": cdi.ContainerEdits(mounts=(cdi.Mount(host_path="a", container_path="/b", options=("bind",)),)),
    "mount with dots": cdi.ContainerEdits(
        mounts=(cdi.Mount(host_path="/a/../b", container_path="/b", options=("bind",)),)
    ),
    "hook without env": cdi.ContainerEdits(hooks=(cdi.Hook(hook_name="prestart", path="/x"),)),
    "hook path relative": cdi.ContainerEdits(hooks=(cdi.Hook(hook_name="prestart", path="x", env=("A=b",)),)),
    "hook timeout 0": cdi.ContainerEdits(hooks=(cdi.Hook(hook_name="prestart", path="/x", env=("A=b",), timeout=0),)),
    "node relative": cdi.ContainerEdits(device_nodes=(cdi.DeviceNode(path="dev/x"),)),
    "major without type": cdi.ContainerEdits(device_nodes=(cdi.DeviceNode(path="/dev/x", major=1),)),
    "permissions none": cdi.ContainerEdits(device_nodes=(cdi.DeviceNode(path="/dev/x", permissions="none"),)),
    "permissions rr": cdi.ContainerEdits(device_nodes=(cdi.DeviceNode(path="/dev/x", permissions="rr"),)),
}


@pytest.mark.parametrize("name", UNWRITABLE)
def test_what_engines_tolerate_but_should_not_get_is_not_written(name: str) -> None:
    device = cdi.Device(name="gpu0", edits=UNWRITABLE[name])
    spec = cdi.Spec(cdi_version="0.3.0", kind="vendor.com/gpu", devices=(device,))
    assert not list(validate.violations(spec))
    with pytest.raises(errors.DocumentError):
        emit.emit_json(spec)


def test_bad_annotations_and_names_are_not_written() -> None:
    device = cdi.Device(name="x" * 64, annotations={"bad key!": ""}, edits=GOOD)
    spec = cdi.Spec(cdi_version="0.6.0", kind="Vendor/gpu", annotations={"-": ""}, devices=(device,))
    assert not list(validate.violations(spec))
    assert {v.where for v in validate.strict_violations(spec)} == {
        "kind",
        "annotations",
        f"devices[{'x' * 64}]",
        f"devices[{'x' * 64}].annotations",
    }


def test_file_names_follow_the_custom() -> None:
    assert emit.file_name("nvidia.com/gpu") == "nvidia.com-gpu.json"
    assert emit.file_name("nvidia.com/gpu", suffix=".yaml", transient_id="a/b") == "nvidia.com-gpu_a_b.yaml"


def test_differences_are_told_by_name_and_not_by_position() -> None:
    one = cdi.ContainerEdits(env=("A=1", "B=2"), additional_gids=(4,))
    two = cdi.ContainerEdits(env=("B=3", "A=1"), intel_rdt=cdi.IntelRdt())
    found = {(d.action, d.where) for d in difference.diff_edits(one, two)}
    assert found == {("changed", "env[B]"), ("removed", "additionalGids[4]"), ("added", "intelRdt")}
