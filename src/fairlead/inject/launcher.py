"""Writes the two programs that engines and runtimes start: `fairlead-runtime` and `fairlead-hook`.

A console script of a virtual environment would do, and costs 5 ms more at each start for `site`. These start the
interpreter with `-I -S`: no site packages, no PYTHON* variables, and never the current folder (which the image
controls) on the module path. Where the package is and which policy file counts is written into them, so that nothing
in the environment can change it. The code is compiled at once: a shim that cannot write its cache would compile anew
at every start.
"""

from __future__ import annotations

import compileall
import os
import sys
from pathlib import Path

import fairlead
from fairlead import errors, files
from fairlead.inject import policy

RUNTIME = "fairlead-runtime"
HOOK = "fairlead-hook"
_SHEBANG_LIMIT = 127
_MODE = 0o755


def emit_runtime(*, interpreter: str, packages: str, hook: str, config: str = policy.DEFAULT_PATH) -> bytes:
    """Return the text of the runtime's launcher.

    Args:    interpreter: absolute path of Python.   packages: folder that holds the package `fairlead`.
             hook: absolute path of the hook's launcher; empty: add no hook.   config: the operator's file.
    Raises:  Invalid: a path is relative, or the interpreter's is too long for the kernel.
    """
    call = f"runtime.main(config={config!r}, hook={hook!r})"
    return _emit(interpreter, packages, "runtime", call=call)


def emit_hook(*, interpreter: str, packages: str) -> bytes:
    """Return the text of the hook's launcher. Raises: Invalid: as `emit_runtime`."""
    return _emit(interpreter, packages, "hook", call="hook.main()")


def _emit(interpreter: str, packages: str, module: str, *, call: str) -> bytes:
    first = f"#!{interpreter} -IS"
    if not interpreter.startswith("/") or not packages.startswith("/"):
        message = f'"{interpreter}" and "{packages}" must be absolute paths'
        raise errors.Invalid(message, reason="LauncherPathInvalid")
    if len(first) > _SHEBANG_LIMIT or any(letter.isspace() for letter in interpreter):
        message = f'the kernel cannot start "{interpreter}" from a script: too long, or spaces in it'
        raise errors.Invalid(message, reason="LauncherPathInvalid", hint="use a system Python")
    body = (
        f"import posix, sys\nsys.path.append({packages!r})\nfrom fairlead.inject import {module}\nposix._exit({call})\n"
    )
    return f"{first}\n{body}".encode()


def install(folder: Path, *, config: Path = Path(policy.DEFAULT_PATH), interpreter: Path | None = None) -> None:
    """Write both launchers into a folder, and compile what they import; idempotent.

    Args:    folder: must belong to root and be closed to others, else the shim refuses its own hook.
             interpreter: None: the one that runs now, without its virtual environment.
    Raises:  Denied: others could write the folder or the package.   Invalid, Unavailable: as above, or disk.
    """
    package = Path(fairlead.__file__).resolve().parent
    for place in (folder, package, package / "inject"):
        if not policy.is_ours(place.stat()):
            message = f"{place} can be written by others than root"
            raise errors.Denied(message, reason="LauncherFolderUntrusted", hint="chown it to root and chmod go-w")
    python = str(interpreter or Path(os.path.realpath(sys.executable)))
    packages = str(package.parent)
    hook = folder / HOOK
    files.write_atomic(hook, emit_hook(interpreter=python, packages=packages), mode=_MODE)
    runtime = emit_runtime(interpreter=python, packages=packages, hook=str(hook), config=str(config))
    files.write_atomic(folder / RUNTIME, runtime, mode=_MODE)
    compileall.compile_dir(package, quiet=2)
