"""Runs the commands of a page as printed: `python3 pages.py PAGE…`, standard library only, so any machine can.

A block of ```console holds commands (lines that begin with `$ `) and what they print. Each command runs in bash, on a
terminal of 80 columns, in the folder where the one before it left off. It must succeed, unless the page prints an
`error:` for it; each line that the page prints must be printed, up to an `…`. `fairlead up` is what the reader leaves
running in another terminal: it goes on until the page ends. What follows or watches until it is stopped gets Ctrl-C
after some seconds, and a shell (`-it`) is left with `exit`. A comment `# exit code 4` behind a command is what it must
end with. A block of another language with a title is a file of that name, which the reader writes.

What cannot run here is marked on the page, on the line before its block: `<!-- not run: why -->`; where it can,
`--marked WHY` runs such blocks alone. A command with an `…`
is one that the reader completes; `--say WORD=VALUE` completes a word of the page, such as a registry.
"""

# ruff: noqa: T201, S606  a program: it prints, and starts bash
from __future__ import annotations

import argparse
import fcntl
import os
import pty
import re
import signal
import struct
import sys
import termios
import threading
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

_MARK = r"(?:^<!-- not run: (?P<why>[^\n]+?) -->\n)?"
_FENCE = r"^```(?:console|\w+ title=\"(?P<file>[^\"]+)\")\n(?P<text>.*?)^```"
_BLOCK = re.compile(_MARK + _FENCE, re.MULTILINE | re.DOTALL)
_ESCAPE = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_SERVICE = re.compile(r"(sudo )?fairlead up\b")
_ENDLESS = re.compile(r"fairlead (logs|events)\b.* -f\b|fairlead cdi watch\b| --watch\b")
_CODE = re.compile(r"#.*\bexit code (?P<code>\d+)")
_FOLLOWED_S = 4.0
_COLUMNS = 80


@dataclass
class Step:
    """One command of a page."""

    command: str
    printed: list[str] = field(default_factory=list)
    is_file: bool = False
    """Whether it writes a file that the page shows."""

    @property
    def is_service(self) -> bool:
        return _SERVICE.match(self.command) is not None

    @property
    def is_endless(self) -> bool:
        return _ENDLESS.search(self.command) is not None

    def may_end(self, code: int) -> bool:
        """Say whether a command may end with this code: the one in its comment, another than 0 after an `error:`."""
        if found := _CODE.search(self.command):
            return code == int(found["code"])
        return (code != 0) == any(line.startswith("error:") for line in self.printed)


@dataclass
class Block:
    """One block of commands; `why` says why it is not run, empty where it is."""

    steps: list[Step]
    why: str = ""


def read(text: str) -> list[Block]:
    """Return a page's blocks of commands."""
    blocks = []
    for found in _BLOCK.finditer(text):
        steps = [_written(found["file"], found["text"])] if found["file"] else list(_steps(found["text"]))
        blocks.append(Block(steps, found["why"] or ""))
    return blocks


def _written(path: str, text: str) -> Step:
    return Step(f"mkdir -p \"$(dirname {path})\" && cat > {path} <<'AS-PRINTED'\n{text}AS-PRINTED", is_file=True)


def _steps(text: str) -> Iterator[Step]:
    step: Step | None = None
    for line in text.splitlines():
        if line.startswith("$ "):
            if step is not None:
                yield step
            step = Step(line[2:])
        elif step is not None and step.command.endswith("\\"):
            step.command += "\n" + line
        elif step is not None and line.strip():
            step.printed.append(line)
    if step is not None:
        yield step


def missing(step: Step, output: str) -> list[str]:
    """Return the lines that the page prints and the command did not; an `…` stands for anything."""
    lines = [" ".join(line.split()) for line in output.splitlines()]
    absent = []
    for wanted in step.printed:
        parts = [" ".join(part.split()) for part in wanted.partition("  #")[0].split("…")]
        pattern = re.compile(".*".join(re.escape(part) for part in parts))
        if not any(pattern.search(line) for line in lines):
            absent.append(wanted)
    return absent


class Terminal:
    """A program on a terminal of its own."""

    def __init__(self, command: str, folder: Path, notes: Path) -> None:
        where, kept = _quoted(folder), _quoted(notes)
        # What one command exports, the next one has.
        before = f"[ ! -e {kept}.env ] || . {kept}.env\ncd {where}\n"
        script = f"{before}{command}\ncode=$?\npwd > {kept}\nexport -p > {kept}.env\nexit $code"
        self.output = b""
        self.pid, self._handle = pty.fork()
        if self.pid == 0:
            os.execvp("bash", ["bash", "-c", script])
        fcntl.ioctl(self._handle, termios.TIOCSWINSZ, struct.pack("HHHH", 24, _COLUMNS, 0, 0))
        # Whoever is not read stops at a full terminal, and a service goes on while other commands run.
        self._reading = threading.Thread(target=self._read, daemon=True)
        self._reading.start()

    def _read(self) -> None:
        while True:
            try:
                chunk = os.read(self._handle, 1 << 16)
            except OSError:  # EIO: nobody has the other end any more
                return
            if not chunk:
                return
            self.output += chunk

    @property
    def text(self) -> str:
        return self.output.decode(errors="replace").replace("\r\n", "\n")

    def wait(self, timeout_s: float) -> int:
        """Read to the end and return the exit code, 124 where it took too long."""
        self._reading.join(timeout_s)
        if self._reading.is_alive():
            os.kill(self.pid, signal.SIGKILL)
            os.waitpid(self.pid, 0)
            return 124
        return os.waitstatus_to_exitcode(os.waitpid(self.pid, 0)[1])

    def type(self, keys: bytes) -> None:
        """Press keys."""
        os.write(self._handle, keys)

    def is_alive_after(self, seconds: float) -> bool:
        """Wait so long, at most, for the end."""
        self._reading.join(seconds)
        return self._reading.is_alive()

    def until(self, word: str, timeout_s: float) -> bool:
        """Wait until the program has printed a word."""
        deadline = time.monotonic() + timeout_s
        while word not in self.text and self._reading.is_alive() and time.monotonic() < deadline:
            time.sleep(0.05)
        return word in self.text


