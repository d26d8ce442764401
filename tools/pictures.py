"""Draw the pictures of the pages: `python tools/pictures.py` rewrites the SVGs below `docs/pictures`.

Diagrams are drawn from the tables below and from `pictures.toml`; they follow the reader's light or dark scheme. One
more is a terminal's recording (`--record`): bash runs commands on a terminal of 80 columns beside a service of their
own, and rich draws what they print. It needs root and podman, as the commands do; nothing in it is written by hand. The
console's (`--console`) are taken by Chromium of a service with a few containers.
"""

# ruff: noqa: S606  a program: it prints, and starts bash
from __future__ import annotations

import argparse
import contextlib
import fcntl
import functools
import html
import os
import pty
import re
import socket
import struct
import subprocess
import sys
import tempfile
import termios
import threading
import tomllib
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.text import Text

sys.path.insert(0, str(Path(__file__).parents[1] / "tests" / "system"))

import browser

FOLDER: Final = Path(__file__).parent.parent / "docs" / "pictures"
_COLUMNS: Final = 80

_STYLE: Final = """<style>
text { font: 15px system-ui, sans-serif; fill: #24292f }
.small { font-size: 13px; fill: #57606a }
.mono { font-family: ui-monospace, "DejaVu Sans Mono", monospace; font-size: 13px }
.head { font-weight: 600 }
.ground { fill: #ffffff }
.box { fill: #f6f8fa; stroke: #8c959f }
.ours { fill: #ddf4ff; stroke: #0969da }
.line { stroke: #8c959f; stroke-width: 1.5; fill: none }
.mark { fill: #0969da }
.number { fill: #ffffff; font-weight: 600 }
@media (prefers-color-scheme: dark) {
.ground { fill: #1e2129 } text { fill: #e6edf3 } .small { fill: #9198a1 } .box { fill: #21262d; stroke: #6e7681 }
.ours { fill: #12304f; stroke: #4493f8 } .line { stroke: #6e7681 } .mark { fill: #1f6feb }
}
</style>"""

_WAY: Final = (
    ("you", "fairlead run -g 2 IMAGE", "one command, or a Kubernetes manifest"),
    ("API", "is it allowed?", "who asks, quotas, rules; the pod is stored"),
    ("scheduler", "where?", "each node filtered and scored, with reasons"),
    ("kubelet", "which two?", "asks the plugin which GPUs lie close together"),
    ("device plugin", "Allocate", "answers with the GPUs' CDI names over gRPC"),
    ("CDI spec", "what goes in?", "device nodes, driver files, variables"),
    ("engine", "create", "the process is made, and held"),
    ("kernel", "is it so?", "rules and nodes read back; open() is tried"),
    ("your process", "nvidia-smi", "sees two GPUs; the others answer EPERM"),
)

_ROOMS: Final = (
    ("people", "box", ("command line", "REST API", "kubectl")),
    ("doors for people", "ours", ("cli", "serve")),
    ("what runs", "ours", ("control", "node", "inject")),
    ("decisions, without effects", "ours", ("plan",)),
    ("doors to the machine", "ours", ("silicon", "kernel", "engine", "store")),
    ("outside", "box", ("NVML, sysfs", "cgroups", "podman", "SQLite, etcd")),
)
_GATES: Final = (
    ("who asks", "box", ("pod", "virtual machine")),
    ("gate 1: one transaction", "ours", ("the ledger says Held",)),
    ("gate 2: there only while it is held", "ours", ("CDI device in the spec",)),
    ("gate 3: kept open while it is not held", "ours", ("the agent has /dev/vfio/GROUP open",)),
    ("what is kept apart", "box", ("GPU", "its IOMMU group")),
)
_STATES: Final = (
    ("nobody has it, or nobody knows", "box", ("Unknown", "Dirty")),
    ("being proved", "ours", ("Scrubbing", "Verifying")),
    ("may be given away", "ours", ("Free",)),
    ("a pod has it", "ours", ("Held",)),
    ("its pod is gone; then Dirty again", "ours", ("Releasing",)),
    ("kept back, until a person lets it go", "box", ("Quarantined", "Maintenance")),
)
_SEARCH: Final = (
    ("published", "box", ("ResourceSlices", "ResourceClaims", "DeviceClasses")),
    ("indexed, and what is held", "ours", ("NodePools", "Held")),
    ("the search, with its undo log", "ours", ("request", "walk", "fit", "ledger")),
    ("the answer", "box", ("Allocation", "Refusal")),
)
_PLACING: Final = (
    ("followed", "box", ("pods", "nodes", "GPUDevices", "queues")),
    ("kept up to date", "ours", ("cache", "queue", "rankings")),
    ("judged, in a trial", "ours", ("filters", "scores", "constraints")),
    ("written", "box", ("binding", "event", "condition")),
)


