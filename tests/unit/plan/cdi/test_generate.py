"""The generator: devices by every name, nothing a tenant should not see, the lowest version."""

from __future__ import annotations

import dataclasses

import pytest

from fairlead import errors
from fairlead.model.driver import DeviceNode, DriverFiles, HostFile
from fairlead.model.gpu import GPU, Inventory, MIGDevice, UnreadableGPU, Vendor
from fairlead.model.ids import GPUUUID, MIGUUID
from fairlead.plan.cdi import capability, driverprofile, generate
from fairlead_cdi import emit, inject, lint, parse, validate
from fairlead_cdi import spec as cdi
from fairlead_cdi.host import node as host

LIBS = "/usr/lib/x86_64-linux-gnu"


def node(path: str, major: int, minor: int, *, root: str = "", mode: int = 0o666, gid: int = 0) -> DeviceNode:
    return DeviceNode(path=path, host_path=f"{root}{path}", major=major, minor=minor, mode=mode, gid=gid)


def library(name: str, *links: str, kind: str = "library") -> HostFile:
    soname = links[0] if links else None
    return HostFile(path=f"{LIBS}/{name}", host_path=f"{LIBS}/{name}", kind=kind, soname=soname, links=links)


def file(path: str, kind: str) -> HostFile:
    return HostFile(path=path, host_path=path, kind=kind)


FILES = (
    library("libcuda.so.550.1", "libcuda.so.1", "libcuda.so"),
    library("libnvidia-ml.so.550.1", "libnvidia-ml.so.1"),
    library("libnvidia-eglcore.so.550.1"),
    library("libnvidia-encode.so.550.1"),
    library("libnvidia-gpucomp.so.550.1"),
    library("lib32cuda.so.550.1", kind="library32"),
    file("/usr/bin/nvidia-smi", "binary"),
    file("/usr/bin/nvidia-persistenced", "binary"),
    file("/usr/bin/nvidia-cuda-mps-control", "binary"),
    file("/lib/firmware/nvidia/550.1/gsp_ga10x.bin", "firmware"),
    file("/etc/OpenCL/vendors/nvidia.icd", "config"),
    file("/usr/share/vulkan/icd.d/nvidia_icd.json", "config"),
    file("/run/nvidia-persistenced/socket", "socket"),
)
NODES = (
    node("/dev/nvidia0", 195, 0),
    node("/dev/nvidia7", 195, 7),
    node("/dev/nvidiactl", 195, 255),
    node("/dev/nvidia-modeset", 195, 254),
    node("/dev/nvidia-uvm", 510, 0),
    node("/dev/nvidia-uvm-tools", 510, 1),
    node("/dev/nvidia-caps/nvidia-cap1", 236, 1, mode=0o400),
    node("/dev/nvidia-caps/nvidia-cap21", 236, 21, mode=0o444),
    node("/dev/nvidia-caps/nvidia-cap22", 236, 22, mode=0o444),
    node("/dev/dri/renderD128", 226, 128, mode=0o660, gid=105),
)
DRIVER = DriverFiles(
    vendor=Vendor.NVIDIA,
    version="550.1",
    nodes=NODES,
    files=FILES,
    mig_minors=(("gpu7/gi1/access", 21), ("gpu7/gi1/ci0/access", 22), ("gpu7/gi2/access", 30)),
)


def gpu(index: int, *, minor: int, **fields: object) -> GPU:
    base = GPU(
        uuid=GPUUUID(f"GPU-{index}"),
        index=index,
        minor=minor,
        pci_bus_id=f"0000:0{index}:00.0",
        name="NVIDIA H100 80GB HBM3",
        memory_bytes=80 << 30,
    )
    return dataclasses.replace(base, **fields)  # type: ignore[arg-type]


def mig(index: int, instance: int) -> MIGDevice:
    return MIGDevice(
        uuid=MIGUUID(f"MIG-{index}"),
        index=index,
        profile="1g.10gb",
        gpu_instance=instance,
        compute_instance=0,
        placement_start=0,
        placement_size=1,
        memory_bytes=10 << 30,
    )


TWO = Inventory(gpus=(gpu(0, minor=0), gpu(1, minor=7)))


