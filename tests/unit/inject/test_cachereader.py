"""The short way gives what the long way gives, or nothing; and nothing as soon as anything has changed."""

from __future__ import annotations

import copy
import dataclasses
import json
import os
import tempfile
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from fairlead import errors
from fairlead.inject import bundle, cachereader, cachewriter, create, policy
from fairlead.plan.shim import request
from fairlead.wire.cdi import stamp
from fairlead_cdi import directory, emit, inject
from fairlead_cdi import spec as cdi
from fairlead_cdi.host import node as host

KIND = "test.fairlead.dev/gpu"
PAST = 1_600_000_000


class World:
    """Spec folders, a cache, and both ways."""

    def __init__(self, folder: Path, *specs: cdi.Spec) -> None:
        self.folder = folder
        self.settings = policy.Settings()
        self.settings.spec_dirs = (str(folder / "static"), str(folder / "cdi"))
        self.settings.cache = str(folder / "run" / "cache.json")
        self.settings.request.default_kind = KIND
        for place in ("static", "cdi"):
            (folder / place).mkdir(exist_ok=True)
        for spec in specs:
            self.put(spec)

    def put(self, spec: cdi.Spec, folder: str = "cdi") -> Path:
        path = self.folder / folder / emit.file_name(spec.kind)
        path.write_bytes(emit.emit_json(spec))
        return path

    def registry(self) -> directory.Registry:
        """Scan as if the last change were long ago: tests do not wait for the clock's tick."""
        found = directory.scan(self.settings.spec_dirs)
        files = []
        for file in found.files:
            status = Path(file.path).stat()
            marks = (status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns, status.st_mtime_ns)
            files.append(dataclasses.replace(file, fingerprint=marks))
        return directory.Registry(directories=found.directories, files=tuple(files), devices=found.devices)

    def keep(self) -> bool:
        return cachewriter.keep(self.registry(), cachereader.state_of(self.settings.spec_dirs), self.settings.cache)

    def long(self, config: dict[str, Any], asked: request.Request) -> dict[str, Any]:
        sources = create.sources(self.registry(), asked, self.settings)
        return inject.inject_edits(config, sources, stat=host.stat_node)

    def short(self, config: dict[str, Any], asked: request.Request) -> dict[str, Any] | None:
        try:
            made = cachereader.inject(config, asked, self.settings)
        except (OSError, ValueError):
            return None
        return None if made is None else made[0]


def ask(*names: str, capabilities: frozenset[str] | None = None, is_bare: bool = False) -> request.Request:
    made = request.Request()
    made.names = tuple(f"{KIND}={name}" for name in names)
    made.capabilities = capabilities
    made.is_bare = is_bare
    return made


def node(path: str, host_path: str = "/dev/null", **more: Any) -> cdi.DeviceNode:
    return cdi.DeviceNode(path=path, host_path=host_path, permissions="rw", **more)


def mount(place: str, source: str = "/etc/hostname") -> cdi.Mount:
    return cdi.Mount(host_path=source, container_path=place, options=("ro", "rbind"))


