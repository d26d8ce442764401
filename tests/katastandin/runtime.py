"""Kata's stand-in: an OCI runtime for containerd's runc shim whose sandboxes are virtual machines.

    python -m tests.katastandin.runtime --config KATA.toml [runc's options] create|start|state|kill|delete|exec …

No registry has Kata. Of what its shim does this does the part that Fairlead relies on (`coldplug.py`), boots a real
QEMU, and runs the container's command in the guest. It is not Kata, and is called its stand-in wherever it is named.
It has no terminal, no network, no volumes that are shared (they are copied when the container is made), no pause, no
update, no guest CDI; what it is asked for and has not, it refuses by name, but for stdin, which is empty.

Source: opencontainers/runtime-spec, runtime.md; containerd go-runc, which says what runc is called with.
"""

from __future__ import annotations

import contextlib
import datetime
import json
import os
import shutil
import signal
import socket
import sys
import time
import traceback
from collections.abc import Callable, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any, Final

from tests.katastandin import coldplug, container, sandbox, stops

_VALUES: Final = frozenset(
    {
        "--config",
        "--root",
        "--log",
        "--log-format",
        "--bundle",
        "--pid-file",
        "--process",
        "--console-socket",
        "-b",
        "-d",
    }
)
_WITHOUT: Final = frozenset(
    {"--systemd-cgroup", "--debug", "--no-pivot", "--no-new-keyring", "--all", "-a", "--force", "-f", "--detach"}
)
_GONE_S: Final = 40.0
_OF: Final = "of"
"""File of a container that names its sandbox."""


def main(arguments: Sequence[str]) -> int:
    """Carry out one command of a runtime; returns the exit code."""
    options, words = _parse(arguments)
    try:
        if not words or words[0] not in COMMANDS:
            raise coldplug.Refused(f"Kata's stand-in has no command {' '.join(words[:1]) or '(none)'}")
        COMMANDS[words[0]](options, words[1:])
    except coldplug.Refused as error:
        _report(options.get("--log", ""), str(error))
        return 1
    return 0


def _parse(arguments: Sequence[str]) -> tuple[dict[str, str], list[str]]:
    options: dict[str, str] = {}
    words = []
    left = iter(arguments)
    for one in left:
        name, has_value, value = one.partition("=")
        if name in _VALUES and one != "-d":
            options[name] = value if has_value else next(left, "")
        elif one in _WITHOUT or one == "-d":
            options[one] = ""
        else:
            words.append(one)
    return options, words


def _report(log: str, message: str) -> None:
    """Say why, where the shim looks: the log in runc's form."""
    now = datetime.datetime.now(datetime.UTC).isoformat()
    line = json.dumps({"level": "error", "msg": f"Kata's stand-in: {message}", "time": now})
    if log:
        with Path(log).open("a") as file:
            file.write(f"{line}\n")
    with contextlib.suppress(OSError):
        os.write(2, f"{line}\n".encode())


def create(options: dict[str, str], words: list[str]) -> None:
    """Make a sandbox, which is a machine, or a container in one."""
    begin = time.time()
    folder = _folder(options, words)
    bundle = Path(options["--bundle"])
    spec = json.loads((bundle / "config.json").read_text())
    if spec.get("process", {}).get("terminal"):
        raise coldplug.Refused("it has no terminal")
    if folder.exists():
        raise coldplug.Refused(f"container {folder.name} is there already")
    marks: dict[str, str] = spec.get("annotations") or {}
    folder.mkdir(parents=True)
    try:
        if marks.get(coldplug.KIND, "sandbox") == "sandbox":
            cgroup = str((spec.get("linux") or {}).get("cgroupsPath") or "")
            pid = _create_sandbox(options, folder, marks, begin, cgroup)
        else:
            pid = _create_container(options, folder, bundle, spec, marks)
    except BaseException:
        _end_machine(folder)  # of a sandbox whose process was killed meanwhile: Kata's Cleanup, service.go
        shutil.rmtree(folder)
        raise
    _write_pid(options, pid)


def _create_sandbox(options: dict[str, str], folder: Path, marks: dict[str, str], begin: float, cgroup: str) -> int:
    timeline = sandbox.Timeline(begin)
    config = coldplug.load_config(Path(options["--config"]))
    coldplug.check_annotations(marks, config)
    names = coldplug.ask_devices(marks, config)
    folders = (f"{config.root}/cdi",) if config.root else coldplug.CDI_FOLDERS
    nodes = [node.removeprefix(config.root) for node in coldplug.resolve(names, folders)]
    functions = coldplug.functions(nodes, Path(f"{config.root}/sys"))
    timeline.end("devices")
    stops.reach(config.stops, "asked")
    kept = {"names": names, "nodes": nodes, "functions": [asdict(one) for one in functions]}
    (folder / "plugged.json").write_text(json.dumps(kept))

    def work(told: int) -> None:
        log = os.open(folder / "log", os.O_WRONLY | os.O_CREAT | os.O_APPEND, 0o600)
        for number in (1, 2):
            os.dup2(log, number)
        sandbox.run(folder, config, functions, timeline, cgroup=cgroup, told=told)

    pid = _keep(folder, {"sandbox": folder.name}, work)
    stops.reach(config.stops, "sandbox")
    return pid