def generated(inventory: Inventory, recipe: generate.Recipe, driver: DriverFiles = DRIVER) -> cdi.Spec | None:
    specs = generate.generate(inventory, (driver,), recipe=recipe).specs
    return specs[0] if specs else None


def made(
    inventory: Inventory = TWO, driver: DriverFiles = DRIVER, profile: driverprofile.Profile = driverprofile.TENANT
) -> cdi.Spec:
    spec = generated(inventory, generate.Recipe(profile=profile), driver)
    assert spec is not None
    return spec


def paths_of(spec: cdi.Spec, name: str) -> list[str]:
    return [node.path for device in spec.devices if device.name == name for node in device.edits.device_nodes]


def mounts_of(spec: cdi.Spec) -> set[str]:
    return {mount.container_path for mount in spec.edits.mounts}


def test_each_gpu_is_a_device_by_uuid_and_by_index_with_the_node_of_its_minor() -> None:
    spec = made()
    assert [device.name for device in spec.devices] == ["GPU-0", "0", "GPU-1", "1", "all"]
    assert paths_of(spec, "1") == paths_of(spec, "GPU-1") == ["/dev/nvidia7"]
    assert paths_of(spec, "all") == ["/dev/nvidia0", "/dev/nvidia7"]


def test_nodes_carry_type_numbers_and_no_right_to_make_nodes() -> None:
    (found,) = made().devices[2].edits.device_nodes
    assert (found.type, found.major, found.minor, found.permissions, found.file_mode) == ("c", 195, 7, "rw", 0o666)


def test_every_container_gets_control_nodes_libraries_and_tools() -> None:
    spec = made()
    assert [found.path for found in spec.edits.device_nodes] == [
        "/dev/nvidiactl",
        "/dev/nvidia-uvm",
        "/dev/nvidia-uvm-tools",
    ]
    assert spec.edits.env == ("NVIDIA_VISIBLE_DEVICES=void",)
    assert {
        f"{LIBS}/libcuda.so.550.1",
        f"{LIBS}/libcuda.so.1",
        f"{LIBS}/libcuda.so",
        "/usr/bin/nvidia-smi",
    } <= mounts_of(spec)
    assert {mount.options for mount in spec.edits.mounts} == {("ro", "nosuid", "nodev", "rbind", "rprivate")}


def test_names_of_a_library_are_mounts_of_the_same_file() -> None:
    sources = {m.host_path for m in made().edits.mounts if "libcuda" in m.container_path}
    assert sources == {f"{LIBS}/libcuda.so.550.1"}


HIDDEN = {
    "/usr/bin/nvidia-persistenced",
    "/usr/bin/nvidia-cuda-mps-control",
    "/run/nvidia-persistenced/socket",
    f"{LIBS}/libnvidia-eglcore.so.550.1",
    f"{LIBS}/lib32cuda.so.550.1",
    "/usr/share/vulkan/icd.d/nvidia_icd.json",
}


@pytest.mark.parametrize(
    ("machine", "debian"), [("x86_64", "x86_64-linux-gnu"), ("aarch64", "aarch64-linux-gnu"), ("", "")]
)
def test_libraries_lie_where_any_images_linker_looks_whatever_the_hosts_folder(machine: str, debian: str) -> None:
    place = "/usr/local/nvidia/lib64"
    cuda = f"{place}/libcuda.so.550.1"
    files = (
        HostFile(path=cuda, host_path=cuda, kind="library", soname="libcuda.so.1", links=(), machine=machine),
        HostFile(path=f"{place}/libnvidia-gpucomp.so.550.1", host_path="/x", kind="library", machine=machine),
        HostFile(path=f"{place}/vdpau/libvdpau_nvidia.so.550.1", host_path="/v", kind="library", machine=machine),
        HostFile(path="/usr/local/nvidia/bin/nvidia-smi", host_path="/s", kind="binary"),
        HostFile(path="/usr/sbin/nvidia-debugdump", host_path="/d", kind="binary"),
    )
    shown = {mount.container_path: mount.host_path for mount in driverprofile.show_files(files, driverprofile.FULL)}
    for folder in (f"/usr/lib/{debian}", "/usr/lib64"):
        assert (shown.get(f"{folder}/libcuda.so.1") == cuda) is bool(machine)
        assert (f"{folder}/libnvidia-gpucomp.so.550.1" in shown) is bool(machine)
        assert f"{folder}/libvdpau_nvidia.so.550.1" not in shown
    assert shown["/usr/bin/nvidia-smi"] == "/s"  # PATH of an image names no folder of this host's
    assert "/usr/bin/nvidia-debugdump" not in shown