PROGRAM = Path(tempfile.mkdtemp(prefix="fairlead-hook-")) / "nvidia-ctk"
PROGRAM.write_text("a driver's hook")
PROGRAM.chmod(0o755)
HOOK = cdi.Hook(hook_name="createContainer", path=str(PROGRAM), args=("true",), env=("A=b",), timeout=5)
SPEC = cdi.Spec(
    cdi_version="",
    kind=KIND,
    devices=(
        cdi.Device(name="0", edits=cdi.ContainerEdits(device_nodes=(node("/dev/nvidia0"),))),
        cdi.Device(name="1", edits=cdi.ContainerEdits(device_nodes=(node("/dev/nvidia1", "/dev/zero"),))),
        cdi.Device(name="same", edits=cdi.ContainerEdits(device_nodes=(node("/dev/nvidia0"),))),
        cdi.Device(name="owned", edits=cdi.ContainerEdits(device_nodes=(node("/dev/nvidia2", "/dev/full", gid=7),))),
        cdi.Device(name="gone", edits=cdi.ContainerEdits(device_nodes=(node("/dev/nvidia9", "/dev/not-there"),))),
        cdi.Device(
            name="net", edits=cdi.ContainerEdits(net_devices=(cdi.NetDevice(host_interface_name="a", name="b"),))
        ),
        cdi.Device(name="rich", edits=cdi.ContainerEdits(env=("X=1",), hooks=(HOOK,), additional_gids=(5, 0, 6))),
    ),
    edits=cdi.ContainerEdits(
        env=("NVIDIA_VISIBLE_DEVICES=void",),
        device_nodes=(node("/dev/nvidiactl", "/dev/random"), node("/dev/nvidia-modeset", "/dev/urandom")),
        mounts=(mount("/usr/lib/x/libcuda.so.1.2"), mount("/usr/lib/x/libEGL_nvidia.so.0"), mount("/top")),
    ),
)
paths = st.sampled_from(
    ["/dev/nvidia0", "/dev/tty", "/dev//nvidia0", "/dev/x/", "/", "relative", "/top", "/usr/lib/x/a"]
)
rule = st.fixed_dictionaries(
    {
        "allow": st.booleans(),
        "type": st.just("c"),
        "major": st.just(1),
        "minor": st.sampled_from([3, 5]),
        "access": st.just("rw"),
    }
)
configs = st.fixed_dictionaries(
    {"ociVersion": st.just("1.0.2"), "unknown": st.just({"kept": [1]})},
    optional={
        "process": st.fixed_dictionaries(
            {},
            optional={
                "env": st.lists(st.sampled_from(["A=1", "X=0", "NVIDIA_VISIBLE_DEVICES=0", "PATH=/bin", "X"])),
                "user": st.fixed_dictionaries(
                    {},
                    optional={
                        "uid": st.sampled_from([0, 1000]),
                        "gid": st.sampled_from([0, 7]),
                        "additionalGids": st.lists(st.sampled_from([5, 9])),
                    },
                ),
            },
        ),
        "linux": st.fixed_dictionaries(
            {},
            optional={
                "devices": st.lists(
                    st.fixed_dictionaries(
                        {"path": paths, "type": st.just("c"), "major": st.just(1), "minor": st.just(5)}
                    ),
                    max_size=2,
                ),
                "resources": st.fixed_dictionaries(
                    {}, optional={"devices": st.lists(rule, max_size=2), "memory": st.just({"limit": 1})}
                ),
            },
        ),
        "mounts": st.lists(st.fixed_dictionaries({"destination": paths, "source": st.just("/s")}), max_size=3),
        "hooks": st.fixed_dictionaries(
            {},
            optional={
                "createContainer": st.lists(
                    st.sampled_from(
                        [{"path": "/bin/true"}, {"path": "/bin/true", "args": ["true"], "env": ["A=b"], "timeout": 5}]
                    ),
                    max_size=2,
                ),
                "poststop": st.just(None),
            },
        ),
    },
)
requests = st.builds(
    ask,
    *[st.sampled_from(["0", "1", "same", "owned", "rich"])] * 2,
    capabilities=st.sampled_from([None, frozenset({"compute"}), frozenset({"graphics", "utility"}), frozenset[str]()]),
    is_bare=st.booleans(),
)


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> World:
    made = World(tmp_path_factory.mktemp("world"), SPEC)
    assert made.keep()
    return made


@given(config=configs, asked=requests)
def test_where_the_short_way_answers_it_answers_as_the_long_way(
    world: World, config: dict[str, Any], asked: request.Request
) -> None:
    before = copy.deepcopy(config)
    short = world.short(config, asked)
    assert config == before
    if short is not None:
        assert short == world.long(config, asked)


