"""`tools/gpu/pack` calls this: packs what `tools/gpu/check` needs on a machine that has no network and no Fairlead.

The pack is one archive, build/gpu/pack.tar.xz: Fairlead and its dependencies for one Python, laid out as they are
imported; the files of the check and of the silicon contract; runc, crun, podman, conmon and busybox of this machine
with the libraries they are linked to (not the C library, whose own symbols only grow). It is for x86-64.
"""

from __future__ import annotations

import argparse
import json
import re
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Final

_TREE: Final = Path(__file__).resolve().parents[2]
_TARGET: Final = _TREE / "build/gpu"
_MOST: Final = 60 << 20
"""Bytes that a pack may have: where it is carried to, few may travel."""
_PLATFORM: Final = "x86_64-manylinux_2_28"
_TESTS: Final = ("pytest", "pytest-asyncio", "pytest-timeout", "pytest-xdist", "pytest-rerunfailures", "hypothesis")
"""What tests/conftest.py and the contract's file import."""
_PROGRAMS: Final = ("runc", "crun", "podman", "conmon", "busybox")
_FILES: Final = ("pyproject.toml", "tests/conftest.py", "tests/contract/test_silicon_contract.py")
_OF_C: Final = re.compile(r"/(ld-linux[^/]*|lib(c|m|dl|rt|pthread|resolv|util)\.so\.\d+)$")
_LINKED: Final = re.compile(r"=> (/\S+) \(0x")
_NOT_IMPORTED: Final = ("numpy",)
"""Large, and missed by nothing that the check does: the scheduler weighs nodes one by one without it."""
_ENGINE_FILES: Final = {
    "policy.json": json.dumps({"default": [{"type": "insecureAcceptAnything"}]}),
    "registries.conf": "",
    "containers.conf": '[engine]\ncgroup_manager = "cgroupfs"\nevents_logger = "file"\n',
}


def main(arguments: Sequence[str]) -> int:
    """Make the pack; returns 1 where it is too large."""
    parser = argparse.ArgumentParser(prog="tools/gpu/pack", description="pack the GPU check for another machine")
    parser.add_argument("--python", default="3.12", metavar="VERSION", help="the Python there  [default: 3.12]")
    parser.add_argument(
        "--with", action="append", default=[], type=Path, metavar="FILE", dest="more", help="a further program"
    )
    given = parser.parse_args(arguments)
    if not re.fullmatch(r"3\.\d{1,2}", given.python):
        print(f'"{given.python}" is no version of Python, such as 3.12', file=sys.stderr)
        return 2
    if missing := [str(path) for path in given.more if not path.is_file()]:
        print(f"{', '.join(missing)}: no such program", file=sys.stderr)
        return 2
    _TARGET.mkdir(parents=True, exist_ok=True)
    archive = _TARGET / "pack.tar.xz"
    with tempfile.TemporaryDirectory(prefix="fairlead-gpu-pack-") as name:
        stage = Path(name)
        (stage / "python-version").write_text(given.python)
        _site(stage / "site", given.python)
        programs = _programs(stage, given.more)
        _files(stage / "tree")
        _compress(stage, archive)
        sizes = {part.name: _size(part) for part in sorted(stage.iterdir())}
    packed = archive.stat().st_size
    for part, size in sizes.items():
        print(f"{part:16} {size / (1 << 20):7.1f} MiB")
    print(f"{'packed':16} {packed / (1 << 20):7.1f} MiB in {archive.relative_to(_TREE)}")
    tracked = _tracked()
    print(f"{'beside a clone':16} {(packed + tracked) / (1 << 20):7.1f} MiB")
    if missing := sorted(set(_PROGRAMS) - set(programs)):
        print(f"not on this machine and so not in the pack: {', '.join(missing)}")
    if packed > _MOST:
        print(f"the pack may have {_MOST >> 20} MiB", file=sys.stderr)
        return 1
    return 0