def test_a_tenant_sees_no_shared_control_surface() -> None:
    assert mounts_of(made()) & HIDDEN == set()
    assert "/dev/nvidia-modeset" not in [found.path for found in made().edits.device_nodes]


def test_the_full_profile_shows_all_of_it() -> None:
    spec = made(profile=driverprofile.FULL)
    assert mounts_of(spec) >= HIDDEN
    assert "/dev/nvidia-modeset" in [found.path for found in spec.edits.device_nodes]
    (socket,) = (m for m in spec.edits.mounts if m.container_path.endswith("socket"))
    assert socket.options == ("nosuid", "nodev", "noexec", "rbind", "rprivate")


@pytest.mark.parametrize(
    ("capability", "shown", "hidden"),
    [
        ("utility", "libnvidia-ml.so.550.1", "libcuda.so.550.1"),
        ("compute", "libcuda.so.550.1", "libnvidia-ml.so.550.1"),
        ("video", "libnvidia-encode.so.550.1", "libcuda.so.550.1"),
        ("graphics", "libnvidia-eglcore.so.550.1", "libcuda.so.550.1"),
    ],
)
def test_capabilities_choose_libraries(capability: str, shown: str, hidden: str) -> None:
    profile = dataclasses.replace(driverprofile.TENANT, capabilities=frozenset({capability}))
    found = mounts_of(made(profile=profile))
    assert f"{LIBS}/{shown}" in found
    assert f"{LIBS}/{hidden}" not in found
    assert f"{LIBS}/libnvidia-gpucomp.so.550.1" in found


MIXED = Inventory(gpus=(gpu(0, minor=0), gpu(1, minor=7, mig_enabled=True, mig_devices=(mig(0, 1),))))


def test_a_mig_device_brings_its_parent_and_both_capabilities() -> None:
    spec = made(MIXED)
    assert [device.name for device in spec.devices] == ["GPU-0", "0", "MIG-0", "1:0", "all"]
    expected = ["/dev/nvidia7", "/dev/nvidia-caps/nvidia-cap21", "/dev/nvidia-caps/nvidia-cap22"]
    assert paths_of(spec, "1:0") == paths_of(spec, "MIG-0") == expected
    assert paths_of(spec, "all") == ["/dev/nvidia0", *expected]


def test_the_configuration_capability_is_given_to_nobody() -> None:
    document = emit.emit_json(made(MIXED, profile=driverprofile.FULL))
    assert b'"/dev/nvidia-caps/nvidia-cap1"' not in document


def test_a_mig_device_without_its_nodes_hides_no_other_and_is_told() -> None:
    instances = (mig(0, 1), mig(1, 2), mig(2, 3))
    inventory = Inventory(gpus=(gpu(1, minor=7, mig_enabled=True, mig_devices=instances),))
    found = generate.generate(inventory, (DRIVER,))
    assert [device.name for device in found.specs[0].devices] == ["MIG-0", "1:0", "all"]
    assert len(found.problems) == 2
    assert "nvidia-cap30" in found.problems[0]
    assert "gpu7/gi3/access" in found.problems[1]


def test_a_gpu_without_its_node_or_answer_is_left_out_and_told() -> None:
    lost = UnreadableGPU(index=3, pci_bus_id=None, uuid=None, reason="Lost", message="fell off the bus")
    found = generate.generate(Inventory(gpus=(gpu(0, minor=0), gpu(2, minor=2)), unreadable=(lost,)), (DRIVER,))
    assert [device.name for device in found.specs[0].devices] == ["GPU-0", "0", "all"]
    assert found.problems == (
        "GPU 3 is left out: fell off the bus",
        "device GPU-2 is left out: /dev/nvidia2 not found",
    )