def _create_container(
    options: dict[str, str], folder: Path, bundle: Path, spec: dict[str, Any], marks: dict[str, str]
) -> int:
    halts = _stops(options)
    home = folder.parent / Path(marks.get(coldplug.SANDBOX, "")).name
    plugged = home / "plugged.json"
    if not plugged.is_file():
        raise coldplug.Refused(f"there is no sandbox {home.name!r} for the container")
    (folder / _OF).write_text(home.name)  # first: the engine's shim takes this process along when it dies
    devices = spec.get("linux", {}).get("devices") or ()
    coldplug.check_container(devices, json.loads(plugged.read_text())["nodes"])

    def work(told: int) -> None:
        peer = container.connect(home)
        container.load(peer, folder.name, bundle, spec)
        stops.reach(halts, "root")
        os.write(told, b"{}")
        os.close(told)
        with contextlib.closing(container.wait_start(folder)) as starter:
            try:
                container.begin(peer, folder.name, spec["process"])
            except coldplug.Refused as error:
                starter.sendall(str(error).encode())
                os._exit(127)
            (folder / container.RUNS).touch()
            stops.reach(halts, "started")
        container.follow(peer)

    pid = _keep(folder, {"sandbox": home.name}, work)
    stops.reach(halts, "created")
    if not plugged.is_file():
        raise coldplug.Refused(f"sandbox {home.name!r} was deleted meanwhile")
    return pid


def _stops(options: dict[str, str]) -> str:
    return coldplug.load_config(Path(options["--config"])).stops


def _keep(folder: Path, facts: dict[str, Any], work: Callable[[int], None]) -> int:
    """Have a process do some work that goes on, and return its pid once it says so; it is recorded."""
    pid = _spawn(work)
    (folder / "state.json").write_text(json.dumps({**facts, "pid": pid, "started": _started(pid)}))
    return pid


def _spawn(work: Callable[[int], None]) -> int:
    """Fork. Raises: coldplug.Refused: what the work was refused with."""
    reading, writing = os.pipe()
    pid = os.fork()
    if pid == 0:
        os.close(reading)
        os.setsid()
        try:
            work(writing)
        except coldplug.Refused as error:
            os.write(writing, json.dumps({"refused": str(error)}).encode())
        except BaseException:  # noqa: BLE001 - the edge of the fork: nothing of its parent's may be undone here
            traceback.print_exc()
        finally:
            os._exit(1)
    os.close(writing)
    with os.fdopen(reading, "rb") as file:
        said = file.read()
    answer = json.loads(said) if said else {"refused": "its process ended without a word"}
    if "refused" in answer:
        os.waitpid(pid, 0)
        raise coldplug.Refused(answer["refused"])
    return pid


def start(options: dict[str, str], words: list[str]) -> None:
    """Start the container's command; a sandbox has started with its machine."""
    folder = _folder(options, words)
    if _state(folder)["sandbox"] == folder.name:
        return
    with socket.socket(socket.AF_UNIX) as peer:
        try:
            peer.connect(str(folder / container.START))
            problem = peer.recv(4096).decode(errors="replace")
        except OSError as error:
            raise coldplug.Refused(f"container {folder.name} cannot be started: {error.strerror}") from None
    if problem:
        raise coldplug.Refused(problem)


def execute(options: dict[str, str], words: list[str]) -> None:
    """Run one more command in a container."""
    folder = _folder(options, words)
    home = folder.parent / _state(folder)["sandbox"]
    process = json.loads(Path(options["--process"]).read_text())
    if process.get("terminal"):
        raise coldplug.Refused("it has no terminal")

    def work(told: int) -> None:
        peer = container.connect(home)
        container.begin(peer, folder.name, process)
        os.write(told, b"{}")
        os.close(told)
        container.follow(peer)

    _write_pid(options, _spawn(work))


def state(options: dict[str, str], words: list[str]) -> None:
    """Print a container's state."""
    folder = _folder(options, words)
    found = _state(folder)
    started = found["sandbox"] == folder.name or (folder / container.RUNS).exists()
    status = "stopped" if not _is_alive(found) else "running" if started else "created"
    sys.stdout.write(json.dumps({"ociVersion": "1.0.2", "id": folder.name, "status": status, "pid": found["pid"]}))


