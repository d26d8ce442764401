"""Foreign truth: the installed podman (CDI library of its own) reads what we write and does what we meant.

Proof of isolation is the kernel's answer to open(): ENXIO where the cgroup allows a number that no driver serves,
EPERM where it denies it, ENOENT where nothing was injected.
"""

from __future__ import annotations

import asyncio
import dataclasses
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterator
from pathlib import Path

import pytest

from fairlead.model.driver import DriverFiles
from fairlead.model.gpu import Inventory
from fairlead.plan.cdi import generate
from fairlead.silicon.sim import silicon
from fairlead_cdi import directory, emit, yamltext
from fairlead_cdi import spec as cdi

pytestmark = [
    pytest.mark.podman,
    pytest.mark.skipif(os.geteuid() != 0 or shutil.which("podman") is None, reason="needs root and podman"),
]

BUSYBOX = Path("/usr/bin/busybox")
SPEC_FOLDER = Path("/var/run/cdi")
VENDOR = f"fairlead-test.example/gpu{os.getpid()}"
OPTIONS = ("ro", "nosuid", "nodev", "rbind", "rprivate")


@pytest.fixture(scope="module")
def image(tmp_path_factory: pytest.TempPathFactory) -> Iterator[str]:
    if not BUSYBOX.exists():
        pytest.skip("needs busybox-static")
    root = tmp_path_factory.mktemp("cdi-podman") / "root"
    for name in ("bin", "dev", "proc", "sys", "tmp", "etc"):
        (root / name).mkdir(parents=True)
    shutil.copy(BUSYBOX, root / "bin" / "busybox")
    for name in ("sh", "cat", "ls", "mknod", "env", "touch", "grep", "true"):
        (root / "bin" / name).symlink_to("busybox")
    tar = root.with_suffix(".tar")
    subprocess.run(["tar", "-C", root, "-cf", tar, "."], check=True)
    name = f"localhost/fairlead-cdi-test-{uuid.uuid4().hex[:12]}"
    subprocess.run(["podman", "import", "--quiet", tar, name], check=True, capture_output=True)
    yield name
    subprocess.run(["podman", "rmi", "--force", name], check=True, capture_output=True)


@pytest.fixture
def host_folder(tmp_path: Path) -> Path:
    """Nodes and files below a root of their own, as simulated silicon has them."""
    (tmp_path / "dev").mkdir()
    for minor in (0, 1):
        os.mknod(tmp_path / "dev" / f"nvidia{minor}", 0o20666, os.makedev(195, minor))
    (tmp_path / "lib.so").write_text("library bytes\n")
    return tmp_path


def node_of(folder: Path, minor: int) -> cdi.DeviceNode:
    return cdi.DeviceNode(
        path=f"/dev/nvidia{minor}",
        host_path=f"{folder}/dev/nvidia{minor}",
        type="c",
        major=195,
        minor=minor,
        file_mode=0o666,
        permissions="rw",
    )


def spec_of(folder: Path) -> cdi.Spec:
    devices = tuple(
        cdi.Device(
            name=str(minor),
            edits=cdi.ContainerEdits(env=(f"SEEN_{minor}=yes",), device_nodes=(node_of(folder, minor),)),
        )
        for minor in (0, 1)
    )
    library = cdi.Mount(host_path=f"{folder}/lib.so", container_path="/usr/lib/lib.so.1", options=OPTIONS)
    common = cdi.ContainerEdits(env=("NVIDIA_VISIBLE_DEVICES=void",), mounts=(library,))
    return cdi.Spec(cdi_version="", kind=VENDOR, devices=devices, edits=common)


@pytest.fixture(params=[".json", ".yaml"])
def published(request: pytest.FixtureRequest, host_folder: Path) -> Iterator[Path]:
    SPEC_FOLDER.mkdir(exist_ok=True)
    path = SPEC_FOLDER / emit.file_name(VENDOR, suffix=request.param)
    write = emit.emit_json if request.param == ".json" else yamltext.emit_yaml
    path.write_bytes(write(spec_of(host_folder)))
    yield path
    path.unlink()


