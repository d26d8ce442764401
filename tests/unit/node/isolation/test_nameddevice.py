"""What stands behind a CDI name that a container asked for: hooks are root's alone, and the specs are read once."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fairlead import errors
from fairlead.node.isolation import edits, nameddevice

pytestmark = pytest.mark.skipif(os.geteuid() != 0, reason="hooks are root's")
_NAME = ("lab.example/thing=one",)


@pytest.fixture
def hook(tmp_path: Path) -> Path:
    made = tmp_path / "bin" / "hook"
    made.parent.mkdir()
    made.write_text("#!/bin/sh\n")
    made.chmod(0o755)
    return made


def _specs(folder: Path, **parts: Any) -> edits.Reading:
    spec = {"cdiVersion": "0.5.0", "kind": "lab.example/thing", "devices": [{"name": "one", "containerEdits": parts}]}
    (folder / "thing.json").write_text(json.dumps(spec))
    return edits.Reading(folder)


def _hooks(*paths: str) -> list[dict[str, str]]:
    return [{"hookName": "createRuntime", "path": path} for path in paths]


def test_a_hook_of_roots_passes_and_one_that_others_write_does_not(tmp_path: Path, hook: Path) -> None:
    specs = _specs(tmp_path, hooks=_hooks(str(hook)))
    nameddevice.check(_NAME, specs)
    for path, mode in ((hook, 0o757), (hook, 0o775), (hook.parent, 0o777)):
        before = path.stat().st_mode
        path.chmod(mode)
        with pytest.raises(errors.Denied) as refused:
            nameddevice.check(_NAME, specs)
        assert (refused.value.reason, str(path) in refused.value.message) == ("DeviceHookUnsafe", True)
        path.chmod(before)
    os.chown(hook, 1000, 1000)
    with pytest.raises(errors.Denied, match="not root's alone"):
        nameddevice.check(_NAME, specs)


def test_a_link_is_judged_by_where_it_leads_and_by_where_it_lies(tmp_path: Path, hook: Path) -> None:
    link = tmp_path / "link"
    link.symlink_to(hook)
    specs = _specs(tmp_path, hooks=_hooks(str(link)))
    nameddevice.check(_NAME, specs)
    hook.chmod(0o777)
    with pytest.raises(errors.Denied):
        nameddevice.check(_NAME, specs)
    hook.unlink()
    with pytest.raises(errors.Denied, match="cannot be looked at"):
        nameddevice.check(_NAME, specs)
    link.unlink()
    link.symlink_to(link)
    with pytest.raises(errors.Denied, match="cannot be looked at"):
        nameddevice.check(_NAME, specs)


def test_what_asks_for_gpus_is_refused_as_a_gpu_is(tmp_path: Path) -> None:
    for parts in ({"env": ["NVIDIA_VISIBLE_DEVICES=all"]}, {"hooks": _hooks("/usr/bin/nvidia-ctk")}):
        with pytest.raises(errors.Denied) as refused:
            nameddevice.check(_NAME, _specs(tmp_path, **parts))
        assert refused.value.reason == "DeviceIsGPU"


def test_what_was_read_is_what_is_judged_and_resolved(tmp_path: Path) -> None:
    specs = _specs(tmp_path, env=["A=b"])
    nameddevice.check(_NAME, specs)
    _specs(tmp_path, env=["NVIDIA_VISIBLE_DEVICES=all"])  # changed since
    nameddevice.check(_NAME, specs)
    assert specs.resolve(_NAME).env == ("A=b",)
