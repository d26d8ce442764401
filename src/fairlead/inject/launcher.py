"""Writes the two programs that engines and runtimes start: `fairlead-runtime` and `fairlead-hook`.

A console script of a virtual environment would do, and costs 5 ms more at each start for `site`. These start the
interpreter with `-I -S`: no site packages, no PYTHON* variables, and never the current folder (which the image
controls) on the module path. Where the package is and which policy file counts is written into them, so that nothing
in the environment can change it.

Beside each launcher lies an image: the compiled code of the few modules it needs in one file and without docstrings,
because finding a dozen modules costs as much again as running them. An image of another Python, or of sources that have
changed since, is not used: then Python imports as ever. Nothing breaks when an image is deleted. Garbage is not
collected: both programs live for milliseconds, and what they make they use.
"""

from __future__ import annotations

import compileall
import importlib.util
import marshal
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import fairlead
from fairlead import errors, files
from fairlead.inject import policy

RUNTIME: Final = "fairlead-runtime"
HOOK: Final = "fairlead-hook"
MODULES: Final = {
    RUNTIME: (
        "fairlead",
        "fairlead.inject",
        "fairlead.inject.fastjson",
        "fairlead.model",
        "fairlead.model.cdikind",
        "fairlead.model.replica",
        "fairlead.model.container",
        "fairlead.model.container.visibledevices",
        "fairlead.plan",
        "fairlead.plan.cdi",
        "fairlead.plan.cdi.capability",
        "fairlead.plan.cdi.requirement",
        "fairlead.plan.shim",
        "fairlead.plan.shim.allocation",
        "fairlead.plan.shim.request",
        "fairlead.inject.policy",
        "fairlead.inject.allocations",
        "fairlead.plan.cdi.hookargs",
        "fairlead.inject.bundle",
        "fairlead.inject.commandline",
        "fairlead_cdi",
        "fairlead_cdi.host",
        "fairlead_cdi.host.trust",
        "fairlead.inject.cachereader",
        "fairlead.inject.runtime",
    ),
    HOOK: (
        "fairlead",
        "fairlead.inject",
        "fairlead.inject.fastjson",
        "fairlead.inject.hook",
        "fairlead.inject.hook.elf",
        "fairlead.inject.syscall",
        "fairlead.inject.rootfs",
        "fairlead.inject.hook.compat",
        "fairlead.inject.hook.linker",
        "fairlead.inject.hook.program",
    ),
}
"""What an image holds: each module after those it imports."""
_SHEBANG_LIMIT: Final = 127
_MODE: Final = 0o755
_SYSTEM: Final = "/usr/bin/python3"
_LIMIT_S: Final = 10
_IMAGE_MODE: Final = 0o644
_NO_DOCSTRINGS: Final = 2
_TEXT: Final = """\
#!{interpreter} -IS
import gc, marshal, posix, sys
gc.disable()
sys.path.append({packages!r})
def load(path):
    try:
        handle = posix.open(path, posix.O_RDONLY)
        magic, data = posix.read(handle, 4), posix.read(handle, posix.fstat(handle).st_size)
        posix.close(handle)
        if magic != sys.modules["_frozen_importlib_external"].MAGIC_NUMBER[:4]:
            return
        parts = marshal.loads(data)
        for name, path, changed, folders, code in parts:
            if posix.stat(path).st_mtime_ns != changed:
                return
    except (OSError, ValueError, EOFError, TypeError):
        return
    for name, path, changed, folders, code in parts:
        module = sys.modules[name] = type(sys)(name)
        module.__file__ = path
        module.__package__ = name if folders else name.rpartition(".")[0]
        if folders:
            module.__path__ = folders
        parent, _, child = name.rpartition(".")
        if parent:
            setattr(sys.modules[parent], child, module)
        exec(code, module.__dict__)
load({image!r})
from {package} import {module}
posix._exit({call})
"""


def emit_runtime(
    *,
    interpreter: str,
    packages: str,
    hook: str,
    config: str = policy.DEFAULT_PATH,
    image: str = "",
    runtimes: Sequence[str] = (),
) -> bytes:
    """Return the text of the runtime's launcher.

    Args:    interpreter: absolute path of Python.   packages: folder that holds the package `fairlead`.
             hook: absolute path of the hook's launcher; empty: add no hook.   config: the operator's file.
             image: absolute path of the image; empty: none.
             runtimes: what to become where the operator's file does not say; none: runc, else crun.
    Raises:  Invalid: a path is relative, or the interpreter's is too long for the kernel.
    """
    chosen = f", runtimes={tuple(runtimes)!r}" if runtimes else ""
    call = f"runtime.main(config={config!r}, hook={hook!r}{chosen})"
    return _emit(interpreter, packages, image=image, module="fairlead.inject.runtime", call=call)