def kill(options: dict[str, str], words: list[str]) -> None:
    """Send a signal to a container's commands; any ends a sandbox."""
    folder = _folder(options, words)
    found = _state(folder)
    if not _is_alive(found):
        raise coldplug.Refused("container not running")  # words by which the shim knows
    number = _signal(words[1] if len(words) > 1 else "SIGTERM")
    if found["sandbox"] == folder.name:
        os.kill(found["pid"], signal.SIGTERM)
        return
    stops.reach(_stops(options), "killing")
    if not (folder / container.RUNS).exists():
        os.kill(found["pid"], number)  # its command has not begun: the process that waits for that is all there is
    else:
        _pass_on(folder, found, number)


def _pass_on(folder: Path, found: dict[str, Any], number: int) -> None:
    with contextlib.closing(container.connect(folder.parent / found["sandbox"])) as peer:
        container.ask(peer, "k", f"{folder.name}\0{number}\0".encode())


def delete(options: dict[str, str], words: list[str]) -> None:
    """Forget a container; with --force end it first. A sandbox's machine is gone afterwards, whoever was killed."""
    folder = _folder(options, words)
    is_forced = "--force" in options or "-f" in options
    if not folder.is_dir():
        if is_forced:
            return
        raise coldplug.Refused("container does not exist")
    record = folder / "state.json"
    found = json.loads(record.read_text()) if record.is_file() else None
    if (folder / "emulator.pid").exists():
        stops.reach(_stops(options), "deleting")
    if found is not None and _is_alive(found):
        if not is_forced:
            raise coldplug.Refused(f"container {folder.name} still runs")
        with contextlib.suppress(coldplug.Refused, ProcessLookupError):
            if found["sandbox"] != folder.name and (folder / container.RUNS).exists():
                _pass_on(folder, found, signal.SIGKILL)
            os.kill(found["pid"], signal.SIGTERM)
    _end_machine(folder)
    until = time.monotonic() + _GONE_S
    while found is not None and _is_alive(found) and time.monotonic() < until:
        time.sleep(0.05)
    for one in _containers(folder) if (folder / "plugged.json").is_file() else []:
        shutil.rmtree(one, ignore_errors=True)  # Kata keeps what it knows of containers with their sandbox
    shutil.rmtree(folder)


def _containers(sandbox: Path) -> list[Path]:
    """Return the folders of a sandbox's containers that the engine has not deleted."""
    return [path.parent for path in sandbox.parent.glob(f"*/{_OF}") if path.read_text() == sandbox.name]


def _end_machine(folder: Path) -> None:
    """End the QEMU of a sandbox whose own process was killed before."""
    record = folder / "emulator.pid"
    if not record.is_file():
        return
    pid, until = int(record.read_text()), time.monotonic() + _GONE_S
    mark = str(folder / "console").encode()
    with contextlib.suppress(OSError):  # it is gone
        while mark in Path(f"/proc/{pid}/cmdline").read_bytes():
            if time.monotonic() > until:
                raise coldplug.Refused(f"QEMU {pid} of sandbox {folder.name} cannot be killed")
            os.kill(pid, signal.SIGKILL)
            time.sleep(0.05)


def features(_: dict[str, str], __: list[str]) -> None:
    """Print what the runtime can do, as containerd asks of each handler."""
    sys.stdout.write(
        json.dumps(
            {
                "ociVersionMin": "1.0.0",
                "ociVersionMax": "1.2.0",
                "linux": {"mountExtensions": {"idmap": {"enabled": False}}},
            }
        )
    )


COMMANDS: Final[dict[str, Callable[[dict[str, str], list[str]], None]]] = {
    "create": create,
    "start": start,
    "exec": execute,
    "state": state,
    "kill": kill,
    "delete": delete,
    "features": features,
}


def _folder(options: dict[str, str], words: list[str]) -> Path:
    name = words[0] if words else ""
    if not name or "/" in name or name.startswith("."):
        raise coldplug.Refused(f"{name!r} is no container's name")
    return Path(options.get("--root", "/run/katastandin")) / name


def _state(folder: Path) -> dict[str, Any]:
    try:
        found: dict[str, Any] = json.loads((folder / "state.json").read_text())
    except FileNotFoundError:
        raise coldplug.Refused("container does not exist") from None
    return found


def _signal(word: str) -> int:
    name = word.upper().removeprefix("SIG")
    found = int(word) if word.isdigit() else getattr(signal, f"SIG{name}", None)
    if found is None:
        raise coldplug.Refused(f"{word!r} is no signal")
    return int(found)


def _write_pid(options: dict[str, str], pid: int) -> None:
    if path := options.get("--pid-file"):
        part = Path(f"{path}.part")
        part.write_text(str(pid))
        part.rename(path)


def _started(pid: int) -> str:
    text = Path(f"/proc/{pid}/stat").read_text()
    return text[text.rindex(")") + 2 :].split()[19]


def _is_alive(found: dict[str, Any]) -> bool:
    try:
        text = Path(f"/proc/{found['pid']}/stat").read_text()
    except OSError:
        return False
    words = text[text.rindex(")") + 2 :].split()
    return words[0] not in "ZX" and words[19] == found["started"]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
