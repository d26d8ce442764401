"""A real `systemctl daemon-reload`: systemd as process 1 of a virtual machine, runc under its cgroup driver, cgroup v2.

The guest has Debian's systemd, two units and nothing of the host's but programs. GPUs are nodes of major 195, which has
no driver there: granted is ENXIO, made by `mknod` EPERM. One boot; `reload/guest.py` reports, tests judge. Nothing here
touches a service manager, a mount or a cgroup of this machine.
"""

from __future__ import annotations

import errno
import json
from pathlib import Path
from typing import Any

import machine
import oci_bundle
import pytest

from fairlead_cdi import emit
from fairlead_cdi import spec as cdi

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

HERE = Path(__file__).parent / "reload"
UNPACKED = machine.KERNEL.parent / "systemd"
NAMES = ("lib/systemd/systemd", "bin/systemctl", "lib/systemd/systemd-executor")
"""Below /usr, or the root in Debian 12; the last one since systemd 255."""
GPUS = 3
GIVEN, TAKEN, NOT_THERE = [errno.ENXIO] * 2, [errno.EPERM] * 2, [errno.ENOENT, errno.EPERM]
"""What `open()` says by name and by number."""
UNITS = {
    "fairlead.target": "[Unit]\nDefaultDependencies=no\nWants=fairlead.service\n",
    "fairlead.service": "[Unit]\nDefaultDependencies=no\n"
    "[Service]\nExecStart=/start\nStandardOutput=tty\nStandardError=tty\nTTYPath=/dev/ttyS0\n",
}
PROBE = r"""
#include <errno.h>
#include <fcntl.h>
#include <stdio.h>
#include <sys/stat.h>
#include <sys/sysmacros.h>
#include <unistd.h>
static int outcome(const char *path) { int file = open(path, O_RDWR); return file < 0 ? errno : close(file); }
int main(int count, char **arguments) {
  if (count == 1) return pause();
  for (int i = 0; i < 3; i++) {
    char path[32];
    snprintf(path, sizeof path, "/dev/nvidia%d", i);
    int by_name = outcome(path);
    unlink("/tmp/made");
    int made = mknod("/tmp/made", S_IFCHR | 0666, makedev(195, i)) ? errno : 0;
    printf("%s[%d, %d]", i ? ", " : "[", by_name, made ? -made : outcome("/tmp/made"));
  }
  puts("]");
  return 0;
}
"""


def node(name: str, minor: int) -> cdi.DeviceNode:
    return cdi.DeviceNode(path=f"/dev/{name}", type="c", major=195, minor=minor, permissions="rw")


def cdi_spec() -> bytes:
    devices = [
        cdi.Device(name=str(i), edits=cdi.ContainerEdits(device_nodes=(node(f"nvidia{i}", i),))) for i in range(GPUS)
    ]
    common = cdi.ContainerEdits(device_nodes=(node("nvidiactl", 255),))
    return emit.emit_json(cdi.Spec(cdi_version="", kind="nvidia.com/gpu", devices=tuple(devices), edits=common))


def runtime_spec() -> bytes:
    document = json.loads(oci_bundle.spec_template())
    document["process"].update(terminal=False, args=["/bin/probe"])
    for part in document["process"]["capabilities"].values():
        part.append("CAP_MKNOD")
    document["root"] = {"path": "/rootfs", "readonly": False}
    return json.dumps(document).encode()


