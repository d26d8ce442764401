"""mig-parted's files: what is read, what is refused with its path, and the round trip."""

from __future__ import annotations

import json

import pytest

from fairlead import errors
from fairlead.wire.nvidia import migparted
from fairlead_cdi import yamltext

FILE = b"""
version: v1
mig-configs:
  all-disabled:
  - devices: all
    mig-enabled: false
  custom:
  - device-filter: ["0x233010DE", "0x20B010DE:0x134F10DE"]
    devices: [0, 2]
    mig-enabled: true
    mig-devices:
      "1g.10gb": 2
      1c.3g.40gb: 1
  - devices: [1]
    mig-enabled: false
"""


def test_a_file_is_read_as_written() -> None:
    found = migparted.parse_config(FILE, source="f.yaml").configs["custom"]
    assert found[0].indexes == (0, 2)
    assert found[0].devices == {"1g.10gb": 2, "1c.3g.40gb": 1}
    assert found[1] == migparted.Entry(indexes=(1,), is_enabled=False)


def test_filters_compare_numbers_and_a_subsystem_only_where_given() -> None:
    first = migparted.parse_config(FILE, source="f").configs["custom"][0]
    assert first.matches(0, "0x233010de:0x16c110de")
    assert first.matches(2, "0x20B010DE:0x134f10de")
    assert not first.matches(2, "0x20B010DE:0x111110DE")
    assert not first.matches(1, "0x233010DE")


@pytest.mark.parametrize(
    ("change", "path"),
    [
        ((b"mig-enabled: true", b"mig-enabeld: true"), "mig-configs.custom[0].mig-enabeld is not a field"),
        ((b"version: v1", b"version: v2"), "version is 'v2'"),
        ((b"devices: [0, 2]", b"devices: some"), "mig-configs.custom[0].devices"),
        ((b"devices: [0, 2]", b"devices: [true]"), "mig-configs.custom[0].devices"),
        ((b'"1g.10gb": 2', b'"1g.10gb": -2'), "mig-configs.custom[0].mig-devices.1g.10gb"),
        ((b"0x233010DE", b"H100"), "device-filter"),
        ((b"mig-enabled: true", b"mig-enabled: false"), "has devices while mig-enabled is false"),
        ((b"mig-configs:", b"mig-configs: 3\nx:"), "x is not a field"),
        ((b"version: v1", b"version: v1\nversion: v1"), "given twice"),
        ((b"version: v1", b"\x00"), "YAML"),
        ((b"version: v1", b"version: v1\n#" + b"x" * migparted.LARGEST_BYTES), "is larger than"),
        ((FILE, b"version: v1\nmig-configs: [custom]"), "mig-configs is not a table of configurations"),
        ((FILE, b"[]"), "is not a table"),
        ((b"  custom:", b'  "":'), "mig-configs has a configuration named ''"),
        ((FILE, b"version: v1\nmig-configs: {custom: 3}"), "mig-configs.custom is not a list of entries"),
        ((b"mig-enabled: true", b"mig-enabled: 1"), "mig-configs.custom[0].mig-enabled is 1"),
        ((b"devices: [1]\n    ", b""), "mig-configs.custom[1] has no devices"),
        ((b'"1g.10gb": 2', b'"1g\\n": 2'), "has a profile named '1g\\n'"),
        (
            (FILE, b"version: v1\nmig-configs: {a: [{devices: all, mig-enabled: true, mig-devices: [x]}]}"),
            "of profiles",
        ),
    ],
)
def test_what_is_wrong_is_named_with_its_path(change: tuple[bytes, bytes], path: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        migparted.parse_config(FILE.replace(*change), source="f.yaml")
    assert path in caught.value.message
    assert "f.yaml" in caught.value.message


def test_emitted_files_read_back_equal() -> None:
    found = migparted.parse_config(FILE, source="f")
    document = migparted.emit_config(found)
    assert migparted.parse_config(json.dumps(document).encode(), source="f") == found
    assert migparted.parse_config(yamltext.dump(document).encode(), source="f") == found


@pytest.mark.parametrize(("written", "chosen"), [("off", "off"), ("off", "false"), ('"off"', "off"), ("on", "on")])
def test_a_configuration_that_yaml_takes_for_a_boolean_is_found_by_the_word_in_the_file(
    written: str, chosen: str
) -> None:
    text = f"version: v1\nmig-configs: {{{written}: [{{devices: all, mig-enabled: false}}]}}\n"
    found = migparted.parse_config(text.encode(), source="file")
    assert found.find(chosen) == (migparted.Entry(is_enabled=False),)
    assert found.find("other") is None
