"""Decides the handler of gVisor: a Fairlead program that starts runsc with the operator's options.

The same program serves every engine, since an engine's own way to give options differs or is missing: podman's are
those of each command. containerd starts gVisor's shim, which starts the program that its file of options names.
gVisor opens a GPU's device node on the host by the path that the container sees. Where the nodes lie elsewhere, those
of a driver in a container or of simulated GPUs, the program lays their folder over /dev, in a mount namespace of its
own, before it becomes runsc.
Source: gVisor g3doc/user_guide/containerd/configuration.md; pkg/shim/v1/runsc/options.go; containers.conf(5).
"""

from __future__ import annotations

import re
import shlex
from collections.abc import Mapping, Sequence
from typing import Any, Final

from fairlead import errors
from fairlead.model.container import isolation
from fairlead.plan.engineconfig import gvisorpod
from fairlead.plan.engineconfig.model import Request
from fairlead.wire.text import toml

NAME: Final = isolation.GVISOR_CLASS
_PROGRAM: Final = "fairlead-gvisor"
_OPTIONS: Final = "runsc.toml"
_SHIM: Final = "containerd-shim-runsc-v1"
_OF_PODS: Final = frozenset({"containerd", "crio"})
"""Engines whose sandboxes hold several containers."""
_FLAG: Final = re.compile(r"[a-zA-Z][a-zA-Z0-9-]{0,62}(?:=[\x21-\x7e]{0,200})?")
_LONGEST_PATH: Final = 4000
_FOLDER: Final = re.compile(r"(?:/[A-Za-z0-9_.+@-]+)+")
"""A path that needs no escape in the options of an overlay file system."""
_HEAD: Final = "#!/bin/sh\n# Written by `fairlead runtime configure`: gVisor with the options that were asked for.\n"
_CHECKED: Final = frozenset({"podman"})
"""Engines that put an image's annotations into the runtime spec, and do not know pods of one sandbox."""
_CHECK: Final = r"""
bundle=
for word; do
  if [ "$bundle" = - ]; then bundle=$word; break; fi
  case $word in
    --bundle=*) bundle=${word#--bundle=}; break ;;
    --bundle | -bundle | -b) bundle=- ;;
  esac
done
# gVisor obeys annotations: files of the host, another sandbox to join. Podman copies those that an image has.
obeyed='"(dev[.]gvisor[.]|io[.]kubernetes[.]cri[.]|io[.]kubernetes[.]cri-o[.](ContainerType|SandboxID)")'
if [ -n "$bundle" ]; then
  grep -Eq "$obeyed" "$bundle/config.json"
  case $? in
    1) ;;
    0) echo "the image has annotations for gVisor (dev.gvisor.*, io.kubernetes.cri*): it is not run" >&2; exit 1 ;;
    *) echo "annotations of $bundle cannot be read: it is not run" >&2; exit 1 ;;
  esac
fi
"""
_OVER: Final = 'mount -t overlay -o lowerdir="$0":/dev overlay /dev && exec "$@"'


def check(request: Request) -> None:
    """Refuse options that runsc cannot have, and a folder that cannot be laid over /dev. Raises: Invalid."""
    for flag in request.gvisor_flags:
        if _FLAG.fullmatch(flag) is None:
            message = f'"{errors.readable(flag[:200])}" is not an option of runsc of the form NAME or NAME=VALUE'
            raise errors.Invalid(message, reason="GVisorFlagInvalid", hint="--gvisor-flag nvproxy-driver-version=X")
    dev = request.gvisor_dev
    if dev and (len(dev) > _LONGEST_PATH or _FOLDER.fullmatch(dev) is None):
        message = f"{dev!r:.300} cannot be laid over /dev"
        hint = "an absolute path of letters, digits, '-', '_', '.', '+' and '@'"
        raise errors.Invalid(message, reason="GVisorFolderInvalid", hint=hint)
    if not request.gvisor and (request.gvisor_flags or request.gvisor_dev):
        message = "--gvisor-flag and --gvisor-dev are for --gvisor"
        raise errors.Invalid(message, reason="GVisorFlagInvalid", hint="add --gvisor, or leave them out")


def flags(engine: str, given: Sequence[str], *, has_driver: bool) -> tuple[str, ...]:
    """Return the options of runsc: those that are given, and nvproxy where pods may have GPUs.

    A pod's sandbox is there before its containers, and gVisor decides then whether it will pass calls on to the driver.
    Without a driver a sandbox with nvproxy does not start.
    """
    words = tuple(flag.removeprefix("--") for flag in given)
    names = {word.partition("=")[0] for word in words}
    if engine not in _OF_PODS or "nvproxy" in names or not (has_driver or "nvproxy-driver-version" in names):
        return words
    return (*words, "nvproxy")


def program(engine: str, request: Request) -> str:
    """Return the path of the program that the engine is to start."""
    return f"{request.folder}/{engine}/{_PROGRAM}"


def shim(request: Request) -> str:
    """Return the path of gVisor's shim for containerd, which lies beside runsc."""
    return f"{request.gvisor.rpartition('/')[0]}/{_SHIM}"


def made(engine: str, request: Request) -> Mapping[str, tuple[bytes, int]]:
    """Return the files that the handler needs, by path: content and mode; none where it is not asked for."""
    if not request.gvisor:
        return {}
    found = {program(engine, request): (launcher(request, engine), 0o755)}
    if engine == "containerd":
        body = toml.emit({"binary_name": program(engine, request)})
        found[_options(engine, request)] = (body, 0o644)
    return found


def launcher(request: Request, engine: str = "") -> bytes:
    """Return the text of the program.

    For podman it refuses images whose annotations gVisor would obey, and puts containers of a pod into one sandbox.
    """
    words = [request.gvisor, *(f"--{flag}" for flag in request.gvisor_flags)]
    line = " ".join(map(shlex.quote, words))
    if request.gvisor_dev:
        over = f"unshare --mount --propagation slave /bin/sh -c {shlex.quote(_OVER)} {shlex.quote(request.gvisor_dev)}"
        line = f"{over} {line}"
    head = f"{_HEAD}{_CHECK}{gvisorpod.text(line, request.python)}" if engine in _CHECKED else _HEAD
    return f'{head}exec {line} "$@"\n'.encode()


def containerd(request: Request) -> dict[str, Any]:
    """Return containerd's handler. No annotation is let through: a pod's could change how gVisor runs it."""
    options = {"TypeUrl": "io.containerd.runsc.v1.options", "ConfigPath": _options("containerd", request)}
    return {"runtime_type": "io.containerd.runsc.v1", "runtime_path": shim(request), "options": options}


def crio(request: Request) -> dict[str, Any]:
    """Return CRI-O's handler."""
    return {"runtime_path": program("crio", request), "runtime_type": "oci"}


def _options(engine: str, request: Request) -> str:
    return f"{request.folder}/{engine}/{_OPTIONS}"


def kept(runtimes: Mapping[str, Any], request: Request) -> tuple[str, ...]:
    """Return the note that a handler of this name, which others defined, stays as it is."""
    if request.gvisor and NAME in runtimes:
        return (f'a runtime "{NAME}" was there already and stays as it is',)
    return ()
