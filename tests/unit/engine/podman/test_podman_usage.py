"""What a container uses, by its cgroup: its own, its sandbox's, and never its monitor's."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import errors
from fairlead.command import Result
from fairlead.engine import port
from fairlead.engine.podman.access import access, usage
from fairlead.model.container import sandboxfile

ID, SANDBOX = "a" * 64, "b" * 64


def place(root: Path, pid: int, cgroup: str, *, memory: int, cpu_us: int = 0) -> None:
    """Have a process in a cgroup of version 2."""
    process, folder = root / f"proc/{pid}", root / "sys/fs/cgroup" / cgroup
    (process / "net").mkdir(parents=True)
    (process / "net/dev").write_text("Inter-|\n face |\n  eth0: 10 1 0 0 0 0 0 0 20 1 0 0 0 0 0 0\n")
    (process / "cgroup").write_text(f"0::/{cgroup}\n")
    folder.mkdir(parents=True, exist_ok=True)
    (folder / "memory.current").write_text(f"{memory}\n")
    (folder / "cpu.stat").write_text(f"usage_usec {cpu_us}\n")


@pytest.mark.parametrize(
    ("cgroup", "is_own"),
    [
        (f"machine.slice/libpod-{ID}.scope", True),
        (f"machine.slice/libpod-{ID}.scope/container", True),
        (f"libpod_parent/libpod-{ID}", True),
        (f"machine.slice/libpod-conmon-{ID}.scope", False),
        (f"machine.slice/libpod-conmon-{ID}.scope/watcher", False),
        ("libpod_parent/conmon", False),
        (f"machine.slice/libpod-{SANDBOX}.scope", False),
    ],
)
def test_the_cgroup_of_a_containers_monitor_is_not_its_own(tmp_path: Path, cgroup: str, is_own: bool) -> None:
    place(tmp_path, 7, cgroup, memory=4096)
    if is_own:
        assert usage.read(7, container=ID, root=tmp_path).memory_bytes == 4096
    else:
        with pytest.raises(FileNotFoundError):
            usage.read(7, container=ID, root=tmp_path)


class Podman:
    """Answers inspect; each container is its id, a pid and a folder."""

    def __init__(self, **known: tuple[int, Path, str]) -> None:
        self.known = known

    async def checked(self, _subject: str, _verb: str, *arguments: str) -> Result:
        if (found := self.known.get(arguments[-1])) is None:
            raise errors.NotFound("no such container", reason="ContainerNotFound")
        pid, bundle, status = found
        words = (status, str(pid), arguments[-1], "false", "false", "", "", f"{bundle}/config.json")
        return Result(code=0, stdout=("\t".join(words) + "\n").encode(), stderr=b"")


@pytest.fixture
def pod(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> access.PodmanAccess:
    """A container that joined a sandbox: podman's process of it is a watcher in conmon's cgroup."""
    place(tmp_path, 7, f"machine.slice/libpod-conmon-{ID}.scope", memory=1 << 20, cpu_us=5)
    place(tmp_path, 8, f"machine.slice/libpod-{SANDBOX}.scope", memory=900 << 20, cpu_us=7_000)
    place(tmp_path, 9, "machine.slice/libpod-plain.scope", memory=3 << 20)
    for name in ("joined", "sandbox", "plain"):
        (tmp_path / name).mkdir()
    (tmp_path / "joined" / sandboxfile.JOINS).write_text(f"{SANDBOX}\n")
    read = usage.read
    monkeypatch.setattr(
        usage, "read", lambda pid, *, container="": read(pid, container=container, root=tmp_path), raising=True
    )
    made = access.PodmanAccess()
    made._podman = Podman(  # type: ignore[assignment]
        joined=(7, tmp_path / "joined", "running"),
        plain=(9, tmp_path / "plain", "running"),
        **{SANDBOX: (8, tmp_path / "sandbox", "running")},
    )
    return made


async def test_a_container_in_its_pods_sandbox_says_what_the_sandbox_uses_and_that_it_is_the_pods(
    pod: access.PodmanAccess,
) -> None:
    found = await pod.usage("joined")
    assert (found.memory_bytes, found.cpu_ns, found.is_pods) == (900 << 20, 7_000_000, True)
    plain = await pod.usage("plain")
    assert (plain.memory_bytes, plain.is_pods) == (3 << 20, False)


async def test_history_counts_the_sandbox_once(pod: access.PodmanAccess) -> None:
    def state(identity: str, pid: int) -> port.ContainerState:
        return port.ContainerState(
            engine="podman", id=identity, name="c", phase=port.ContainerPhase.RUNNING, labels={}, image="i", pid=pid
        )

    assert pod.read_counters(state(ID, 7)) is None
    counted = pod.read_counters(state(SANDBOX, 8))
    assert counted is not None
    assert counted.memory_bytes == 900 << 20


async def test_a_sandbox_that_has_ended_is_no_figure(pod: access.PodmanAccess) -> None:
    found: Podman = pod._podman  # type: ignore[assignment]
    found.known[SANDBOX] = (0, found.known[SANDBOX][1], "exited")
    with pytest.raises(errors.Conflict, match="is exited, not running"):
        await pod.usage("joined")
