"""Make the image's three layers, inside the Containerfile's build stage: the interpreter's part of Debian, the
libraries, Fairlead itself.

A layer is a folder. Files of Debian packages are taken by name (`system.toml`), libraries from the virtual environment
less what nothing reads at run time, ours by the wheel's own record. Everything is byte-compiled with unchecked hashes:
no file's time is in the result, and nothing is written or looked up at run time. Every layer is checked for the shared
libraries its programs need, against itself and the layers below.

Standard library only: this runs before anything is installed.
"""

from __future__ import annotations

import compileall
import csv
import fnmatch
import os
import py_compile
import re
import shutil
import subprocess
import sys
import tomllib
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Final

_HERE: Final = Path(__file__).parent
_DPKG: Final = "var/lib/dpkg"
_PYTHON: Final = "python3.11"
_OWN: Final = ("fairlead", "fairlead_cdi")
_UNSEEN: Final = ("/usr/share/doc/*",)
_KEPT: Final = ("/usr/share/doc/*/copyright",)
# In site-packages, by shell pattern: type stubs, sources of compiled modules, tests; libraries that Litestar requires
# for its command line, its test client and to invent examples for OpenAPI documents, none of which is used (28 MB);
# of numpy the parts that call a Fortran compiler, and those that nothing imports before it needs them, which no code of
# ours does; of SQLAlchemy other vendors' databases and its authors' tests.
_UNUSED: Final = (
    *("faker", "polyfactory", "rich", "rich_click", "pygments", "markdown_it", "markdown_it_py", "mdurl"),
    *("httpx", "httpcore", "certifi"),
)
_USELESS: Final = (
    *("*.pyi", "*.pyx", "*.pxd", "*.c", "*.h", "*/tests/*"),
    *("numpy/f2py/*", "numpy/distutils/*", "numpy/polynomial/*", "numpy/testing/*", "numpy/ma/*", "numpy/fft/*"),
    *("sqlalchemy/testing/*", *(f"sqlalchemy/dialects/{name}/*" for name in ("mssql", "mysql", "oracle"))),
    *("alembic/testing/*", "alembic/templates/*", "asyncpg/_testbase/*", "greenlet/platform/*"),
    *(pattern for name in _UNUSED for pattern in (f"{name}/*", f"{name}-*.dist-info/*")),
)


def main(arguments: Sequence[str]) -> None:
    """Run one of the three commands."""
    command, *folders = arguments
    makers: dict[str, Callable[..., None]] = {"system": make_system, "libraries": make_libraries, "own": make_own}
    makers[command](*map(Path, folders))


# Debian


def make_system(layer: Path) -> None:
    """Make the lowest layer from the packages of this root file system."""
    wanted = tomllib.loads((_HERE / "system.toml").read_text())
    for folder in wanted["folders"]:
        _inside(layer, folder).mkdir(parents=True, exist_ok=True)
    for link, target in wanted["links"].items():
        _inside(layer, link).parent.mkdir(parents=True, exist_ok=True)
        _inside(layer, link).symlink_to(target)
    (layer / "tmp").chmod(0o1777)
    (layer / "root").chmod(0o700)
    info = layer / _DPKG / "info"
    info.mkdir(parents=True)
    for package in wanted["packages"]:
        kept = [path for path in _paths(package) if _take(path, layer, wanted["dropped"])]
        (info / f"{package}.list").write_text("".join(f"{path}\n" for path in sorted(kept)))
    (layer / _DPKG / "status").write_text(_status(wanted["packages"]))
    for path in wanted["extra"]:
        _take_tree(path, layer)
    for path, text in wanted["files"].items():
        _inside(layer, path).write_text(text.lstrip())
    compile_folder(layer / "usr/lib" / _PYTHON, inside=layer)
    assert_libraries(layer)


def _paths(package: str) -> list[str]:
    """Return the files and links of a package, links of merged folders resolved: /lib/x is /usr/lib/x."""
    listed = subprocess.run(("dpkg-query", "-L", package), check=True, capture_output=True, text=True).stdout.split(
        "\n"
    )
    paths = (Path(line) for line in listed if line.startswith("/"))
    real = (path.parent.resolve() / path.name for path in paths if path.is_symlink() or path.is_file())
    return sorted({str(path) for path in real})


def _take(path: str, layer: Path, dropped: Sequence[str]) -> bool:
    """Copy one file unless it is dropped."""
    unwanted = _matches(path, dropped) or (_matches(path, _UNSEEN) and not _matches(path, _KEPT))
    if unwanted or "/__pycache__/" in path or os.path.lexists(_inside(layer, path)):  # /bin, a folder in base-files
        return False
    _copy(Path(path), _inside(layer, path))
    return True


