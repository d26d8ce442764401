"""Devices of the setting `api.devices` that no CDI spec defines: people are let ask for them, and nothing starts."""

from __future__ import annotations

import json
from pathlib import Path

from fairlead.cli.doctor import specs


def _said(folder: Path, *listed: str) -> list[str]:
    device = {"name": "full", "containerEdits": {"env": ["A=1"]}}
    text = json.dumps({"cdiVersion": "0.5.0", "kind": "lab.example/thing", "devices": [device]})
    (folder / "lab.json").write_text(text)
    found = specs.collect(
        engine="podman",
        ceiling="",
        folders=[str(folder)],
        own_folder=folder,
        wanted=(),
        ours=(),
        listed=listed,
        silicon_root=folder,
    )
    return [one.what for one in specs.check(found, expects=True) if "api.devices" in one.what]


def test_what_no_spec_defines_is_named_with_the_setting(tmp_path: Path) -> None:
    (said,) = _said(tmp_path, "lab.example/thing=full", "lab.example/thing=gone", "lab.example/other=*")
    assert "lab.example/thing=gone, lab.example/other=*" in said
    assert str(tmp_path) in said


def test_what_is_defined_is_not(tmp_path: Path) -> None:
    assert _said(tmp_path, "lab.example/thing=full", "lab.example/thing=*") == []
    assert _said(tmp_path) == []