@pytest.mark.parametrize("names", [("0",), ("0", "1"), ("owned",), ("rich", "0")])
def test_the_usual_container_goes_the_short_way(world: World, names: tuple[str, ...]) -> None:
    config = {
        "process": {"env": ["PATH=/bin"], "user": {"uid": 1000, "gid": 1000}},
        "mounts": [{"destination": "/proc", "source": "proc"}, {"destination": "/dev/pts", "source": "devpts"}],
        "linux": {"resources": {"devices": [{"allow": False, "access": "rwm"}]}},
    }
    short = world.short(config, ask(*names))
    assert short is not None
    assert short == world.long(config, ask(*names))
    assert config["process"] == {"env": ["PATH=/bin"], "user": {"uid": 1000, "gid": 1000}}


def test_the_driver_without_a_gpu_goes_the_short_way_too(world: World) -> None:
    short = world.short({}, ask(is_bare=True))
    assert short is not None
    assert [item["path"] for item in short["linux"]["devices"]] == ["/dev/nvidiactl", "/dev/nvidia-modeset"]
    assert short == world.long({}, ask(is_bare=True))


@pytest.mark.parametrize("names", [("gone",), ("net",), ("unknown",), ("0", "same")])
def test_what_the_short_way_cannot_know_it_leaves(world: World, names: tuple[str, ...]) -> None:
    assert world.short({}, ask(*names)) is None


def test_a_touched_added_or_removed_spec_ends_the_short_way(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC)
    path = tmp_path / "cdi" / emit.file_name(KIND)
    assert world.keep()
    assert world.short({}, ask("0"))
    os.utime(path, ns=(PAST, PAST))
    assert world.short({}, ask("0")) is None
    assert world.keep()
    (tmp_path / "static" / "more.yaml").write_text("x")
    assert world.short({}, ask("0")) is None
    assert world.keep()
    assert world.short({}, ask("0"))
    path.unlink()
    assert world.short({}, ask("0")) is None


def test_an_override_in_a_higher_folder_counts_at_once(tmp_path: Path) -> None:
    world = World(tmp_path)
    world.put(SPEC, "static")
    assert world.keep()
    assert world.short({}, ask("1"))
    world.put(
        cdi.Spec(cdi_version="", kind=KIND, devices=(cdi.Device(name="1", edits=cdi.ContainerEdits(env=("Y=2",))),))
    )
    assert world.short({}, ask("1")) is None
    assert world.keep()
    short = world.short({}, ask("1"))
    assert short is not None
    assert short["process"]["env"] == ["Y=2"]


def test_a_node_that_moved_ends_the_short_way(tmp_path: Path) -> None:
    place = tmp_path / "pipe"
    os.mkfifo(place)
    edited = cdi.ContainerEdits(device_nodes=(node("/dev/p", str(place)),))
    world = World(tmp_path, cdi.Spec(cdi_version="", kind=KIND, devices=(cdi.Device(name="p", edits=edited),)))
    assert world.keep()
    assert world.short({}, ask("p"))
    place.chmod(0o611)
    assert world.short({}, ask("p")) is None


def test_a_spec_or_program_that_others_can_write_is_refused_both_ways(tmp_path: Path) -> None:
    program = tmp_path / "nvidia-ctk"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    hook = cdi.Hook(hook_name="createContainer", path=str(program), args=("h",), env=("A=b",), timeout=5)
    device = cdi.Device(name="0", edits=cdi.ContainerEdits(hooks=(hook,)))
    world = World(tmp_path, cdi.Spec(cdi_version="", kind=KIND, devices=(device,)))
    path = tmp_path / "cdi" / emit.file_name(KIND)
    assert world.keep()
    for place in (program, path, tmp_path / "cdi"):
        mode = place.stat().st_mode
        place.chmod(mode | 0o002)
        assert world.short({}, ask("0")) is None
        with pytest.raises(Exception, match="can be written by others than root"):
            world.long({}, ask("0"))
        place.chmod(mode)
    assert world.long({}, ask("0"))