def _site(folder: Path, python: str) -> None:
    """Lay out Fairlead and its dependencies for that Python, from this checkout's lock."""
    uv = _TREE / ".cache/uv/bin/uv"
    with tempfile.TemporaryDirectory(prefix="fairlead-gpu-wheels-") as name:
        wheels = Path(name)
        for source in (_TREE / "src/fairlead_cdi", _TREE):
            build = (str(uv), "build", "--quiet", "--wheel", "--no-build-isolation", "--python", sys.executable)
            subprocess.run((*build, "--out-dir", name, str(source)), check=True)
        wanted = wheels / "wanted.txt"
        wanted.write_text("\n".join(_pinned()) + "\n")
        common = ("--quiet", "--target", str(folder), "--python-version", python, "--python-platform", _PLATFORM)
        install = (str(uv), "pip", "install", *common, "--only-binary", ":all:", "--no-deps")
        subprocess.run((*install, "--require-hashes", "-r", str(wanted)), check=True)
        subprocess.run((*install, *map(str, sorted(wheels.glob("*.whl")))), check=True)
    for script in (folder / "bin", folder / ".lock"):
        shutil.rmtree(script, ignore_errors=True)
    for stale in [*folder.rglob("__pycache__")]:
        shutil.rmtree(stale)


def _pinned() -> Iterator[str]:
    """Yield the lock's entries for what a service needs, and for what the tests need, with their hashes."""
    entries = _entries(_TREE / "requirements.lock")
    names = set(_entries(_TREE / "tools/image/runtime.lock")) - set(_NOT_IMPORTED)
    tests = _closure(set(_TESTS))
    for name in sorted(names | tests):
        yield entries[name]


def _entries(lock: Path) -> dict[str, str]:
    """Return a lock's entries by name, each with its lines of hashes."""
    text = lock.read_text().replace("\\\n", " ")
    lines = [line for line in text.splitlines() if line and not line.startswith("#")]
    return {re.split(r"[=\[ ]", line, maxsplit=1)[0].lower(): line for line in lines}


def _closure(names: set[str]) -> set[str]:
    """Return these distributions and what they require, as they are installed here."""
    from importlib import metadata

    found: set[str] = set()
    todo = set(names)
    while todo:
        name = todo.pop()
        found.add(name)
        for line in metadata.requires(name) or ():
            other = re.split(r"[^A-Za-z0-9._-]", line, maxsplit=1)[0].lower().replace("_", "-")
            if "extra ==" not in line and "sys_platform" not in line and "python_version <" not in line:
                todo |= {other} - found
    return found


def _programs(stage: Path, more: Sequence[Path]) -> list[str]:
    """Copy programs and what they are linked to; returns those that are here. Args: more: beside the usual ones."""
    for part in ("bin", "lib", "etc/containers"):
        (stage / part).mkdir(parents=True)
    for name, text in _ENGINE_FILES.items():
        (stage / "etc/containers" / name).write_text(text)
    found = []
    usual = [(name, shutil.which(name)) for name in _PROGRAMS]
    for name, path in (*usual, *((one.name, str(one)) for one in more)):
        if path is None:
            continue
        found.append(name)
        shutil.copy(path, stage / "bin" / name)
        said = subprocess.run(("ldd", path), capture_output=True, text=True, check=False).stdout
        for library in _LINKED.findall(said):
            if not _OF_C.search(library):
                shutil.copy(library, stage / "lib" / Path(library).name)
    return found


def _files(tree: Path) -> None:
    """Copy the check itself and the tests that it runs."""
    shutil.copytree(Path(__file__).parent, tree / "tools/gpu", ignore=shutil.ignore_patterns("__pycache__"))
    for name in _FILES:
        (tree / name).parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(_TREE / name, tree / name)


def _compress(stage: Path, archive: Path) -> None:
    """Write the archive; what says its Python comes first, so that it is read without the rest."""
    rest = sorted(path.name for path in stage.iterdir() if path.name != "python-version")
    owner = ("--owner=0", "--group=0", "--mtime=2026-01-01", "--sort=name")
    environment = {"PATH": "/usr/bin:/bin", "XZ_OPT": "-6 -T2"}
    argv = ("tar", "-C", str(stage), *owner, "-cJf", str(archive), "python-version", *rest)
    subprocess.run(argv, check=True, env=environment)


def _size(path: Path) -> int:
    return (
        path.stat().st_size if path.is_file() else sum(one.stat().st_size for one in path.rglob("*") if one.is_file())
    )


def _tracked() -> int:
    """Return how many bytes a clone of this repository has."""
    names = subprocess.run(("git", "ls-files", "-z"), cwd=_TREE, capture_output=True, check=True).stdout.split(b"\0")
    paths = [_TREE / name.decode() for name in names if name]
    return sum(path.stat().st_size for path in paths if path.is_file())


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
