"""The programs of a cluster, built once from pinned Go modules and kept outside the tree.

Each folder below `tests/cluster/tools` is one Go module whose `tool` lines name programs; go.mod and go.sum pin every
byte. A module's programs lie in a folder named after the hash of what decides them, so a changed pin is another folder
and an unchanged one costs a few `stat` calls. A build happens beside the final folder and is renamed into place: a
build that was cut off leaves nothing that looks finished. Two builders at once are kept apart by a lock.
"""

from __future__ import annotations

import fcntl
import hashlib
import os
import shutil
import subprocess
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from fairlead import errors

ROOT: Final = Path(__file__).parent.parent.parent
MODULES: Final = ROOT / "tests" / "cluster" / "tools"
CACHE: Final = Path.home() / ".cache" / "fairlead" / "cluster"
DEFAULT_VERSION: Final = "1.36"
_NICE: Final = ("nice", "-n", "19")
_REPORT_S: Final = 15.0


@dataclass(frozen=True, slots=True, kw_only=True)
class Module:
    """One Go module of programs."""

    name: str
    stamps: tuple[str, ...] = ()
    """Go variables that hold the version; the value is the required module's version."""
    required: str
    """Path of the module whose version is the programs' version."""
    renamed: tuple[tuple[str, str], ...] = ()
    """(what `go build` calls a program, what it is called here)."""
    stamped: str = ""
    """The value of `stamps` where it is another: the release as its users know it."""
    tags: tuple[str, ...] = ()
    """Go's build tags."""
    compiled: tuple[tuple[str, str], ...] = ()
    """(folder of C files in the required module, the program made of them)."""
    cgo: bool = False
    """Its Go calls C."""
    changed: tuple[tuple[str, str, str, str], ...] = ()
    """(package of a program, file of the required module, words in it, what is compiled in their place)."""


_KUBERNETES_STAMPS: Final = ("k8s.io/component-base/version.gitVersion", "k8s.io/client-go/pkg/version.gitVersion")
SHARED: Final = (
    Module(name="etcd", required="go.etcd.io/etcd/server/v3", renamed=(("server", "etcd"),)),
    Module(
        name="containerd",
        required="github.com/containerd/containerd/v2",
        stamps=("github.com/containerd/containerd/v2/version.Version",),
    ),
    Module(name="helm", required="helm.sh/helm/v4", stamps=("helm.sh/helm/v4/internal/version.version",)),
)
KWOK: Final = Module(name="kwok", required="sigs.k8s.io/kwok", stamps=("sigs.k8s.io/kwok/pkg/consts.Version",))
"""Nodes that only look like some: for tests of many nodes, on the cluster's PATH there."""
PROMETHEUS_OPERATOR: Final = Module(
    name="prometheus-operator",
    required="github.com/prometheus-operator/prometheus-operator",
    stamps=("github.com/prometheus/common/version.Version",),
    renamed=(("operator", "prometheus-operator"),),
)
"""Built by the one test that runs it, since smaller rings need none of it."""
GVISOR: Final = Module(
    name="gvisor",
    required="gvisor.dev/gvisor",
    stamps=("gvisor.dev/gvisor/runsc/version.version",),
    renamed=(("shim", "containerd-shim-runsc-v1"),),
    # The shim's OOM score, which root without CAP_SYS_RESOURCE may not lower: it ends there.
    changed=(("gvisor.dev/gvisor/shim", "pkg/shim/v1/manager.go", "oomScoreMax = -999", "oomScoreMax = 0"),),
)
"""Built by `tests/system/gvisor/setup.sh` for the tests of sandboxes."""
VENDOR_PLUGIN: Final = Module(name="nvidia-device-plugin", required="github.com/NVIDIA/k8s-device-plugin", cgo=True)
"""Built by the one test that runs it."""
OLDER: Final = (
    Module(
        name="containerd-1.7",
        required="github.com/containerd/containerd",
        stamps=("github.com/containerd/containerd/version.Version",),
    ),
    Module(
        name="docker",
        required="github.com/moby/moby/v2",
        stamps=("github.com/moby/moby/v2/dockerversion.Version",),
        # The engine's module counts for itself; what it is released as is in its Dockerfile only.
        stamped="29.8.0",
    ),
    Module(
        name="crio",
        required="github.com/cri-o/cri-o",
        tags=(
            "containers_image_openpgp",
            "containers_image_ostree_stub",
            "exclude_graphdriver_btrfs",
            "btrfs_noversion",
        ),
        compiled=(("pinns/src", "pinns"),),
    ),
)
"""Not part of any cluster: what other nodes run, for the tests of engine configuration."""