def systemd(tree: Path) -> list[Path]:
    """Its programs below a root, process 1 first; none where it is not there."""
    places = ([tree / top / name for top in ("usr", "")] for name in NAMES)
    found = [next((path for path in each if path.exists()), None) for each in places]
    return [path for path in found if path is not None] if found[0] and found[1] else []


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the guest reported, by name."""
    machine.require()
    tree = next((path for path in (Path("/"), UNPACKED) if systemd(path)), None)
    if tree is None:
        pytest.skip(f"needs systemd, its own or in {UNPACKED}: run tests/system/setup.sh as root")
    folder = tmp_path_factory.mktemp("machine")
    probe = oci_bundle.compile_c(PROBE, folder / "probe", "-static")
    files = {
        **{f"etc/systemd/system/{name}": text.encode() for name, text in UNITS.items()},
        "etc/machine-id": b"0123456789abcdef0123456789abcdef\n",
        "etc/cdi/gpus.json": cdi_spec(),
        "etc/runtime-spec.json": runtime_spec(),
        "rootfs/bin/probe": probe.read_bytes(),
        "rootfs/tmp/.keep": b"",
    }
    found = systemd(tree)
    contents = machine.Contents(
        guest=HERE / "guest.py",
        modules=(),
        programs=[*map(str, found), "/usr/sbin/runc"],
        tree=tree,
        files=files,
        packages=("grpc", "google", "tomlkit"),
        first=f"/{found[0].relative_to(tree)} --unit=fairlead.target --log-level=warning --log-target=console",
    )
    initramfs = machine.pack(folder / "initramfs", contents)
    try:
        return machine.boot(folder, initramfs, limit_s=480)
    finally:
        initramfs.unlink()


@pytest.fixture
def untold(told: dict[str, Any]) -> dict[str, Any]:
    """The same, where runc did not tell the unit of a GPU that has no link: 1.1.3 to 1.1.6."""
    if knows(told["bare started"], 0):
        pytest.skip("this runc tells systemd of devices that have no link in /dev/char")
    return told


def knows(state: dict[str, Any], minor: int) -> bool:
    return f"DeviceAllow=/dev/char/195:{minor} rw" in state["unit"].splitlines()


def narrow(state: dict[str, Any]) -> list[str]:
    """What an audit calls too narrow; it must call nothing anything else."""
    findings = state["audit"]["report"]["findings"]
    assert {one["verdict"] for one in findings} <= {"too narrow"}
    assert state["audit"]["code"] == (4 if findings else 0), state["audit"]["err"]
    return [one["subject"] for one in findings]


def test_what_was_given_is_open_and_nothing_else(told: dict[str, Any]) -> None:
    started = told["bare started"]
    assert started["look"] == [GIVEN, NOT_THERE, NOT_THERE], told["bare run"]
    assert narrow(started) == []
    assert "DevicePolicy=strict" in started["unit"]


def test_a_reload_takes_the_gpus_that_the_unit_was_not_told_of(told: dict[str, Any]) -> None:
    left = GIVEN if knows(told["bare started"], 0) else TAKEN
    assert told["bare reloaded"]["look"] == [left, NOT_THERE, NOT_THERE]


def test_runc_leaves_out_what_has_no_link_when_the_container_starts(untold: dict[str, Any]) -> None:
    assert "skipping device /dev/char/195:0 for systemd" in untold["bare run"]["run"]["said"]
    assert untold["links came late"]["look"] == [TAKEN, NOT_THERE, NOT_THERE]


def test_the_audit_names_what_a_reload_took_and_mends_it(untold: dict[str, Any]) -> None:
    assert narrow(untold["bare reloaded"]) == ["c 195:0 rw", "c 195:255 rw"]
    mended = untold["bare repaired"]
    assert mended["audit"]["report"]["repaired"] == ["allowed c 195:0 rw", "allowed c 195:255 rw"]
    assert narrow(mended) == []
    assert mended["look"] == [GIVEN, NOT_THERE, NOT_THERE]


def test_a_reload_adds_systemds_program_and_a_repair_leaves_one(untold: dict[str, Any]) -> None:
    assert untold["programs"] == [1, 2, 1]


def test_a_repair_holds_until_the_next_reload(untold: dict[str, Any]) -> None:
    assert untold["bare reloaded again"]["look"] == [TAKEN, NOT_THERE, NOT_THERE]


def test_with_links_from_the_start_a_reload_takes_nothing(told: dict[str, Any]) -> None:
    assert told["links"]["code"] == 0
    assert {knows(told["linked started"], minor) for minor in (1, 255)} == {True}
    for name in ("linked started", "linked reloaded"):
        assert told[name]["look"] == [NOT_THERE, GIVEN, NOT_THERE], name
    assert narrow(told["linked reloaded"]) == []


def test_systemd_itself_needs_no_links(told: dict[str, Any]) -> None:
    assert told["links gone"]["look"] == [NOT_THERE, GIVEN, NOT_THERE]


def test_what_the_unit_is_told_afterwards_lasts(told: dict[str, Any]) -> None:
    assert told["property"]["code"] == 0, told["property"]["said"]
    assert knows(told["told"], 0)
    for name in ("told", "told and reloaded"):
        assert told[name]["look"] == [GIVEN, NOT_THERE, NOT_THERE], name
    assert narrow(told["told and reloaded"]) == []


def test_a_gpu_attached_live_is_taken_by_a_reload_and_given_back_by_a_repair(told: dict[str, Any]) -> None:
    assert told["attached"]["look"] == [NOT_THERE, GIVEN, GIVEN]
    assert told["attached and reloaded"]["look"] == [NOT_THERE, GIVEN, TAKEN]
    assert narrow(told["attached and reloaded"]) == ["c 195:2 rw"]
    mended = told["attached and repaired"]
    assert mended["audit"]["report"]["repaired"] == ["allowed c 195:2 rw"]
    assert mended["look"] == [NOT_THERE, GIVEN, GIVEN]


def test_runc_update_takes_it_too_and_the_audit_says_so(told: dict[str, Any]) -> None:
    assert told["updated"]["code"] == 0
    assert told["updated"]["look"] == [NOT_THERE, GIVEN, TAKEN]
    assert narrow(told["updated"]) == ["c 195:2 rw"]
