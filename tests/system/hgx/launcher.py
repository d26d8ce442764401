"""A container in the node that runs a tenant's machine, as a launcher's pod does: runc, and the nodes that it is given.

`bundle` writes what an engine would hand to its runtime. What gives a container its devices is the caller's: a list of
nodes here, a CDI file where Fairlead is shown.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

import oci_bundle
from hgx import tenant
from hgx.node import Node

PROGRAMS = ("/usr/sbin/runc",)
"""What `hgx_node` must pack."""
_FOLDER = "/run/bundles"


def bundle(node: Node, name: str, line: str, *, devices: Sequence[str] = ()) -> str:
    """Write a bundle whose process is a line of shell; returns its folder, for `run`.

    Args: devices: nodes that it may use, besides /dev/kvm.
    """
    folder = f"{_FOLDER}/{name}"
    node.output(f"mkdir -p {folder}/rootfs/bin {folder}/rootfs{tenant.MOUNTED}")
    config = _config(line, node.call("facts", "numbers", ["/dev/kvm", *devices]))
    node.call("facts", "write_text", f"{folder}/config.json", json.dumps(config))
    return folder


def run(folder: str) -> str:
    """Return the line of shell that runs a bundle to its end, as the container of its folder's name."""
    return f"exec {PROGRAMS[0]} run --no-pivot --bundle {folder} {folder.rpartition('/')[2]}"


def _config(line: str, numbers: dict[str, list[int]]) -> dict[str, Any]:
    config: dict[str, Any] = json.loads(oci_bundle.spec_template())
    process = config["process"]
    process.update(args=["/bin/sh", "-c", line], terminal=False)
    process["rlimits"] = [{"type": "RLIMIT_MEMLOCK", "hard": 1 << 40, "soft": 1 << 40}]  # VFIO counts what it pins
    for part in process["capabilities"].values():
        part.append("CAP_MKNOD")  # as engines give it: the device cgroup decides
    for shared in ("/bin", str(tenant.MOUNTED)):
        config["mounts"].append({"destination": shared, "type": "bind", "source": shared, "options": ["rbind", "ro"]})
    config["root"]["readonly"] = False
    for path, (major, minor) in numbers.items():
        config["linux"].setdefault("devices", []).append({"path": path, "type": "c", "major": major, "minor": minor})
        rule = {"allow": True, "type": "c", "major": major, "minor": minor, "access": "rw"}
        config["linux"]["resources"]["devices"].append(rule)
    return config
