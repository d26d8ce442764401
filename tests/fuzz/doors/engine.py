"""Doors through which engines' own configuration comes, and our records of what we changed in it."""

from __future__ import annotations

import json
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any, Final

from fairlead.node.engines import files as enginefiles
from fairlead.node.engines import records
from fairlead.plan.engineconfig.model import Location, Request
from tests.fuzz import hostile, specimen
from tests.fuzz.doors.text import OURS, plain
from tests.fuzz.harness import Door

_RUNTIME: Final = {
    "runtime_type": "io.containerd.runc.v2",
    "pod_annotations": ["example.com/*"],
    "container_annotations": ["example.com/*"],
    "options": {"BinaryName": "/usr/bin/runc", "SystemdCgroup": True},
}


def _containerd(version: int, section: str) -> dict[str, Any]:
    return {
        "version": version,
        "root": "/var/lib/containerd",
        "imports": ["conf.d/*.toml"],
        "disabled_plugins": [],
        "plugins": {
            section: {
                "enable_cdi": False,
                "cdi_spec_dirs": ["/etc/cdi"],
                "containerd": {"default_runtime_name": "runc", "runtimes": {"runc": _RUNTIME}},
            }
        },
    }


DAEMON: Final = {
    "default-runtime": "custom",
    "runtimes": {
        "custom": {"path": "/usr/bin/crun", "runtimeArgs": ["--x"]},
        "v2": {"runtimeType": "io.containerd.runc.v2", "options": {"BinaryName": "/usr/bin/runc"}},
    },
    "features": {"cdi": False},
    "cdi-spec-dirs": ["/etc/cdi"],
    "log-driver": "json-file",
}
WITH_TYPE: Final = {**DAEMON, "default-runtime": "v2"}
CRIO: Final = {
    "crio": {
        "runtime": {
            "default_runtime": "crun",
            "cdi_spec_dirs": ["/etc/cdi"],
            "runtimes": {
                "crun": {"runtime_path": "/usr/bin/crun", "runtime_type": "oci", "allowed_annotations": ["a"]}
            },
        }
    }
}
CONTAINERS: Final = {
    "engine": {"runtime": "crun", "runtimes": {"crun": ["/usr/bin/crun"]}, "cdi_spec_dirs": ["/etc/cdi"]},
    "containers": {"annotations": ["a=b"]},
}


def _engine(name: str, release: tuple[int, ...]) -> Callable[[bytes, Path], None]:
    """Configure the engine, look, take it back: every byte is what it was."""

    def feed(data: bytes, folder: Path) -> None:
        base = folder / "engine"
        shutil.rmtree(base, ignore_errors=True)
        base.mkdir()
        config = base / "config"
        config.write_bytes(data)
        recorded = records.ChangeRecords(base / "state")
        place = Location(config=str(config), version=release)
        wish = Request(folder=str(base / "lib"), is_default=True)
        planned, _ = enginefiles.configure(name, place, wish, recorded=recorded, is_dry=True)
        if not all(os.path.realpath(step.path).startswith(f"{base}/") for step in planned.steps):
            return  # their file imports a folder of this host, and ours would go there
        enginefiles.configure(name, place, wish, recorded=recorded)
        enginefiles.review(name, str(config), recorded=recorded)
        enginefiles.unconfigure(name, str(config), recorded=recorded)
        if config.read_bytes() != data:
            raise AssertionError("not what it was before us")

    return feed


def _record_document() -> dict[str, Any]:
    return {
        "schema": 1,
        "engine": "containerd",
        "place": {"config": "/CONFIG", "drop_in": "", "version": [1, 7]},
        "request": {"folder": "/usr/lib/x", "name": "fairlead", "alias": "nvidia", "is_default": False},
        "entries": [
            {"path": "/CONFIG", "original": "eA==", "digest": "0" * 64, "changes": [{"key": "imports", "value": "x"}]},
            {"path": "/CONFIG.d", "original": None, "digest": "0" * 64, "changes": [{"path": ["a"], "value": "x"}]},
        ],
        "folders": [],
    }


def _record(data: bytes, folder: Path) -> None:
    base = folder / "record"
    shutil.rmtree(base, ignore_errors=True)
    base.mkdir()
    config = str(base / "config.toml")
    path = base / f"containerd-{records.digest(config.encode())[:12]}.json"
    path.write_bytes(data.replace(b"/CONFIG", config.encode()))
    recorded = records.ChangeRecords(base)
    if recorded.load("containerd", config) is not None:
        enginefiles.unconfigure("containerd", config, recorded=recorded, is_dry=True)
        enginefiles.review("containerd", config, recorded=recorded)


def _toml(name: str, engine: str, release: tuple[int, ...], document: dict[str, Any]) -> Door:
    return Door(
        name=name,
        opened=plain(_engine(engine, release)),
        specimens=(("config", document),),
        encode=specimen.as_toml,
        refusals=OURS,
        sample=80,
    )


DOORS: Final = (
    _toml("containerd 1, config.toml", "containerd", (1, 7), _containerd(2, "io.containerd.grpc.v1.cri")),
    _toml("containerd 2, config.toml", "containerd", (2, 2), _containerd(3, "io.containerd.cri.v1.runtime")),
    _toml("crio.conf", "crio", (1, 30), CRIO),
    _toml("containers.conf", "podman", (5, 4), CONTAINERS),
    Door(
        name="daemon.json",
        opened=plain(_engine("docker", (26, 0))),
        specimens=(("path", DAEMON), ("type", WITH_TYPE)),
        values=hostile.JSON_VALUES,
        refusals=OURS,
    ),
    Door(
        name="records of changed engine files",
        opened=plain(_record),
        specimens=(("record", json.loads(json.dumps(_record_document()))),),
        refusals=OURS,
    ),
)
