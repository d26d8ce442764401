"""The domain of a Service VM, as `fairlead fabric vm --libvirt` prints it: by libvirt's own schema, and booted by it.

Booted here are its UEFI and its disk, in software. Four things are others', since this machine may have no KVM, VFIO
and vsock: the domain is of the type `qemu` with a processor of libvirt's choice, has no function and no vsock, and its
console is kept in a file. `test_hgx_libvirt.py` boots those parts.
"""

from __future__ import annotations

import dataclasses
import os
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from hgx import domainimage, emulator

from fairlead.plan.fabric import servicevm

LIBVIRT = Path.home() / ".cache/fairlead/debian/libvirt"
_SCHEMA = LIBVIRT / "usr/share/libvirt/schemas/domain.rng"
pytestmark = [
    pytest.mark.slow,
    pytest.mark.timeout(600),
    pytest.mark.skipif(not _SCHEMA.is_file(), reason="needs libvirt's schema (tests/system/setup.sh)"),
]
_IN_A_ROOT = """set -e
mount -t tmpfs over "$1/over"
mkdir "$1/over/upper" "$1/over/work"
mount -t overlay over -o "lowerdir=$2:$3,upperdir=$1/over/upper,workdir=$1/over/work" "$1/root"
cp -r "$1/files/." "$1/root"
mount -t proc proc "$1/root/proc"
for one in sys dev kept; do mount --rbind "$([ $one = kept ] && echo "$1/kept" || echo "/$one")" "$1/root/$one"; done
exec chroot "$1/root" $4
"""
"""In a mount namespace of its own, which ends with it. Args: folder, libvirt's tree, QEMU's, what is run."""
LIMIT_S = 300
VM = servicevm.ServiceVM(name="fm", functions=("0000:40:00.0", "0000:40:00.1", "10001:41:1f.7"), switches=2)


def check(xml: str) -> tuple[int, str]:
    """Hold a domain against the schema; returns the code and the words of xmllint."""
    program, schema = LIBVIRT / "usr/bin/xmllint", _SCHEMA
    libraries = {**os.environ, "LD_LIBRARY_PATH": str(LIBVIRT / "usr/lib/x86_64-linux-gnu")}  # noqa: TID251
    line = (program, "--noout", "--nonet", "--relaxng", schema, "-")
    done = subprocess.run(line, input=xml, env=libraries, capture_output=True, text=True, check=False, timeout=30)
    return done.returncode, done.stderr


def test_the_printed_domain_is_one_by_libvirts_schema() -> None:
    xml = servicevm.domain(VM, disk='/var/lib/<fm>&".qcow2', cid=3)
    assert check(xml) == (0, "- validates\n")
    code, said = check(xml.replace('managed="no"', 'managed="perhaps"'))
    assert (code, "fails to validate" in said) == (3, True)


def test_libvirt_boots_the_printed_disk_by_uefi(tmp_path: Path) -> None:
    domainimage.require()
    with tempfile.TemporaryDirectory(prefix="domain-") as name:
        folder = Path(name)
        for one in ("over", "root", "kept", "files/kept", *(f"files/{one}" for one in domainimage.FOLDERS)):
            (folder / one).mkdir(parents=True)
        for one in domainimage.LINKS:
            (folder / "files" / one).symlink_to(f"usr/{one}")
        disk = domainimage.write(tmp_path, secret="c2VjcmV0" * 8, switches=0).rename(folder / "kept/fm.qcow2")
        xml = servicevm.domain(dataclasses.replace(VM, memory_mib=512), disk=f"/kept/{disk.name}", cid=3)
        assert check(xml) == (0, "- validates\n")
        for path, text in {**domainimage.FILES, "domain.xml": _in_software(xml)}.items():
            (folder / "files" / path).write_text(text)
        trees = (str(domainimage.LIBVIRT), str(emulator.ROOT))
        line = ("unshare", "--mount", "--pid", "--fork", "--kill-child", "sh", "-c", _IN_A_ROOT, "sh", name)
        with (folder / "said").open("wb") as said:
            process = subprocess.Popen((*line, *trees, domainimage.RUN), stdout=said, stderr=said)
        try:
            until, console = time.monotonic() + LIMIT_S, folder / "kept/console"
            while "serving the Fabric Manager" not in (seen := _read(console)):
                assert process.poll() is None, (_read(folder / "said")[-3000:], seen[-3000:])
                assert time.monotonic() < until, (_read(folder / "said")[-3000:], seen[-3000:])
                time.sleep(0.3)
        finally:
            _end(process)
    assert "BdsDxe: starting" in seen, "UEFI found what to boot"
    assert "EFI stub" in seen


def _end(process: subprocess.Popen[bytes]) -> None:
    """End the program by that in its namespace, with which every process there ends, so that it reaps it."""
    for child in Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split():
        os.kill(int(child), signal.SIGKILL)
    process.wait(timeout=60)


def _in_software(xml: str) -> str:
    """Return a domain that needs neither KVM nor VFIO nor vsock, and keeps what its console shows."""
    root = ElementTree.fromstring(xml)  # noqa: S314 - our own
    root.set("type", "qemu")
    devices = root.find("devices")
    assert devices is not None
    for one in [*root.findall("cpu")]:
        root.remove(one)
    ports = [one for one in devices.findall("controller") if one.get("model") == "pcie-root-port"]
    for one in [*devices.findall("hostdev"), *devices.findall("vsock"), *ports]:
        devices.remove(one)
    for one in devices.findall("console"):
        ElementTree.SubElement(one, "log", file="/kept/console")
    return ElementTree.tostring(root, encoding="unicode")


def _read(path: Path) -> str:
    return path.read_text(errors="replace") if path.exists() else ""
