"""NVIDIA's plugin file: what works there works here, and every wrong field is named by its path."""

from __future__ import annotations

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.wire.nvidia import pluginconfig, pluginreader
from fairlead.wire.nvidia.pluginconfig import DeviceChoice, NamingRule, PluginConfig, Replicas, Sharing

FULL = """
version: v1
flags:
  migStrategy: mixed
  failOnInitError: false
  nvidiaDriverRoot: /run/nvidia/driver
  plugin:
    passDeviceSpecs: true
    deviceListStrategy: [envvar, cdi-cri]
    deviceIDStrategy: index
  gfd:
    sleepInterval: 60s
resources:
  gpus:
  - {pattern: "*A100*", name: a100}
  mig:
  - {pattern: "1g.*", name: nvidia.com/mig-small}
sharing:
  timeSlicing:
    renameByDefault: true
    failRequestsGreaterThanOne: true
    resources:
    - {name: nvidia.com/gpu, replicas: 10}
    - {name: a100, replicas: 4, devices: [0, "0:1", GPU-b1028956-cfa2-0990-bf4a-5da9abb51763], rename: quarter}
    - {name: b, replicas: 3, devices: 2}
imex: {channelIDs: [0], required: false}
"""


def problems(text: str) -> tuple[str, ...]:
    return pluginreader.read(text)[1]


def test_a_file_with_every_kind_of_field_is_read() -> None:
    config = pluginreader.parse(FULL, source="f")
    assert config.flags == {
        "migStrategy": "mixed",
        "failOnInitError": False,
        "nvidiaDriverRoot": "/run/nvidia/driver",
        "plugin.passDeviceSpecs": True,
        "plugin.deviceListStrategy": ("envvar", "cdi-cri"),
        "plugin.deviceIDStrategy": "index",
        "gfd.sleepInterval": "60s",
    }
    assert config.gpus == (NamingRule(pattern="*A100*", name="nvidia.com/a100"),)
    assert config.mig == (NamingRule(pattern="1g.*", name="nvidia.com/mig-small"),)
    listed = DeviceChoice(names=("0", "0:1", "GPU-b1028956-cfa2-0990-bf4a-5da9abb51763"))
    assert config.time_slicing == Sharing(
        rename_by_default=True,
        fails_above_one=True,
        resources=(
            Replicas(name="nvidia.com/gpu", replicas=10),
            Replicas(name="nvidia.com/a100", replicas=4, devices=listed, rename="nvidia.com/quarter"),
            Replicas(name="nvidia.com/b", replicas=3, devices=DeviceChoice(count=2)),
        ),
    )
    assert config.imex_channels == (0,)


def test_what_is_written_is_read_back() -> None:
    config = pluginreader.parse(FULL, source="f")
    assert pluginreader.parse(pluginconfig.emit(config), source="g") == config


