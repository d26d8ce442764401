"""What every guest of `machine.py` has at hand: reports on a serial port, and Fairlead's own command line.

Runs inside the virtual machine, packed as `/onboard.py`. A report is a JSON line `{"name": …, "value": …}` on the
second serial port. Fairlead's program is imported once and forked for each command line, because importing costs
seconds where every instruction is emulated; the commands are otherwise those of the shell, with their own output and
exit codes. A guest imports the modules of the verbs that it calls, as `main` would do only in the fork.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from fairlead.cli import main


def report(name: str, value: Any) -> None:
    with Path("/dev/ttyS1").open("w") as port:
        port.write(json.dumps({"name": name, "value": value}) + "\n")


def start(*arguments: str, folder: Path, env: Mapping[str, str] | None = None) -> int:
    """Fork a command line of Fairlead; its output goes to files. Returns the pid. Args: env: more variables."""
    folder.mkdir(exist_ok=True)
    pid = os.fork()
    if pid:
        return pid
    for number, name in ((1, "out"), (2, "err")):
        os.dup2(os.open(folder / name, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o644), number)
    code = main.invoke(arguments, env={"PATH": "/usr/sbin:/usr/bin:/bin", "HOME": "/root", **(env or {})})
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


def fairlead(*arguments: str, env: Mapping[str, str] | None = None) -> dict[str, Any]:
    folder = Path("/run/call")
    pid = start(*arguments, folder=folder, env=env)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return {"code": code, "out": (folder / "out").read_text(), "err": (folder / "err").read_text()}