def versions() -> tuple[str, ...]:
    """Return the Kubernetes minor versions that are pinned, newest first."""
    found = (path.name.removeprefix("kubernetes-") for path in MODULES.glob("kubernetes-*"))
    return tuple(sorted(found, key=lambda text: [int(part) for part in text.split(".")], reverse=True))


def modules(version: str, *, ring: bool = False) -> tuple[Module, ...]:
    """Return what a cluster of one Kubernetes version is made of.

    Args:   ring: with what only the tests run in it.
    Raises: RequestError: the version is not pinned here.
    """
    if version not in versions():
        message = f"kubernetes {version!r} is not pinned (pinned: {', '.join(versions())})"
        raise errors.RequestError(message, reason="VersionUnknown", hint="add a module below tests/cluster/tools")
    kubernetes = Module(name=f"kubernetes-{version}", required="k8s.io/kubernetes", stamps=_KUBERNETES_STAMPS)
    return (kubernetes, *SHARED, *((KWOK,) if ring else ()))


def folder_of(module: Module, cache: Path = CACHE) -> Path:
    """Return where the module's programs lie, or will."""
    digest = hashlib.sha256()
    for name in ("go.mod", "go.sum"):
        digest.update((MODULES / module.name / name).read_bytes())
    digest.update(repr((module.stamps, module.renamed, _FLAGS)).encode())
    if module.stamped or module.tags or module.compiled:
        digest.update(repr((module.stamped, module.tags, module.compiled)).encode())
    if module.changed:
        digest.update(repr(module.changed).encode())
    return cache / f"{module.name}-{digest.hexdigest()[:12]}" / "bin"


_FLAGS: Final = ("-trimpath", "-buildvcs=false", "-mod=readonly")


def ensure_programs(
    version: str = DEFAULT_VERSION,
    *,
    ring: bool = False,
    cache: Path = CACHE,
    jobs: int = 2,
    say: Callable[[str], None] = print,
) -> tuple[Path, ...]:
    """Build what is missing and return the folders with programs, in the order of PATH.

    Args:   ring: with what only the tests run in a cluster.
    Raises: Unavailable: no Go, or a build failed.
    """
    wanted = modules(version, ring=ring)
    missing = [module.name for module in wanted if not folder_of(module, cache).is_dir()]
    if missing:
        say(f"building {', '.join(missing)}: about eight minutes on two idle cores for all of a cluster, once")
    return tuple(ensure(module, cache=cache, jobs=jobs, say=say) for module in wanted)


def ensure(module: Module, *, cache: Path = CACHE, jobs: int = 2, say: Callable[[str], None] = print) -> Path:
    """Build one module where that was not done, and return its folder. Raises: as `ensure_programs`."""
    folder = folder_of(module, cache)
    if not folder.is_dir():
        _build(module, folder, jobs=jobs, say=say)
    return folder