@pytest.mark.parametrize(
    "data", [b"", b"{}", b"[]", b'{"format":99}', b'{"format":1}', b'{"format":1,"folders":[]}', b"\xff"]
)
def test_a_damaged_cache_is_no_harm(tmp_path: Path, data: bytes) -> None:
    world = World(tmp_path, SPEC)
    path = Path(world.settings.cache)
    path.parent.mkdir(mode=0o700)
    path.write_bytes(data)
    path.chmod(0o600)
    assert world.short({}, ask("0")) is None
    assert world.keep()
    assert world.short({}, ask("0"))


def test_a_cache_that_others_can_write_is_not_believed(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC)
    assert world.keep()
    Path(world.settings.cache).chmod(0o622)
    assert world.short({}, ask("0")) is None


def test_a_spec_that_changed_a_moment_ago_is_not_kept(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC)
    fresh = directory.scan(world.settings.spec_dirs)
    assert not cachewriter.keep(fresh, cachereader.state_of(world.settings.spec_dirs), world.settings.cache)
    assert not Path(world.settings.cache).exists()


def test_a_folder_that_refuses_costs_the_short_way_only(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC)
    (tmp_path / "run").write_text("a file")
    assert not world.keep()


def test_the_cache_is_written_once_for_one_state(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC)
    assert world.keep()
    assert not world.keep()
    assert json.loads(Path(world.settings.cache).read_bytes())["format"] == cachereader.FORMAT


def test_a_misshapen_runtime_spec_is_left_to_the_long_way(world: World) -> None:
    configs: tuple[dict[str, Any], ...] = (
        {"linux": []},
        {"process": {"env": {}}},
        {"mounts": [7]},
        {"linux": {"devices": ["x"]}},
    )
    for config in configs:
        assert world.short(dict(config), ask("0")) is None


def test_stripping_takes_the_request_and_nothing_else() -> None:
    rules = request.Policy()
    config: dict[str, object] = {
        "process": {
            "env": ["A=1", "NVIDIA_VISIBLE_DEVICES=0", "NVIDIA_VISIBLE_DEVICES=1", "NVIDIA_VISIBLE_DEVICES_X=1"],
            "cwd": "/",
        },
        "mounts": [
            {"destination": "/var/run/nvidia-container-devices/0", "source": "/dev/null"},
            {"destination": "/null", "source": "/dev/null"},
        ],
    }
    asked = request.Request()
    asked.source = "volume mounts"
    assert bundle.strip(config, asked, rules) == {
        "process": {"env": ["A=1", "NVIDIA_VISIBLE_DEVICES_X=1"], "cwd": "/"},
        "mounts": [{"destination": "/null", "source": "/dev/null"}],
    }


def mark(world: World, arch: str) -> None:
    path = world.folder / "cdi" / emit.file_name(KIND)
    made = stamp.Stamp(driver="nvidia", version="1.2", cuda="12.4", gpus={"/dev/nvidia0": (arch, "tesla")})
    stamp.beside(path).write_bytes(stamp.emit_stamp(made, path.read_bytes()))


def known(world: World) -> dict[str, list[str]] | None:
    made = cachereader.inject({}, ask("0"), world.settings)
    return None if made is None else made[1]


def test_what_the_stamp_says_of_the_gpus_comes_with_them_by_both_ways(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC)
    mark(world, "9.0")
    assert world.keep()
    told = {"driver": ["1.2", "12.4"], "/dev/nvidia0": ["9.0", "tesla"]}
    paths = {source for source, _ in create.sources(world.registry(), ask("0"), world.settings)}
    assert known(world) == cachewriter.known(world.registry(), paths) == told
    assert cachewriter.known(world.registry(), ()) == {}


def test_another_stamp_ends_the_cache_and_one_that_others_can_write_prevents_it(tmp_path: Path) -> None:
    world = World(tmp_path, SPEC)
    assert world.keep()
    assert known(world) == {}
    mark(world, "9.0")
    assert known(world) is None
    assert world.keep()
    assert known(world) is not None
    stamp.beside(tmp_path / "cdi" / emit.file_name(KIND)).chmod(0o666)
    with pytest.raises(cachereader.Unfit):
        cachereader.state_of(world.settings.spec_dirs)