def container_way() -> Iterator[str]:
    """Draw what happens between a command and the process it starts."""
    step, width = 64, 480
    height = 24 + step * len(_WAY)
    title = "The way of a container, from the command to its process, in nine steps"
    yield from _head(width, height, title)
    yield f'<path class="line" d="M34 40 V{height - 48}"/>'
    for index, (who, what, how) in enumerate(_WAY):
        y = 40 + step * index
        yield f'<circle class="mark" cx="34" cy="{y}" r="15"/>'
        yield f'<text class="number" x="34" y="{y + 5}" text-anchor="middle">{index + 1}</text>'
        yield f'<text class="head" x="64" y="{y - 3}">{_text(who)}</text>'
        yield f'<text class="mono" x="186" y="{y - 3}">{_text(what)}</text>'
        yield f'<text class="small" x="64" y="{y + 17}">{_text(how)}</text>'
    yield "</svg>"


def _stacked(title: str, rows: tuple[tuple[str, str, tuple[str, ...]], ...]) -> Iterator[str]:
    """Draw rows of boxes, from top to bottom. Args: rows: what each is called, its style, its boxes ("!": ours)."""
    row, width, gap, edge = 78, 480, 8, 8
    yield from _head(width, row * len(rows) + 8, title)
    for index, (name, row_kind, boxes) in enumerate(rows):
        y = 8 + row * index
        yield f'<text class="small" x="{edge}" y="{y + 12}">{_text(name)}</text>'
        each = (width - 2 * edge - gap * (len(boxes) - 1)) / len(boxes)
        for place, box in enumerate(boxes):
            x = edge + place * (each + gap)
            kind, text = ("ours" if box.endswith("!") else row_kind), _text(box.removesuffix("!"))
            yield f'<rect class="{kind}" x="{x:.1f}" y="{y + 19}" width="{each:.1f}" height="36" rx="6"/>'
            yield f'<text x="{x + each / 2:.1f}" y="{y + 42}" text-anchor="middle">{text}</text>'
        if index + 1 < len(rows):
            yield f'<path class="line" d="M{width / 2} {y + 55} v12 m-5 -6 l5 6 l5 -6"/>'
    yield "</svg>"


def _head(width: int, height: int, title: str) -> Iterator[str]:
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{_text(title)}">'
    )
    yield f"<title>{_text(title)}</title>"
    yield _STYLE
    # A ground of its own: a reader who switches the page alone does not switch the picture.
    yield f'<rect class="ground" width="{width}" height="{height}" rx="8"/>'


def _text(text: str) -> str:
    return html.escape(text)


_STACKS: Final = {
    "architecture.svg": ("The rooms of Fairlead, between people and the machine", _ROOMS),
    "three-gates.svg": ("Three gates between who asks and a GPU that is passed through", _GATES),
    "possession.svg": ("The states of a GPU in the ledger", _STATES),
    "claims.svg": ("From what is published to an allocation", _SEARCH),
    "scheduling.svg": ("The live scheduler, from what it follows to what it writes", _PLACING),
}
_TOLD: Final = tomllib.loads(Path(__file__).with_suffix(".toml").read_text())
_PAGES: Final = {
    f"{name}.svg": (told["title"], tuple((label, "box", tuple(boxes)) for label, *boxes in told["rows"]))
    for name, told in _TOLD.items()
}
DIAGRAMS: Final[Mapping[str, Callable[[], Iterator[str]]]] = {
    "container-way.svg": container_way,
    **{name: functools.partial(_stacked, *told) for name, told in (_STACKS | _PAGES).items()},
}


# the recording

_TALE: Final = (
    "fairlead run -g 2 localhost/demo -- nvidia-smi -L",
    "fairlead run -d --name train -g 4 localhost/demo -- sleep 600",
    "fairlead gpus",
    "fairlead run -d --name more -g 6 localhost/demo -- sleep 600",
    "fairlead explain more",
    "fairlead trace train | grep 'open: E'",
    "fairlead rm -f train more",
)
_FONTS: Final = re.compile(r"@font-face \{.*?\}\n", re.DOTALL)


def record(program: str) -> str:
    """Run the tale and return its terminal as an SVG."""
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        env = {**os.environ, "FAIRLEAD_STATE_FOLDER": f"{folder}/state", "FAIRLEAD_STATE_RUN": f"{folder}/run"}
        env |= {"TERM": "xterm-256color", "COLUMNS": str(_COLUMNS), "PATH": f"{program}:{os.environ['PATH']}"}
        env.pop("NO_COLOR", None)
        with Path(folder, "log").open("wb") as log:
            argv = ("fairlead", "up", "--simulate", "h100x8")
            service = subprocess.Popen(argv, env=env, stdout=log, stderr=log, executable=f"{program}/fairlead")
            try:
                _run("for i in $(seq 300); do fairlead status && break; sleep 0.1; done; fairlead image demo", env)
                return _drawn((command, _run(command, env)) for command in _TALE)
            finally:
                _run("fairlead down || true", env)
                service.terminate()
                service.wait(30)


