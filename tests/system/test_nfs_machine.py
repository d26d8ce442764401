"""A tenancy's NFS export on a real kernel with a real NFS server: a virtual machine, which has both.

One boot; `nfs/guest.py` reports, tests judge. A container of podman has a volume of the export there, with the users of
its tenancy; `fairlead run` itself is tried on disks (`test_tenant_volumes.py`).
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import machine
import oci_bundle
import pytest

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]

TREE = Path.home() / ".cache/fairlead/debian/nfs"
PROGRAMS = ("usr/sbin/rpc.nfsd", "usr/sbin/rpc.mountd", "usr/sbin/exportfs", "sbin/mount.nfs")
HOSTS = b"127.0.0.1 localhost nas\n"
EXPORTS = b"/srv/red 127.0.0.1(rw,fsid=0,no_subtree_check,root_squash,insecure)\n"
NETCONFIG = b"""udp tpi_clts v inet udp - -
tcp tpi_cots_ord v inet tcp - -
local tpi_cots_ord - loopback - - -
"""
CONTAINERS = ("/usr/bin/podman", "/usr/bin/conmon", "/usr/bin/crun")
STORAGE = b"""[storage]
driver="vfs"
runroot="/run/containers"
graphroot="/var/lib/containers"
"""
ENGINE = b"""[engine]
no_pivot_root=true
cgroup_manager="cgroupfs"
events_logger="none"
[containers]
seccomp_profile="unconfined"
"""
NOBODY, TENANT = 65534, 1879048192 + 1000


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """What the guest reported, by name."""
    machine.require()
    oci_bundle.require("podman", "conmon")
    if not TREE.is_dir():
        pytest.skip(f"needs Debian's NFS programs in {TREE}: run tests/system/setup.sh as root")
    folder = tmp_path_factory.mktemp("machine")
    nfs = [str(TREE / name) for name in PROGRAMS]
    contents = machine.Contents(
        guest=Path(__file__).parent / "nfs/guest.py",
        modules=("nfsd", "nfsv4"),
        programs=("/usr/bin/mount", *CONTAINERS, *map(str, machine.SITE.glob("_cffi_backend*.so")), *nfs),
        files={
            "etc/exports": EXPORTS,
            "etc/hosts": HOSTS,
            "etc/netconfig": NETCONFIG,
            "etc/services": b"nfs 2049/tcp\n",
            "etc/protocols": b"tcp 6 TCP\nudp 17 UDP\n",
            "etc/passwd": b"root:x:0:0::/root:/bin/sh\nnobody:x:65534:65534::/:/bin/false\n",
            "etc/group": b"root:x:0:\nnogroup:x:65534:\n",
            "etc/containers/policy.json": b'{"default": [{"type": "insecureAcceptAnything"}]}',
            "etc/containers/registries.conf": b"",
            "etc/containers/storage.conf": STORAGE,
            "etc/containers/containers.conf": ENGINE,
        },
        tree=TREE,
        packages=("cryptography", "google"),
    )
    initramfs = machine.pack(folder / "initramfs", contents)
    try:
        return machine.boot(folder, initramfs, limit_s=600)
    finally:
        initramfs.unlink()


def test_a_server_that_is_not_there_is_said_and_nothing_is_touched(told: dict[str, Any]) -> None:
    assert told["before"]["reason"] == "ExportSilent"
    assert told["not mounted"]["reason"] == "ExportNotMounted"


def test_an_export_is_mounted_without_devices_and_privileges(told: dict[str, Any]) -> None:
    assert told["ensured"].get("reason") is None, told["server"]
    assert told["mounted"]["found"] == ["nfs4", "nas:/"]
    (line,) = told["mounted"]["lines"]
    assert {"nosuid", "nodev"} <= set(line.split()[5].split(","))
    assert told["checked"]["value"] is True


def test_a_service_killed_at_the_mount_finds_it(told: dict[str, Any]) -> None:
    assert told["killed while mounting"] == -9
    assert len(told["mounted"]["lines"]) == 1


def test_a_volume_is_a_folder_of_the_export_and_the_tenants_files_are_the_tenants(told: dict[str, Any]) -> None:
    assert told["written"] == ""
    assert told["on the server"] == {"mine": [TENANT, "of red"]}


def test_root_of_the_machine_is_nobody_on_the_server(told: dict[str, Any]) -> None:
    assert told["folder's owner"] == told["root's owner"] == NOBODY


def test_a_device_on_the_export_cannot_be_opened(told: dict[str, Any]) -> None:
    assert told["device"] == "Permission denied"


def test_a_server_that_stops_is_known_before_a_file_is_asked_for(told: dict[str, Any]) -> None:
    assert told["silent"]["reason"] == told["silent ensure"]["reason"] == "ExportSilent"
    assert told["silent"]["seconds"] < 10
    assert told["back"].get("value") is True


def test_what_ends_leaves_the_servers_files_alone_and_a_kill_on_the_way_is_made_up_for(told: dict[str, Any]) -> None:
    assert told["killed while unmounting"] == -9
    assert told["unmounted"] == []
    assert (told["released"].get("reason"), told["place"]) == (None, False)
    assert told["kept on the server"] == ["mine", "null", "roots", "theirs"]
    assert told["found again"] == "of red"


def test_a_container_of_podmans_writes_on_the_export_as_its_tenancys_user(told: dict[str, Any]) -> None:
    ran = told["container"]
    assert ran["code"] == 0, ran
    user, mount = ran["err"].splitlines()[:2]
    assert user == "1000"
    assert " /data rw,nosuid,nodev" in mount
    assert " - nfs4 nas:/" in mount
    assert told["of the container"] == [TENANT, "by podman\n"]