# the cache itself is not believed more than the specs


def cached_with(world: World, **hook: object) -> None:
    """Write a hook of somebody's into the cache's device, as one who can write that file would."""
    path = Path(world.settings.cache)
    held = json.loads(path.read_bytes())
    entry = {"path": "/bin/sh", "args": ["sh", "-c", "id"], **hook}
    held["devices"][f"{KIND}=plain"]["hooks"] = [["createRuntime", entry]]
    path.write_text(json.dumps(held))


PLAIN = cdi.Spec(cdi_version="", kind=KIND, devices=(cdi.Device(name="plain", edits=cdi.ContainerEdits(env=("A=b",))),))


def test_a_program_that_is_no_drivers_hook_is_not_run_from_the_cache(tmp_path: Path) -> None:
    world = World(tmp_path, PLAIN)
    assert world.keep()
    assert world.short({}, ask("plain")) is not None
    cached_with(world)
    assert world.short({}, ask("plain")) is None


@pytest.mark.parametrize(
    "hook",
    [
        {"env": ["LD_PRELOAD=/x"]},
        {"env": ["PYTHONPATH=/x"]},
        {"env": [3]},
        {"env": "A=b"},
        {"path": "hooks/nvidia-ctk"},
    ],
)
def test_a_drivers_hook_is_run_from_the_cache_only_as_it_should_be_started(
    tmp_path: Path, hook: dict[str, object]
) -> None:
    world = World(tmp_path, PLAIN)
    assert world.keep()
    program = tmp_path / "nvidia-ctk"
    program.write_text("x")
    program.chmod(0o755)
    cached_with(world, path=str(program), env=["A=b"])
    assert world.short({}, ask("plain")) is not None
    cached_with(world, **{"path": str(program), **hook})
    assert world.short({}, ask("plain")) is None


def test_a_program_in_an_open_folder_is_not_run_from_the_cache(tmp_path: Path) -> None:
    world = World(tmp_path, PLAIN)
    assert world.keep()
    folder = tmp_path / "open"
    folder.mkdir()
    (folder / "nvidia-ctk").write_text("x")
    cached_with(world, path=str(folder / "nvidia-ctk"))
    assert world.short({}, ask("plain")) is not None
    folder.chmod(0o777)
    assert world.short({}, ask("plain")) is None


def test_the_caches_folder_is_made_for_us_alone_and_used_in_no_other(tmp_path: Path) -> None:
    world = World(tmp_path, PLAIN)
    assert world.keep()
    folder = Path(world.settings.cache).parent
    assert folder.stat().st_mode & 0o777 == 0o700
    folder.chmod(0o755)
    assert world.short({}, ask("plain")) is None


def test_a_spec_by_a_link_through_a_folder_of_others_is_refused_both_ways(tmp_path: Path) -> None:
    world = World(tmp_path, PLAIN)
    (path,) = (tmp_path / "cdi").iterdir()
    (tmp_path / "theirs").mkdir()
    path.rename(tmp_path / "theirs" / path.name)
    path.symlink_to(tmp_path / "theirs" / path.name)
    assert world.keep()
    (tmp_path / "theirs").chmod(0o777)
    assert world.short({}, ask("plain")) is None
    with pytest.raises(errors.Denied) as caught:
        world.long({}, ask("plain"))
    assert caught.value.reason == "InjectionSourceUntrusted"
    assert str(tmp_path / "theirs") in caught.value.message


def test_a_spec_is_judged_by_the_file_that_was_read_not_by_what_its_name_leads_to_now(tmp_path: Path) -> None:
    world = World(tmp_path, PLAIN)
    (path,) = (tmp_path / "cdi").iterdir()
    path.chmod(0o666)
    registry = directory.scan(world.settings.spec_dirs)
    path.chmod(0o644)
    with pytest.raises(errors.Denied):
        create.sources(registry, ask("plain"), world.settings)