def _build(module: Module, folder: Path, *, jobs: int, say: Callable[[str], None]) -> None:
    if shutil.which("go") is None:
        hint = "install Go 1.26 or newer, and put it on PATH"
        raise errors.Unavailable("no go command: the cluster's programs cannot be built", reason="NoGo", hint=hint)
    home = folder.parent
    home.mkdir(parents=True, exist_ok=True)
    with (home / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if folder.is_dir():
            return  # another builder was faster
        begun = time.monotonic()
        partial = home / "partial"
        shutil.rmtree(partial, ignore_errors=True)
        version = version_of(module)
        say(f"building {module.name} {version}, once")
        _go_build(module, module.stamped or version, partial, jobs, say)
        if module.changed:
            _rebuild_changed(module, partial, home)
        for sources, program in module.compiled:
            _compile(module, sources, partial / program)
        for built, wanted in module.renamed:
            (partial / built).rename(partial / wanted)
        partial.rename(folder)
        say(f"built {module.name} {version} in {time.monotonic() - begun:.0f} s: {', '.join(programs(folder))}")


def _rebuild_changed(module: Module, output: Path, folder: Path) -> None:
    """Build programs anew from a copy of the required module in which some words are others.

    Go compiles no changed file of its module cache, so the module is copied, and a go.mod beside leads to the copy.
    """
    sources, copy = sources_of(module), folder / "changed"
    shutil.rmtree(copy, ignore_errors=True)
    shutil.copytree(sources, copy, copy_function=shutil.copyfile)
    for _, path, old, new in module.changed:
        text = (copy / path).read_text()
        if text.count(old) != 1:
            message = f"{module.required}: {path} does not have {old!r} once"
            raise errors.ProtocolError(message, reason="PinMissing", hint="its release has changed: mend build.py")
        (copy / path).write_text(text.replace(old, new))
    own = MODULES / module.name
    modfile = folder / "changed.mod"
    modfile.write_text(f"{(own / 'go.mod').read_text()}\nreplace {module.required} => {copy}\n")
    shutil.copyfile(own / "go.sum", folder / "changed.sum")
    for package in dict.fromkeys(package for package, *_ in module.changed):
        options = ("-trimpath", "-buildvcs=false", "-mod=mod", f"-modfile={modfile}", "-ldflags", "-s -w")
        _run(module, (*_NICE, "go", "build", *options, "-o", str(output / Path(package).name), package))
    shutil.rmtree(copy)


def _go_build(module: Module, version: str, output: Path, jobs: int, say: Callable[[str], None]) -> None:
    # -s -w: no symbol table, no DWARF: a third smaller, and nothing here is debugged in gdb
    flags = " ".join(("-s", "-w", *(f"-X {stamp}={version}" for stamp in module.stamps)))
    tags = ("-tags", ",".join(module.tags)) if module.tags else ()
    command = (*_NICE, "go", "build", "-v", f"-p={jobs}", *_FLAGS, *tags, "-ldflags", flags, "-o", f"{output}/", "tool")
    begun = reported = time.monotonic()
    lines: list[str] = []
    with subprocess.Popen(
        command, cwd=MODULES / module.name, env=_environment(module), stderr=subprocess.PIPE, text=True
    ) as process:
        for line in process.stderr or ():  # -v: a line for each package, after it was compiled
            lines.append(line)
            if (now := time.monotonic()) - reported > _REPORT_S:
                reported = now
                say(f"building {module.name}: {len(lines)} packages compiled, {now - begun:.0f} s")
    _assert_built(module, process.returncode, "".join(lines))


def _compile(module: Module, sources: str, program: Path) -> None:
    files = map(str, sorted((sources_of(module) / sources).glob("*.c")))
    _run(module, (*_NICE, "gcc", "-std=c99", "-Os", "-static", "-s", "-o", str(program), *files))


def _run(module: Module, command: Sequence[str]) -> str:
    done = subprocess.run(
        command, cwd=MODULES / module.name, env=_environment(module), capture_output=True, text=True, check=False
    )
    _assert_built(module, done.returncode, done.stderr)
    return done.stdout


def _environment(module: Module) -> dict[str, str]:
    return {**os.environ, "CGO_ENABLED": "1" if module.cgo else "0", "GOWORK": "off", "GOFLAGS": ""}


def _assert_built(module: Module, status: int, said: str) -> None:
    if status:
        message = f"building {module.name} ended with {status}:\n{said[-4000:]}"
        raise errors.Unavailable(message, reason="BuildFailed", hint="the module proxy in GOPROXY must answer")


def sources_of(module: Module) -> Path:
    """Return the folder of the required module's own files, in Go's module cache. Raises: as `ensure_programs`."""
    return Path(_run(module, ("go", "list", "-mod=readonly", "-m", "-f", "{{.Dir}}", module.required)).strip())


def version_of(module: Module) -> str:
    """Return the version go.mod pins, for example `v1.36.3`."""
    for line in (MODULES / module.name / "go.mod").read_text().splitlines():
        words = line.removeprefix("require").split()
        if len(words) >= 2 and words[0] == module.required and words[1].startswith("v"):
            return words[1]
    message = f"{module.name}/go.mod does not require {module.required}"
    raise errors.ProtocolError(message, reason="PinMissing", hint="run `go mod tidy` there")


def programs(folder: Path) -> tuple[str, ...]:
    """Return the names of the programs in a folder."""
    return tuple(sorted(path.name for path in folder.iterdir()))