def _take_tree(path: str, layer: Path) -> None:
    start = Path(path)
    for one in (start, *start.rglob("*")):
        if one.is_file():
            _copy(one, _inside(layer, str(one)))


def _status(packages: Sequence[str]) -> str:
    """Return the package manager's own statement about these packages: what scanners for known flaws read."""
    stanzas = Path("/", _DPKG, "status").read_text().split("\n\n")
    named = {found[1]: stanza for stanza in stanzas if (found := re.match(r"Package: (\S+)", stanza))}
    return "".join(f"{named[package]}\n\n" for package in packages)


# Python


def make_libraries(environment: Path, layer: Path, *below: Path) -> None:
    """Copy the virtual environment, less what nothing reads at run time."""
    site = environment / "lib" / _PYTHON / "site-packages"

    def wanted(path: Path) -> bool:
        if path.is_relative_to(site):
            return not _matches(str(path.relative_to(site)), _USELESS)
        # of the programs libraries bring, only the interpreter
        return path.parent != environment / "bin" or path.name.startswith("python")

    _copy_some(environment, layer, wanted)
    compile_folder(_inside(layer, str(site)), inside=layer)
    assert_libraries(layer, *below)


def make_own(environment: Path, layer: Path, *below: Path) -> None:
    """Copy what Fairlead's wheels brought to the virtual environment."""
    site = environment / "lib" / _PYTHON / "site-packages"
    own = {path for name in _OWN for path in _recorded(site, name)}
    _copy_some(environment, layer, lambda path: path.resolve() in own and not path.is_symlink())
    compile_folder(_inside(layer, str(site)), inside=layer)
    assert_libraries(layer, *below)


def _recorded(site: Path, name: str) -> Iterator[Path]:
    (record,) = site.glob(f"{name}-*.dist-info/RECORD")
    with record.open(newline="") as lines:
        for path, *_ in csv.reader(lines):
            yield (site / path).resolve()


def _copy_some(folder: Path, layer: Path, is_wanted: Callable[[Path], bool]) -> None:
    for path in sorted(folder.rglob("*")):
        if (path.is_symlink() or path.is_file()) and "__pycache__" not in path.parts and is_wanted(path):
            _copy(path, _inside(layer, str(path)))


# all three


def compile_folder(folder: Path, *, inside: Path) -> None:
    """Byte-compile a folder below `inside`, under the names the files will have; raises SystemExit."""
    done = compileall.compile_dir(
        folder,
        quiet=1,
        stripdir=str(inside),
        prependdir="/",
        workers=1,
        invalidation_mode=py_compile.PycInvalidationMode.UNCHECKED_HASH,
    )
    if not done:
        raise SystemExit(f"{folder} does not compile")


def assert_libraries(*layers: Path) -> None:
    """Check that every shared library the first layer's programs need is in one of the layers; raises SystemExit."""
    missing = {
        f"{program.name} needs {library}"
        for program in _programs(layers[0])
        for library in _libraries(program)
        if not any(_is_inside(layer, Path(library).resolve()) for layer in layers)
    }
    if missing:
        raise SystemExit("\n".join(sorted(missing)))


def _is_inside(layer: Path, library: Path) -> bool:
    """Tell whether a layer has a library; one found beside its program (`$ORIGIN`) is named by its path there."""
    return layer in library.parents or _inside(layer, str(library)).exists()


def _programs(layer: Path) -> Iterator[Path]:
    for path in layer.rglob("*"):
        if path.is_file() and not path.is_symlink():
            with path.open("rb") as file:
                if file.read(4) == b"\x7fELF":
                    yield path


def _libraries(program: Path) -> Iterator[str]:
    said = subprocess.run(("ldd", program), check=False, capture_output=True, text=True).stdout
    for line in said.splitlines():
        name, _, found = line.strip().partition(" => ")
        if found.startswith("not found"):
            yield name
        elif found.startswith("/"):
            yield found.split()[0]


def _matches(path: str, patterns: Sequence[str]) -> bool:
    return any(fnmatch.fnmatchcase(path, pattern) for pattern in patterns)


def _inside(layer: Path, path: str) -> Path:
    return layer / path.lstrip("/")


def _copy(source: Path, target: Path) -> None:
    """Copy a file or a link; of its mode only "may be executed" stays, so no program changes its user."""
    target.parent.mkdir(parents=True, exist_ok=True)
    if source.is_symlink():
        target.symlink_to(source.readlink())
        return
    shutil.copyfile(source, target)
    target.chmod(0o755 if source.stat().st_mode & 0o111 else 0o644)


if __name__ == "__main__":
    os.umask(0o022)
    main(sys.argv[1:])
