"""This machine's oddities, found in a fake root."""

from __future__ import annotations

import resource
from pathlib import Path

import msgspec
import pytest

from fairlead import errors
from fairlead.engine.podman import host as podman_host

ALL = 0x1FF_FFFF_FFFF
NO_SYS_RESOURCE = ALL & ~(1 << 24)
NO_NET_ADMIN = ALL & ~(1 << 12)


def machine(
    root: Path, *, caps: int = ALL, hybrid: bool = False, v2: bool = False, network: str = "usr/lib/podman/netavark"
) -> Path:
    texts = {
        "proc/self/status": f"Name:\tx\nCapEff:\t{caps:016x}\n",
        "proc/sys/kernel/pid_max": "32768\n",
        "sys/fs/cgroup/unified/cgroup.controllers": "hugetlb\n" if hybrid else "\n",
    }
    if v2:
        texts["sys/fs/cgroup/cgroup.controllers"] = "cpu memory\n"
    if network:
        texts[network] = ""
    for name, text in texts.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    return root


def info(*, version: str = "4.3.1", runtime: str = "crun", backend: str = "netavark") -> podman_host.Info:
    document = {
        "host": {"cgroupVersion": "v1", "networkBackend": backend, "ociRuntime": {"name": runtime}},
        "store": {"runRoot": "/run/c", "graphRoot": "/var/c", "graphDriverName": "overlay"},
        "version": {"Version": version},
    }
    return msgspec.convert(document, podman_host.Info)


def limits(number: int) -> tuple[int, int]:
    return {resource.RLIMIT_NOFILE: (1024, 20000), resource.RLIMIT_NPROC: (96365, 96365)}[number]


def detect(
    root: Path, found: podman_host.Info, *, runtime: str = "", network: str = "auto", has_runc: bool = True
) -> podman_host.Host:
    return podman_host.detect(
        found,
        runtime=runtime,
        network=network,
        root=root,
        find_program=lambda _name: Path("/usr/sbin/runc") if has_runc else None,
        limits=limits,
    )


def test_an_ordinary_machine_has_no_notes(tmp_path: Path) -> None:
    host = detect(machine(tmp_path, v2=True), info())
    assert (host.info.runtime, host.network, host.ulimits, host.info.notes) == ("crun", "bridge", (), ())
    assert host.pid_folder == Path("/run/c/overlay-containers")
    assert host.bundle_folder == Path("/var/c/overlay-containers")


def test_runc_stands_in_where_crun_refuses_hybrid_cgroups(tmp_path: Path) -> None:
    host = detect(machine(tmp_path, hybrid=True), info())
    assert host.globals == ("--runtime", "runc")
    assert "hybrid" in host.info.notes[0]


def test_without_runc_there_a_hybrid_machine_is_refused(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable) as caught:
        detect(machine(tmp_path, hybrid=True), info(), has_runc=False)
    assert caught.value.reason == "RuntimeUnusable"
    assert caught.value.hint == "install runc"


def test_crun_runs_where_the_second_hierarchy_has_no_controllers(tmp_path: Path) -> None:
    assert detect(machine(tmp_path), info()).info.runtime == "crun"


def test_the_setting_chooses_the_runtime(tmp_path: Path) -> None:
    assert detect(machine(tmp_path, hybrid=True), info(), runtime="crun").info.runtime == "crun"


def test_our_own_limits_are_passed_where_they_cannot_be_raised(tmp_path: Path) -> None:
    host = detect(machine(tmp_path, caps=NO_SYS_RESOURCE), info())
    assert host.ulimits == ("nofile=20000:20000", "nproc=32768:32768")
    assert any("32768" in note for note in host.info.notes)


@pytest.mark.parametrize(
    ("backend", "network", "caps", "why"),
    [
        ("netavark", "", ALL, "netavark"),
        ("cni", "usr/lib/podman/netavark", ALL, "CNI"),
        ("netavark", "usr/lib/podman/netavark", NO_NET_ADMIN, "CAP_NET_ADMIN"),
    ],
)
def test_auto_does_without_a_network_that_cannot_work(
    tmp_path: Path, backend: str, network: str, caps: int, why: str
) -> None:
    host = detect(machine(tmp_path, network=network, caps=caps), info(backend=backend))
    assert (host.network, host.may_fall_back) == ("none", False)
    assert why in host.info.notes[-1]


def test_cni_plugins_make_a_bridge(tmp_path: Path) -> None:
    host = detect(machine(tmp_path, network="opt/cni/bin/bridge"), info(backend="cni"))
    assert (host.network, host.may_fall_back) == ("bridge", True)