def _run(command: str, env: Mapping[str, str]) -> str:
    """Return what a command prints on a terminal of its own."""
    pid, terminal = pty.fork()
    if pid == 0:
        # The size first: what the command reads of it must be there.
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 40, _COLUMNS, 0, 0))
        os.execvpe("bash", ["bash", "-c", command], dict(env))
    output = b""
    try:
        while chunk := os.read(terminal, 1 << 16):
            output += chunk
    except OSError:  # EIO: nobody has the other end any more
        pass
    os.waitpid(pid, 0)
    os.close(terminal)
    # What was written over (a progress line) was not there in the end.
    lines = output.decode(errors="replace").replace("\r\n", "\n").split("\n")
    return "\n".join(line.rpartition("\r\x1b[K")[2].rpartition("\r")[2] for line in lines).strip("\n")


def _drawn(steps: Iterator[tuple[str, str]]) -> str:
    with Path(os.devnull).open("w") as nowhere:
        console = Console(record=True, width=_COLUMNS, file=nowhere, force_terminal=True, color_system="truecolor")
        for command, output in steps:
            console.print(Text.assemble(("$ ", "bold green"), (command, "bold")), soft_wrap=True)
            console.print(Text.from_ansi(output), end="\n\n", overflow="fold")
        drawn = console.export_svg(title="fairlead", unique_id="fairlead")
    # rich names a font on somebody's server: the reader's own will do, and the page asks nobody.
    return _FONTS.sub("", drawn).replace("Fira Code", "ui-monospace, DejaVu Sans Mono")


# the console

_SHOWN: Final = (
    ("console-overview.png", "/console/", 1280),
    ("console-container.png", "/console/containers/default/train", 1280),
    ("console-phone.png", "/console/containers/default/train", 360),
)
_WORK: Final = "for i in $(seq 1 40); do echo epoch $i; sleep 0.02; done; exec sleep 600"


def console(program: str) -> Iterator[tuple[str, bytes]]:
    """Run a few containers and return pictures of the console in Chromium, by the socket's tunnel."""
    with tempfile.TemporaryDirectory(prefix="fl-") as folder, socket.create_server(("127.0.0.1", 0)) as listener:
        env = {**os.environ, "FAIRLEAD_STATE_FOLDER": f"{folder}/state", "FAIRLEAD_STATE_RUN": f"{folder}/run"}
        env |= {"FAIRLEAD_LEASE_LEDGER": "on", "PATH": f"{program}:{os.environ['PATH']}"}
        with Path(folder, "log").open("wb") as log:
            argv = ("fairlead", "up", "--simulate", "h100x8")
            service = subprocess.Popen(argv, env=env, stdout=log, stderr=log, executable=f"{program}/fairlead")
            try:
                _run("for i in $(seq 300); do fairlead status && break; sleep 0.1; done; fairlead image demo", env)
                for name, count in (("train", 2), ("notebook", 1), ("sweep", 4), ("more", 4)):
                    _run(f"fairlead run -d --name {name} -g {count} localhost/demo -- sh -c '{_WORK}'", env)
                _run("sleep 3", env)
                threading.Thread(target=_tunnel, args=(listener, f"{folder}/run/api.sock"), daemon=True).start()
                yield from _photographed(f"http://localhost:{listener.getsockname()[1]}")
            finally:
                _run("fairlead rm -f train notebook sweep more; fairlead down || true", env)
                service.terminate()
                service.wait(30)


def _photographed(address: str) -> Iterator[tuple[str, bytes]]:
    with browser.opened() as page:
        for name, path, width in _SHOWN:
            page.look(width=width)
            page.open(f"{address}{path}")
            height = min(page.ask("document.documentElement.scrollHeight"), 1500 if width > 600 else 1900)
            page.look(width=width, height=height)
            yield name, page.picture(whole=False)


def _tunnel(listener: socket.socket, target: str) -> None:
    """Carry what comes to an address to a unix socket, as `ssh -L` does, until the address is closed."""
    with contextlib.suppress(OSError):
        while True:
            near, _ = listener.accept()
            far = socket.socket(socket.AF_UNIX)
            far.connect(target)
            for source, sink in ((near, far), (far, near)):
                threading.Thread(target=_carry, args=(source, sink), daemon=True).start()


def _carry(source: socket.socket, sink: socket.socket) -> None:
    with contextlib.suppress(OSError):
        while piece := source.recv(1 << 16):
            sink.sendall(piece)
        sink.shutdown(socket.SHUT_WR)


def main() -> None:
    """Write the pictures."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--record", action="store_true", help="record the terminal too (needs root and podman)")
    parser.add_argument("--console", action="store_true", help="take the console's (needs root, podman, Chromium)")
    asked = parser.parse_args()
    FOLDER.mkdir(exist_ok=True)
    for name, draw in DIAGRAMS.items():
        (FOLDER / name).write_text("\n".join(draw()) + "\n")
        print(FOLDER / name)
    if asked.record:
        (FOLDER / "terminal.svg").write_text(record(str(Path(sys.executable).parent)))
        print(FOLDER / "terminal.svg")
    if asked.console:
        for name, data in console(str(Path(sys.executable).parent)):
            (FOLDER / name).write_bytes(data)
            print(FOLDER / name)


if __name__ == "__main__":
    main()