@pytest.mark.parametrize(
    "inventory", [Inventory(), Inventory(gpus=(gpu(0, minor=0, mig_enabled=True),)), Inventory(gpus=(gpu(5, minor=5),))]
)
def test_without_devices_there_is_no_spec(inventory: Inventory) -> None:
    assert generate.generate(inventory, (DRIVER,)).specs == ()


def test_the_lowest_version_is_written() -> None:
    assert made().cdi_version == "0.5.0"
    only_uuid = dataclasses.replace(made(), devices=made().devices[:1])
    assert emit.normal_form(only_uuid).cdi_version == "0.3.0"


def test_another_root_shows_as_host_paths_at_the_same_version() -> None:
    nodes = tuple(dataclasses.replace(item, host_path=f"/sim{item.path}") for item in NODES)
    spec = made(driver=dataclasses.replace(DRIVER, nodes=nodes))
    assert spec.cdi_version == "0.5.0"
    assert spec.devices[0].edits.device_nodes[0].host_path == "/sim/dev/nvidia0"


DRI = ("/dev/nvidia0", "/dev/dri/renderD128")


def test_render_nodes_are_for_graphics_and_groups_only_by_choice() -> None:
    inventory = Inventory(gpus=(gpu(0, minor=0, device_nodes=DRI),))
    assert paths_of(made(inventory), "0") == ["/dev/nvidia0"]
    full = made(inventory, profile=driverprofile.FULL)
    assert paths_of(full, "0") == [*DRI, "/dev/dri/by-path/pci-0000:00:00.0-render"]
    assert full.cdi_version == "0.5.0"
    grouped = made(inventory, profile=dataclasses.replace(driverprofile.FULL, adds_groups=True))
    assert grouped.cdi_version == "0.7.0"
    assert grouped.devices[0].edits.additional_gids == (105,)


@pytest.mark.parametrize(
    ("vendor", "kind", "shared"), [(Vendor.AMD, "amd.com/gpu", ["/dev/kfd"]), (Vendor.INTEL, "intel.com/gpu", [])]
)
def test_other_vendors_get_their_own_nodes_and_kind(vendor: Vendor, kind: str, shared: list[str]) -> None:
    driver = DriverFiles(
        vendor=vendor, version=None, nodes=(node("/dev/kfd", 237, 0), node("/dev/dri/renderD128", 226, 128, gid=105))
    )
    other = gpu(0, minor=128, vendor=vendor, uuid=GPUUUID("0000:c1:00.0"), device_nodes=("/dev/dri/renderD128",))
    found = generate.generate(Inventory(gpus=(gpu(0, minor=0), other)), (DRIVER, driver))
    assert [spec.kind for spec in found.specs] == ["nvidia.com/gpu", kind]
    spec = found.specs[1]
    assert [device.name for device in spec.devices] == ["0000:c1:00.0", "0", "all"]
    assert [item.path for item in spec.edits.device_nodes] == shared
    assert spec.edits.env == ()


@pytest.mark.parametrize("profile", driverprofile.PROFILES.values(), ids=lambda profile: profile.name)
def test_what_is_generated_is_written_read_back_and_clean(profile: driverprofile.Profile) -> None:
    spec = made(MIXED, profile=profile)
    assert not list(validate.strict_violations(spec))
    assert parse.parse_spec(emit.emit_json(spec)) == spec
    assert [f for f in lint.lint(spec) if f.severity is lint.Severity.ERROR] == []


def test_a_tenants_spec_has_no_warnings_either() -> None:
    assert lint.lint(made(MIXED)) == ()


def test_all_can_be_left_out_and_the_kind_chosen() -> None:
    profile = dataclasses.replace(driverprofile.TENANT, has_all=False)
    recipe = generate.Recipe(profile=profile, vendor="fairlead.dev", cls="board")
    spec = generated(TWO, recipe)
    assert spec is not None
    assert spec.kind == "fairlead.dev/board"
    assert [device.name for device in spec.devices] == ["GPU-0", "0", "GPU-1", "1"]