@pytest.mark.parametrize("mode", ["bridge", "none", "host"])
def test_a_network_that_was_asked_for_is_not_second_guessed(tmp_path: Path, mode: str) -> None:
    host = detect(machine(tmp_path, network=""), info(), network=mode)
    assert (host.network, host.may_fall_back) == (mode, False)


@pytest.mark.parametrize(
    ("version", "ceiling"),
    [
        ("4.1.0", "0.3.0"),
        ("4.3.1", "0.5.0"),
        ("4.9.4", "0.5.0"),
        ("5.4.2", "0.8.0"),
        ("5.8.6", "1.0.0"),
        ("6.0", "1.0.0"),
    ],
)
def test_the_cdi_ceiling_is_that_of_the_newest_measured_release_below(version: str, ceiling: str) -> None:
    assert podman_host.check_cdi(version) == ceiling


@pytest.mark.parametrize("version", ["4.0.3", "3.4.4", "", "unknown"])
def test_a_podman_without_cdi_is_refused(version: str) -> None:
    with pytest.raises(errors.Unavailable) as caught:
        podman_host.check_cdi(version)
    assert caught.value.reason == "CDIUnsupported"


@pytest.mark.parametrize(
    ("version", "files", "folder", "is_read"),
    [
        ("4.3.1", {}, "/etc/cdi", True),
        ("4.3.1", {}, "/run/cdi", True),
        ("4.3.1", {}, "/srv/cdi", False),
        ("4.3.1", {"etc/containers/containers.conf": '[engine]\ncdi_spec_dirs = ["/srv/cdi"]\n'}, "/srv/cdi", False),
        ("5.4.2", {"etc/containers/containers.conf": '[engine]\ncdi_spec_dirs = ["/srv/cdi"]\n'}, "/srv/cdi", True),
        ("5.4.2", {"etc/containers/containers.conf": '[engine]\ncdi_spec_dirs = ["/srv/cdi"]\n'}, "/etc/cdi", False),
        ("5.4.2", {"etc/containers/containers.conf.d/9.conf": "not = toml ["}, "/var/run/cdi", True),
        ("5.4.2", {"etc/containers/containers.conf": "engine = 3\n"}, "/var/run/cdi", True),
    ],
)
def test_specs_where_podman_does_not_look_are_refused(
    tmp_path: Path, version: str, files: dict[str, str], folder: str, is_read: bool
) -> None:
    for name, text in files.items():
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(text)
    if is_read:
        podman_host.check_cdi_folder(Path(folder), version, root=tmp_path)
        return
    with pytest.raises(errors.Invalid, match=f"not in {folder}"):
        podman_host.check_cdi_folder(Path(folder), version, root=tmp_path)


@pytest.mark.parametrize(
    ("version", "does"),
    [("4.3.1", True), ("4.9.3", True), ("5.4.2", True), ("4.2.0", False), ("5.5.0", False), ("6.0.0", False)],
)
def test_a_service_creates_only_where_its_release_lies_between_two_that_were_tried(
    tmp_path: Path, version: str, does: bool
) -> None:
    assert detect(machine(tmp_path), info(version=version)).service_creates is does


@pytest.mark.parametrize(
    ("file", "text", "does"),
    [
        ("usr/share/containers/containers.conf", '[containers]\nlog_driver = "journald"\n', True),
        ("usr/share/containers/containers.conf", '[containers]\nvolumes = ["/etc/pki:/etc/pki"]\n', False),
        ("etc/containers/containers.conf", "[containers]\ninit = true\n", False),
        ("etc/containers/containers.conf.d/site.conf", '[containers]\ndevices = ["/dev/fuse"]\n', False),
        ("etc/containers/containers.conf.d/site.conf", "[engine]\nnum_locks = 4096\n", True),
        ("etc/containers/containers.conf.d/site.conf.off", "[containers]\ninit = true\n", True),
        ("etc/containers/containers.conf", "containers = 3\n", True),
    ],
)
def test_a_service_creates_only_where_containers_get_nothing_that_it_would_leave_out(
    tmp_path: Path, file: str, text: str, does: bool
) -> None:
    machine(tmp_path)
    (tmp_path / file).parent.mkdir(parents=True, exist_ok=True)
    (tmp_path / file).write_text(text)

    assert detect(tmp_path, info()).service_creates is does


def test_a_service_without_root_was_not_tried_and_creates_nothing(tmp_path: Path) -> None:
    found = info()
    found.host.security.rootless = True

    assert not detect(machine(tmp_path), found).service_creates