def podman(image: str, *command: str, devices: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    limits = ["--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"]
    asked = [part for name in devices for part in ("--device", f"{VENDOR}={name}")]
    base = ["podman", "run", "--rm", "--runtime", "runc", "--network", "none", "--cap-add", "MKNOD", *limits]
    return subprocess.run([*base, *asked, image, *command], capture_output=True, text=True, check=False, timeout=50)


PROBE = """
env | grep -E 'SEEN|NVIDIA'
cat /usr/lib/lib.so.1
for n in 0 1; do [ -e /dev/nvidia$n ] && cat /dev/nvidia$n; done
mknod /dev/other1 c 195 1 && cat /dev/other1
mknod /dev/other7 c 195 7 && cat /dev/other7
touch /usr/lib/lib.so.1
true
"""


def test_podman_does_what_the_spec_says_and_the_kernel_enforces_it(image: str, published: Path) -> None:
    done = podman(image, "sh", "-c", PROBE, devices=("0",))
    assert done.returncode == 0, done.stderr
    assert sorted(done.stdout.splitlines()) == ["NVIDIA_VISIBLE_DEVICES=void", "SEEN_0=yes", "library bytes"]
    # busybox words for ENXIO, EPERM and EROFS
    assert "/dev/nvidia0': No such device or address" in done.stderr
    assert "/dev/nvidia1" not in done.stderr
    assert "/dev/other1': Operation not permitted" in done.stderr
    assert "/dev/other7': Operation not permitted" in done.stderr
    assert "/usr/lib/lib.so.1: Read-only file system" in done.stderr


def test_two_devices_come_together_and_common_edits_once(image: str, published: Path) -> None:
    done = podman(image, "sh", "-c", "env | grep -c NVIDIA; ls /dev | grep nvidia", devices=("0", "1"))
    assert done.stdout.split() == ["1", "nvidia0", "nvidia1"], done.stderr


def test_podman_and_we_agree_on_what_is_not_there(image: str, published: Path) -> None:
    done = podman(image, "true", devices=("7",))
    assert done.returncode != 0
    assert "unresolvable" in done.stderr
    registry = directory.scan([SPEC_FOLDER])
    assert f"{VENDOR}=0" in registry.devices
    assert f"{VENDOR}=7" not in registry.devices


def test_the_version_we_stay_at_is_one_that_podman_reads(image: str, published: Path, host_folder: Path) -> None:
    """A spec one version above what Debian 12's podman knows is dropped in silence: why we emit the lowest."""
    low = emit.normal_form(spec_of(host_folder))
    assert low.cdi_version == "0.5.0"
    assert podman(image, "true", devices=("0",)).returncode == 0
    version = subprocess.run(["podman", "--version"], capture_output=True, text=True, check=True).stdout
    if " 4.3." not in version:
        pytest.skip(f"the ceiling of {version.strip()} is another")
    write = yamltext.emit_yaml if published.suffix == ".yaml" else emit.emit_json
    high = dataclasses.replace(low, annotations={"needs": "0.6.0"})
    published.write_bytes(write(high))
    assert "unresolvable" in podman(image, "true", devices=("0",)).stderr


@pytest.fixture
def variants(tmp_path: Path) -> Iterator[str]:
    """The specs of a simulated machine with a class for each capability; yields their kind."""
    made = silicon.SimulatedSilicon(tmp_path / "machine", "t4x4")

    async def look() -> tuple[Inventory, tuple[DriverFiles, ...]]:
        try:
            return await made.scan(), await made.scan_driver()
        finally:
            await made.close()

    vendor, _, cls = VENDOR.partition("/")
    recipe = generate.Recipe(vendor=vendor, cls=f"{cls}v", has_variants=True)
    inventory, drivers = asyncio.run(look())
    specs = generate.generate(inventory, drivers, recipe=recipe).specs
    SPEC_FOLDER.mkdir(exist_ok=True)
    paths = [SPEC_FOLDER / emit.file_name(spec.kind) for spec in specs]
    for path, spec in zip(paths, specs, strict=True):
        path.write_bytes(emit.emit_json(spec))
    yield f"{VENDOR}v"
    for path in paths:
        path.unlink()


@pytest.mark.parametrize("asked", ["compute", "utility", "compute,utility", "all"])
def test_classes_asked_for_together_are_what_driver_capabilities_mean(image: str, variants: str, asked: str) -> None:
    names = generate.variant_names(variants, ["1"], asked)
    limits = ["--ulimit", "nofile=4096:4096", "--ulimit", "nproc=4096:4096"]
    base = ["podman", "run", "--rm", "--runtime", "runc", "--network", "none", *limits]
    probe = "ls /usr/lib/x86_64-linux-gnu /usr/bin; for n in 0 1; do cat /dev/nvidia$n; done; true"
    command = [*base, *(f"--device={name}" for name in names), image, "sh", "-c", probe]
    done = subprocess.run(command, capture_output=True, text=True, check=True, timeout=50)
    is_shown = {"compute": "libcuda.so.1" in done.stdout, "utility": "libnvidia-ml.so.1" in done.stdout}
    assert is_shown == {part: part in asked or asked == "all" for part in is_shown}
    told = done.stderr.replace("'", "")
    assert "nvidia0: No such file or directory" in told
    assert "nvidia1: No such device or address" in told