def emit_hook(*, interpreter: str, packages: str, image: str = "") -> bytes:
    """Return the text of the hook's launcher. Raises: Invalid: as `emit_runtime`."""
    return _emit(interpreter, packages, image=image, module="fairlead.inject.hook.program", call="program.main()")


def _emit(interpreter: str, packages: str, *, image: str, module: str, call: str) -> bytes:
    if not interpreter.startswith("/") or not packages.startswith("/"):
        message = f'"{interpreter}" and "{packages}" must be absolute paths'
        raise errors.Invalid(message, reason="LauncherPathInvalid")
    package, _, name = module.rpartition(".")
    text = _TEXT.format(
        interpreter=interpreter, packages=packages, image=image, package=package, module=name, call=call
    )
    if len(text.partition("\n")[0]) > _SHEBANG_LIMIT or any(letter.isspace() for letter in interpreter):
        message = f'the kernel cannot start "{interpreter}" from a script: too long, or spaces in it'
        raise errors.Invalid(message, reason="LauncherPathInvalid", hint="use a system Python")
    return text.encode()


def emit_image(modules: Sequence[str], packages: Path) -> bytes:
    """Return the compiled modules of a launcher, for the Python that runs now."""
    parts = []
    for name in modules:
        place = packages.joinpath(*name.split("."))
        is_package = place.is_dir()
        source = place / "__init__.py" if is_package else place.with_suffix(".py")
        code = compile(source.read_bytes(), str(source), "exec", dont_inherit=True, optimize=_NO_DOCSTRINGS)
        parts.append((name, str(source), source.stat().st_mtime_ns, [str(place)] if is_package else None, code))
    return importlib.util.MAGIC_NUMBER[:4] + marshal.dumps(parts)


def find_interpreter() -> Path:
    """Choose the Python that starts fastest among those that read our code: distributions build theirs best.

    Only the standard library is needed, so the virtual environment's own is never the better one.
    """
    ask = "import sys; print(sys.modules['_frozen_importlib_external'].MAGIC_NUMBER.hex())"
    try:
        done = subprocess.run((_SYSTEM, "-IS", "-c", ask), capture_output=True, text=True, check=True, timeout=_LIMIT_S)
    except (OSError, subprocess.SubprocessError):
        return Path(sys.executable).resolve()
    fits = done.stdout.strip() == importlib.util.MAGIC_NUMBER.hex()
    return Path(_SYSTEM if fits else sys.executable).resolve()


def install(
    folder: Path,
    *,
    config: Path = Path(policy.DEFAULT_PATH),
    interpreter: Path | None = None,
    runtimes: Sequence[str] = (),
) -> None:
    """Write both launchers and their images into a folder, and compile the package; idempotent.

    Args:    folder: must belong to root and be closed to others, else the shim refuses its own hook.
             interpreter: of the version that runs now; None: the system's if it is, else the one that runs now.
             runtimes: as for `emit_runtime`.
    Raises:  Denied: others could write the folder or the package.   Invalid, Unavailable: as above, or disk.
    """
    package = Path(fairlead.__file__).resolve().parent
    for place in (folder, package, package / "inject"):
        if not policy.is_ours(place.stat()):
            message = f"{place} can be written by others than root"
            raise errors.Denied(message, reason="LauncherFolderUntrusted", hint="chown it to root and chmod go-w")
    python = str(interpreter or find_interpreter())
    packages = str(package.parent)
    hook = folder / HOOK
    images = {name: folder / f"{name}.image" for name in MODULES}
    for name, image in images.items():
        files.write_atomic(image, emit_image(MODULES[name], package.parent), mode=_IMAGE_MODE)
    text = emit_hook(interpreter=python, packages=packages, image=str(images[HOOK]))
    files.write_atomic(hook, text, mode=_MODE)
    text = emit_runtime(
        interpreter=python,
        packages=packages,
        hook=str(hook),
        config=str(config),
        image=str(images[RUNTIME]),
        runtimes=runtimes,
    )
    files.write_atomic(folder / RUNTIME, text, mode=_MODE)
    compileall.compile_dir(package, quiet=2)