def test_merged_edits_do_everything_once() -> None:
    one = parse.build_edits({"env": ["A=1"], "intelRdt": {"closID": "a"}, "additionalGids": [1]})
    two = parse.build_edits({"env": ["A=1", "B=2"], "intelRdt": {"closID": "b"}, "additionalGids": [1, 2]})
    both = parse.build_edits({"env": ["A=1", "B=2"], "intelRdt": {"closID": "b"}, "additionalGids": [1, 2]})
    assert generate.merge([one, two]) == both
    assert generate.merge([]) == cdi.ContainerEdits()


def names_of(recipe: generate.Recipe, inventory: Inventory = MIXED) -> list[str]:
    spec = generated(inventory, recipe)
    assert spec is not None
    return [device.name for device in spec.devices]


def test_devices_are_named_by_every_strategy_asked_for_in_its_order() -> None:
    assert names_of(generate.Recipe(strategies=("type-index",))) == ["gpu0", "mig1:0", "all"]
    assert names_of(generate.Recipe(strategies=("index", "uuid"))) == ["0", "GPU-0", "1:0", "MIG-0", "all"]


@pytest.mark.parametrize("name", ["0", "GPU-0", "gpu0"])
def test_one_device_can_be_chosen_by_any_of_its_names(name: str) -> None:
    assert names_of(generate.Recipe(devices=frozenset({name}))) == ["GPU-0", "0", "all"]
    assert len(names_of(generate.Recipe(devices=frozenset({name, "all"})))) == 5


def test_none_is_the_driver_without_a_gpu() -> None:
    spec = generated(TWO, generate.Recipe(devices=frozenset({"none"})))
    assert spec is not None
    assert [(d.name, d.edits.device_nodes) for d in spec.devices] == [("none", ())]
    assert not list(validate.strict_violations(spec))


def test_a_device_that_is_not_there_is_told_with_those_that_are() -> None:
    with pytest.raises(errors.NotFound, match="9") as caught:
        generate.generate(TWO, (DRIVER,), recipe=generate.Recipe(devices=frozenset({"9"})))
    assert caught.value.hint is not None
    assert "gpu1" in caught.value.hint


HOOK = generate.Hook(path="/usr/libexec/fairlead/fairlead-hook")


def test_our_hook_is_named_once_with_its_own_environment_and_what_it_is_to_do() -> None:
    recipe = generate.Recipe(hook=dataclasses.replace(HOOK, ldconfig="/sbin/ldconfig.real"))
    spec = generated(TWO, recipe)
    assert spec is not None
    (hook,) = spec.edits.hooks
    folders = ["--folder", LIBS]
    assert list(hook.args) == ["fairlead-hook", *folders, "--driver", "550.1", "--ldconfig", "/sbin/ldconfig.real"]
    assert (hook.hook_name, hook.env != (), hook.timeout) == ("createContainer", True, 30)
    assert [f for f in lint.lint(spec) if f.severity is lint.Severity.ERROR] == []
    assert spec.cdi_version == "0.5.0"


@pytest.mark.parametrize(
    ("step", "gone"),
    [("update-ldcache", "--folder"), ("enable-cuda-compat", "--driver")],
)
def test_a_step_of_the_hook_can_be_left_out(step: str, gone: str) -> None:
    recipe = generate.Recipe(hook=dataclasses.replace(HOOK, without=frozenset({step})))
    spec = generated(TWO, recipe)
    assert spec is not None
    assert gone not in spec.edits.hooks[0].args


VARIANTS = {
    spec.kind: spec for spec in generate.generate(TWO, (DRIVER,), recipe=generate.Recipe(has_variants=True)).specs
}


def test_each_capability_is_a_class_with_the_same_devices() -> None:
    assert list(VARIANTS) == ["nvidia.com/gpu", *(f"nvidia.com/gpu-{part}" for part in capability.KNOWN)]
    assert len({tuple(device.name for device in spec.devices) for spec in VARIANTS.values()}) == 1
    for spec in VARIANTS.values():
        assert not list(validate.strict_violations(spec))


