"""YAML as the engines' decoder reads it, row by row as that decoder answered, and nothing else of YAML's powers."""

from __future__ import annotations

import pytest

from fairlead_cdi import errors, parse, yamlfile

SPEC = """---
cdiVersion: 0.6.0
kind: vendor.com/gpu
devices:
- name: {name}
  containerEdits:
    deviceNodes:
    - path: /dev/x
      fileMode: {mode}
{tail}
"""

NAMES = {
    "1:0": "1:0",
    "0:1": "0:1",
    "12:30:45": "12:30:45",
    "yes": "true",
    "n": "false",
    "on": "true",
    "010": "8",
    "0x1f": "31",
    "1e3": "1000",
    "1_000": "1000",
    "2001-01-01": "2001-01-01",
    "0o17": "15",
    "0b11": "3",
    "1.0": "1",
    "1.50": "1.5",
    ".5": "0.5",
    "'1:0'": "1:0",
    "1.1.1": "1.1.1",
    "!!str 010": "010",
    "!!str yes": "yes",
    '"yes"': "yes",
    "08": "8",
}


@pytest.mark.parametrize("written", NAMES)
def test_names_are_read_as_the_engines_do(written: str) -> None:
    data = SPEC.format(name=written, mode=1, tail="").encode()
    assert parse.parse_spec(data, decode=yamlfile.decode_yaml).devices[0].name == NAMES[written]


@pytest.mark.parametrize("written", ["~", "null", "''", "1e6", "=", "-1"])
def test_names_that_engines_refuse_are_refused(written: str) -> None:
    with pytest.raises(errors.DocumentError):
        parse.parse_spec(SPEC.format(name=written, mode=1, tail="").encode(), decode=yamlfile.decode_yaml)


MODES = {
    "0660": 0o660,
    "0o660": 0o660,
    "432": 432,
    "0x1b0": 432,
    "432.0": 432,
    "4.32e2": 432,
    "~": None,
    "1_0": 10,
    "+5": 5,
}


@pytest.mark.parametrize("written", MODES)
def test_numbers_are_read_as_the_engines_do(written: str) -> None:
    spec = parse.parse_spec(SPEC.format(name="gpu0", mode=written, tail="").encode(), decode=yamlfile.decode_yaml)
    assert spec.devices[0].edits.device_nodes[0].file_mode == MODES[written]


@pytest.mark.parametrize("written", ["'432'", "-1", "true", "4.5", "1__x", "[1]"])
def test_numbers_that_engines_refuse_are_refused(written: str) -> None:
    with pytest.raises(errors.DocumentError):
        parse.parse_spec(SPEC.format(name="gpu0", mode=written, tail="").encode(), decode=yamlfile.decode_yaml)


@pytest.mark.parametrize(
    "tail",
    [
        "kind: vendor.com/gpu",
        "1: 2",
        "? [a]\n: b",
        "annotations: &a {x: *a}",
        "annotations: {x: [1]}",
        "annotations: !!python/object/apply:os.system [id]",
        "annotations: {x: !!set {a}}",
        "annotations: {<<: 1}",
        "\t- x",
    ],
)
def test_other_powers_of_yaml_are_refused(tail: str) -> None:
    with pytest.raises(errors.DocumentError):
        parse.parse_spec(SPEC.format(name="gpu0", mode=1, tail=tail).encode(), decode=yamlfile.decode_yaml)


def test_merged_mappings_and_scalar_keys_are_read() -> None:
    tail = "annotations: {<<: {x: ja, z: merged}, x: own, 1: 2, true: no, 1.5: half}"
    spec = parse.parse_spec(SPEC.format(name="gpu0", mode=1, tail=tail).encode(), decode=yamlfile.decode_yaml)
    assert spec.annotations == {"x": "own", "z": "merged", "1": "2", "true": "false", "1.5": "half"}


def test_only_the_first_document_counts() -> None:
    data = SPEC.format(name="gpu0", mode=1, tail="---\nfoo: 1").encode()
    assert parse.parse_spec(data, decode=yamlfile.decode_yaml).kind == "vendor.com/gpu"


def test_nested_aliases_do_not_explode_in_the_error() -> None:
    lines = ["a0: &a0 [x, x]"] + [f"a{n}: &a{n} [*a{n - 1}, *a{n - 1}]" for n in range(1, 40)]
    data = "\n".join([*lines, "devices: *a39"]).encode()
    with pytest.raises(errors.DocumentError) as caught:
        parse.parse_spec(data, decode=yamlfile.decode_yaml)
    assert len(caught.value.message) < 500