_BOMB = "\n".join(["x0: &a0 [1, 1]", *(f"x{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 31))])
"""Thirty lines of YAML that are a value of 2^31 numbers."""


@pytest.mark.parametrize("text", ["", "# nothing\n", "version: v1", 'version: ""', "{}", "---\nversion: v1\n", "null"])
def test_a_file_that_says_nothing_asks_for_nothing(text: str) -> None:
    assert pluginreader.read(text) == (PluginConfig(), ())


def test_json_with_tabs_is_read() -> None:
    text = json.dumps({"version": "v1", "flags": {"migStrategy": "single"}}, indent="\t")
    assert pluginreader.parse(text, source="f").flags == {"migStrategy": "single"}


def test_keys_are_read_whatever_their_case_as_go_does() -> None:
    assert pluginreader.parse("flags: {migstrategy: mixed}", source="f").flags == {"migStrategy": "mixed"}


def test_mps_refuses_requests_above_one_unless_told_otherwise() -> None:
    text = "sharing: {mps: {resources: [{name: gpu, replicas: 2}]}}"
    found = pluginreader.parse(text, source="f").mps
    assert found is not None
    assert found.fails_above_one
    relaxed = text.replace("mps: {", "mps: {failRequestsGreaterThanOne: false, ")
    other = pluginreader.parse(relaxed, source="f").mps
    assert other is not None
    assert not other.fails_above_one


@pytest.mark.parametrize(
    ("text", "path", "word"),
    [
        ("flag: {}", "flag", 'did you mean "flags"?'),
        ("flags: {migStrategi: none}", "flags.migStrategi", 'did you mean "migStrategy"?'),
        ("flags: {plugin: {passDeviceSpec: true}}", "flags.plugin.passDeviceSpec", '"passDeviceSpecs"'),
        ("flags: {migStrategy: all}", "flags.migStrategy", "offered: none, single, mixed"),
        ("flags: {plugin: {passDeviceSpecs: 1}}", "flags.plugin.passDeviceSpecs", "true or false"),
        ("flags: {plugin: {deviceListStrategy: [cdi]}}", "flags.plugin.deviceListStrategy", '"cdi" is not offered'),
        ("flags: []", "flags", "a map"),
        ("version: v2", "version", '"v1"'),
        ("resources: {gpus: [{pattern: x}]}", "resources.gpus[0].name", "missing"),
        ("resources: {gpus: [{name: x}]}", "resources.gpus[0].pattern", "missing"),
        ("resources: [{name: nvidia.com/gpu}]", "resources", "a map with gpus, mig"),
        ("sharing: {timeSlicing: {}}", "sharing.timeSlicing.resources", "missing"),
        ("sharing: {timeSlicing: {replicas: 4}}", "sharing.timeSlicing.replicas", "sharing.timeSlicing.resources[]"),
        ("sharing: {mps: {resources: [{name: gpu}]}}", "sharing.mps.resources[0].replicas", "missing"),
        ("sharing: {mps: {resources: [{name: gpu, replicas: 1}]}}", "sharing.mps.resources[0].replicas", "from 2"),
        ("sharing: {mps: {resources: [{name: gpu, replicas: true}]}}", "sharing.mps.resources[0].replicas", "true"),
        (
            "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: some}]}}",
            "sharing.timeSlicing.resources[0].devices",
            '"all", a count, or a list',
        ),
        ("fairlead: {claims: {devices: ['0000:81:00']}}", "fairlead.claims.devices", "in quotes"),
        (
            "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: ['0000:81:00.0']}]}}",
            "sharing.timeSlicing.resources[0].devices",
            "an index",
        ),
        (
            "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: ['../x']}]}}",
            "sharing.timeSlicing.resources[0].devices",
            "an index",
        ),
        (
            f"{_BOMB}\nsharing: {{timeSlicing: {{resources: [{{name: gpu, replicas: 2, devices: [*a30]}}]}}}}",
            "sharing.timeSlicing.resources[0].devices",
            "… is not an index",
        ),
        (
            f"sharing: {{timeSlicing: {{resources: [{{name: {'x' * 60}, replicas: 2}}]}}}}",
            "sharing.timeSlicing.resources[0].name",
            "at most 63",
        ),
        (
            "sharing: {timeSlicing: {resources: [{name: 'a b', replicas: 2}]}}",
            "sharing.timeSlicing.resources[0].name",
            "letters",
        ),
        ("flags: {plugin: {deviceListStrategy: []}}", "flags.plugin.deviceListStrategy", "a text or a list of texts"),
        ('flags: {plugin: {nvidiaCTKPath: "a\\0b"}}', "flags.plugin.nvidiaCTKPath", "without NUL"),
        (
            "sharing: {timeSlicing: {strategy: x, resources: [{name: gpu, replicas: 2}]}}",
            "sharing.timeSlicing.strategy",
            "empty",
        ),
        (
            "sharing: {timeSlicing: {resources: [{name: gpu, replicas: 2, devices: 0}]}}",
            "sharing.timeSlicing.resources[0].devices",
            "a count from 1",
        ),
        (
            "sharing: {timeSlicing: {resources: [{name: a.kubernetes.io/gpu, replicas: 2}]}}",
            "sharing.timeSlicing.resources[0].name",
            "Kubernetes' own",
        ),
        ("sharing: {timeSlicing: {resources: 4}}", "sharing.timeSlicing.resources", "a list"),
        ("imex: {channelIDs: [1]}", "imex.channelIDs", "[] or [0]"),
        ("fairlead: {sharing: {differentGPU: true}}", "fairlead.sharing.differentGPU", '"differentGPUs"'),
    ],
)
def test_a_wrong_field_is_named_by_its_path_with_what_was_meant(text: str, path: str, word: str) -> None:
    found = problems(text)
    assert any(one.startswith(f"{path}:") and word in one for one in found), found


def test_a_file_that_is_too_large_is_refused_unread() -> None:
    with pytest.raises(errors.FairleadError, match=f"the limit is {pluginreader.LARGEST_BYTES}"):
        pluginreader.parse("#" * (pluginreader.LARGEST_BYTES + 1), source="f")


def test_every_problem_of_a_file_is_told_at_once() -> None:
    text = "version: v2\nflag: {}\nsharing: {timeSlicing: {resources: [{nam: x, replicas: 1}]}}"
    assert len(problems(text)) == 5


def test_a_configmap_is_answered_with_the_files_in_it() -> None:
    text = "kind: ConfigMap\ndata: {any: 'version: v1'}"
    assert problems(text) == ('it is a ConfigMap: give one of the files in its data ("any")',)


@pytest.mark.parametrize(
    "text", ["a: b: c", "a: 1\na: 2", "version: v1\n---\nversion: v1", "[" * 500, b"\xff\xfe", "x"]
)
def test_what_is_not_one_map_is_refused(text: str | bytes) -> None:
    with pytest.raises(errors.Invalid, match="f: "):
        pluginreader.parse(text, source="f")


@given(
    st.recursive(
        st.none() | st.booleans() | st.integers() | st.text(),
        lambda x: (
            st.lists(x)
            | st.dictionaries(
                st.sampled_from(
                    ["version", "flags", "plugin", "sharing", "mps", "timeSlicing", "resources", "devices", "x"]
                ),
                x,
            )
        ),
    )
)
def test_no_document_makes_the_reader_fail(value: object) -> None:
    config, found = pluginreader.read(json.dumps(value))
    if not found:
        assert pluginreader.parse(pluginconfig.emit(config), source="again") == config


def test_a_document_that_is_a_part_of_itself_is_refused_like_any_other() -> None:
    with pytest.raises(errors.Invalid, match=r"\[\[\[… is not a map"):
        pluginreader.parse("&a [*a]", source="f")