def _quoted(path: Path) -> str:
    return "'" + str(path).replace("'", "'\\''") + "'"


class Runner:
    """One reader: a folder, and the services left running."""

    def __init__(self, folder: Path, *, timeout_s: float, plain: bool, said: Sequence[str] = ()) -> None:
        self.folder, self._timeout_s, self._plain = folder, timeout_s, plain
        self._said = [word.partition("=") for word in said]
        self._notes = Path(f"/tmp/fairlead-pages-{os.getpid()}")
        self._services: list[Terminal] = []
        self.problems: list[str] = []

    def page(self, path: Path, skipped: list[str], only: str = "", marked: str = "") -> None:
        """Run a page's blocks in order, without the commands that hold a word, or those alone that hold another.

        Args:    marked: run no block but those that are marked for this reason, which holds here.
        """
        text = path.read_text()
        for word, _, value in self._said:
            text = text.replace(word, value)
        for block in read(text):
            is_met = marked and marked in block.why
            if marked and not is_met:
                continue
            for step in block.steps:
                why = (not is_met and block.why) or ("to be completed" if "…" in step.command else "")
                is_left = only not in step.command and not step.is_file
                is_skipped = is_left or any(part in step.command for part in skipped)
                why = why or ("left out here" if is_skipped else "")
                if why:
                    print(f"--- {step.command}\n    not run: {why}", flush=True)
                else:
                    self.step(step, path.name)

    def step(self, step: Step, page: str) -> None:
        """Run one command and hold it to what is printed."""
        print(f"$ {step.command}", flush=True)
        terminal = Terminal(step.command, self.folder, self._notes)
        if step.is_service:
            self._services.append(terminal)
            is_up = terminal.until(" is up on ", self._timeout_s)
            print(terminal.text, flush=True)
            if not is_up:
                self.problems.append(f"{page}: {step.command}: did not come up")
            return
        if " -it " in step.command:
            terminal.type(b"exit\n")
        if step.is_endless and terminal.is_alive_after(_FOLLOWED_S):
            terminal.type(b"\x03")
            terminal.wait(self._timeout_s)
            code = 0
        else:
            code = terminal.wait(self._timeout_s)
        print(terminal.text, end="", flush=True)
        self.folder = Path(self._notes.read_text().strip()) if self._notes.exists() else self.folder
        if not step.may_end(code):
            self.problems.append(f"{page}: {step.command}: ended with {code}")
        self.problems += [f"{page}: {step.command}: did not print {line!r}" for line in missing(step, terminal.text)]
        # A shell's own line editor may ask the terminal what it likes.
        if self._plain and " -it " not in step.command and _ESCAPE.search(terminal.text):
            self.problems.append(f"{page}: {step.command}: printed escapes")

    def close(self) -> None:
        """End what the page left running."""
        for terminal in self._services:
            try:
                os.kill(terminal.pid, signal.SIGTERM)
            except ProcessLookupError:
                continue
            terminal.wait(20)
        self._notes.unlink(missing_ok=True)
        self._notes.with_name(f"{self._notes.name}.env").unlink(missing_ok=True)


def main() -> int:
    """Run pages; 1 where one is not as printed."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("pages", nargs="+", type=Path)
    parser.add_argument("--skip", action="append", default=[], help="leave out commands with this in them")
    parser.add_argument("--only", default="", help="run no command without this in it")
    parser.add_argument("--marked", default="", help="run the blocks alone whose mark has this in it")
    parser.add_argument("--timeout", type=float, default=300.0, help="seconds for one command")
    parser.add_argument("--plain", action="store_true", help="no escape may be printed")
    parser.add_argument("--say", action="append", default=[], metavar="WORD=VALUE", help="complete a word of the page")
    asked = parser.parse_args()
    runner = Runner(Path.cwd(), timeout_s=asked.timeout, plain=asked.plain, said=asked.say)
    try:
        for page in asked.pages:
            runner.page(page, asked.skip, asked.only, asked.marked)
    finally:
        runner.close()
    for problem in runner.problems:
        print(f"NOT AS PRINTED: {problem}")
    return 1 if runner.problems else 0


if __name__ == "__main__":
    sys.exit(main())