@pytest.mark.parametrize(
    ("part", "shown"),
    [
        ("compute", "libcuda.so.550.1"),
        ("utility", "libnvidia-ml.so.550.1"),
        ("video", "libnvidia-encode.so.550.1"),
        ("graphics", "libnvidia-eglcore.so.550.1"),
        ("compat32", "lib32cuda.so.550.1"),
    ],
)
def test_a_class_brings_its_part_of_the_driver_and_no_other(part: str, shown: str) -> None:
    holders = {kind for kind, spec in VARIANTS.items() if f"{LIBS}/{shown}" in mounts_of(spec)}
    assert f"nvidia.com/gpu-{part}" in holders
    assert holders <= {f"nvidia.com/gpu-{part}", "nvidia.com/gpu"}


def test_asking_in_several_classes_gives_what_the_variable_means() -> None:
    """The union by injection is the very spec of a profile with both capabilities."""
    both = dataclasses.replace(driverprofile.TENANT, capabilities=frozenset({"compute", "video"}))
    wanted = generated(TWO, generate.Recipe(profile=both))
    assert wanted is not None
    files = {kind: cdi.SpecFile(path=f"/{kind}", priority=0, spec=spec) for kind, spec in VARIANTS.items()}
    found = []
    for name in generate.variant_names("nvidia.com/gpu", ["0"], "video,compute"):
        kind, _, device = name.partition("=")
        one = next(item for item in VARIANTS[kind].devices if item.name == device)
        found.append(cdi.Resolved(name=name, device=one, file=files[kind]))
    shown = inject.inject({}, found, stat=lambda path: host.HostNode("c", *NUMBERS[path]))
    assert {mount["destination"] for mount in shown["mounts"]} == mounts_of(wanted)
    assert [node["path"] for node in shown["linux"]["devices"]].count("/dev/nvidia0") == 1
    assert shown["process"]["env"] == ["NVIDIA_VISIBLE_DEVICES=void"]


NUMBERS = {item.path: (item.major, item.minor, 0o666) for item in NODES}


def test_names_for_a_value_of_the_variable_follow_its_grammar() -> None:
    kind = "nvidia.com/gpu"
    assert generate.variant_names(kind, ["0"], "") == (f"{kind}-compute=0", f"{kind}-utility=0")
    assert len(generate.variant_names(kind, ["0", "1"], "all")) == 14
    with pytest.raises(errors.Invalid, match="nonsense"):
        generate.variant_names(kind, ["0"], "nonsense")


def test_names_that_drivers_do_not_install_everywhere_are_there_all_the_same() -> None:
    driver = dataclasses.replace(
        DRIVER,
        files=(library("libcuda.so.550.1"), library("libnvidia-allocator.so.550.1"), library("libGLX_nvidia.so.550.1")),
    )
    found = mounts_of(made(driver=driver, profile=driverprofile.FULL))
    assert {f"{LIBS}/libcuda.so", f"{LIBS}/gbm/nvidia-drm_gbm.so", f"{LIBS}/libGLX_indirect.so.0"} <= found
    assert f"{LIBS}/gbm/nvidia-drm_gbm.so" not in mounts_of(made(driver=driver))


def test_dispatch_libraries_are_for_those_who_ask() -> None:
    driver = dataclasses.replace(DRIVER, files=(*FILES, file(f"{LIBS}/libGL.so.1", "explicit")))
    assert f"{LIBS}/libGL.so.1" not in mounts_of(made(driver=driver, profile=driverprofile.FULL))
    profile = dataclasses.replace(driverprofile.FULL, shows_explicit=True)
    assert f"{LIBS}/libGL.so.1" in mounts_of(made(driver=driver, profile=profile))


def test_a_mig_device_that_can_draw_gets_its_gpus_render_node() -> None:
    drawing = dataclasses.replace(mig(0, 1), profile="1g.24gb+gfx")
    inventory = Inventory(gpus=(gpu(1, minor=7, mig_enabled=True, mig_devices=(drawing,), device_nodes=DRI),))
    assert "/dev/dri/renderD128" in paths_of(made(inventory, profile=driverprofile.FULL), "1:0")
    assert "/dev/dri/renderD128" not in paths_of(made(inventory), "1:0")
