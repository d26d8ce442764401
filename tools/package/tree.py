"""The installed tree: an environment of its own, the programs, man pages, completion, and for a package the unit.

One recipe for `make install` and `make deb`. The environment is one of Python's own (no zipapp: grpc and msgspec are
shared objects, and the service starts further processes of the same interpreter), made of the lock's hashes and of the
two wheels of this tree.
"""

from __future__ import annotations

import gzip
import itertools
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Final

from fairlead.cli import main
from fairlead.cli.admin import completion
from tools.package import manpages

ROOT: Final = Path(__file__).parents[2]
_UV: Final = ROOT / ".cache/uv/bin/uv"
BESIDE: Final = ("asyncssh",)
"""What it has and the container image has not; whatever these need the image's lock has."""
_PROGRAMS: Final = {"fairlead": "fairlead.cli.main", "fairlead-runtime": "fairlead.inject.runtime"}
_SCRIPT: Final = "#!{python}\nimport sys\n\nfrom {module} import main\n\nsys.exit(main())\n"
_COMPLETION: Final = {
    "bash": "share/bash-completion/completions/fairlead",
    "zsh": "share/{zsh}/_fairlead",
    "fish": "share/fish/vendor_completions.d/fairlead.fish",
}


def wheels(folder: Path) -> list[Path]:
    """Build the wheels of both distributions and return them; the folder holds nothing else afterwards.

    But for `constraints.txt`, with which pipx takes our own `fairlead-cdi` and none from an index.
    """
    shutil.rmtree(folder, ignore_errors=True)
    for project in ("src/fairlead_cdi", "."):
        _run([sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)], ROOT / project)
    found = sorted(folder.glob("*.whl"))
    lines = (f"{path.name.split('-', 1)[0].replace('_', '-')} @ {path.absolute().as_uri()}\n" for path in found)
    (folder / "constraints.txt").write_text("".join(lines))
    return found


def install(prefix: Path, *, stage: Path = Path("/"), python: str = "/usr/bin/python3") -> None:
    """Put everything below a prefix, such as /usr/local.

    Args:    stage: what the prefix is relative to: a package's root in place of `/`.   python: the interpreter.
    """
    place = stage / prefix.relative_to("/")
    home = place / "lib/fairlead"
    new = home.with_name("fairlead.new")
    shutil.rmtree(new, ignore_errors=True)
    new.parent.mkdir(parents=True, exist_ok=True)
    _environment(new, python, wheels(ROOT / "build/wheels"))
    _set_home(new, home)
    _programs(place / "bin", f"{prefix}/lib/fairlead/bin/python")
    _pages(place)


def uninstall(prefix: Path) -> None:
    """Remove what `install` made."""
    shutil.rmtree(prefix / "lib/fairlead", ignore_errors=True)
    for path in (*(prefix / "bin" / name for name in _PROGRAMS), *(prefix / one for one in _completions(prefix))):
        path.unlink(missing_ok=True)
    for page in (prefix / "share/man/man1").glob("fairlead*.1.gz"):
        page.unlink()


def _environment(folder: Path, python: str, wheels: list[Path]) -> None:
    _run([str(_UV), "venv", "--quiet", "--python", python, str(folder)])
    lock = ROOT / "tools/image/runtime.lock"
    where = ["--quiet", "--python", str(folder / "bin/python")]
    _run([str(_UV), "pip", "install", *where, "--require-hashes", "-r", str(lock)])
    beside = ROOT / "build/beside.lock"
    beside.write_text("".join(entry((ROOT / "requirements.lock").read_text(), name) for name in BESIDE))
    _run([str(_UV), "pip", "install", *where, "--no-deps", "--require-hashes", "-r", str(beside)])
    _run([str(_UV), "pip", "install", *where, "--no-deps", *map(str, wheels)])
    # Programs and shell helpers of the environment name the folder it was made in, and nobody needs them.
    for path in (folder / "bin").iterdir():
        if not path.name.startswith("python"):
            path.unlink()


def entry(lock: str, name: str) -> str:
    """Return a package's lines of a lock: its version, and the hashes of its files. Raises: ValueError: it has none."""
    lines = iter(lock.splitlines(keepends=True))
    for line in lines:
        if line.startswith(f"{name}=="):
            return line + "".join(itertools.takewhile(lambda one: one.startswith(" "), lines))
    raise ValueError(f"{name} is not in the lock")


def _set_home(new: Path, home: Path) -> None:
    """Replace an environment by a new one, in one step for whoever starts the program meanwhile."""
    old = home.with_name("fairlead.old")
    shutil.rmtree(old, ignore_errors=True)
    if home.exists():
        home.rename(old)
    new.rename(home)
    shutil.rmtree(old, ignore_errors=True)
    _run(
        [str(home / "bin/python"), "-m", "compileall", "-q", "--invalidation-mode", "unchecked-hash", str(home / "lib")]
    )


def _programs(folder: Path, python: str) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    for name, module in _PROGRAMS.items():
        path = folder / name
        path.unlink(missing_ok=True)
        path.write_text(_SCRIPT.format(python=python, module=module))
        path.chmod(0o755)


def _completions(prefix: Path) -> dict[str, str]:
    """Return where each shell's script goes, by path: Debian's own folder of zsh is another than the machine's."""
    zsh = "zsh/vendor-completions" if prefix == Path("/usr") else "zsh/site-functions"
    return {path.format(zsh=zsh): shell for shell, path in _COMPLETION.items()}


def _pages(place: Path) -> None:
    prefix = Path("/usr") if place.name == "usr" else Path("/usr/local")
    for name, text in manpages.pages().items():
        page = place / "share/man/man1" / f"{name}.gz"
        page.parent.mkdir(parents=True, exist_ok=True)
        page.write_bytes(gzip.compress(text.encode(), mtime=0))
    for path, shell in _completions(prefix).items():
        (place / path).parent.mkdir(parents=True, exist_ok=True)
        (place / path).write_text(completion.script(main.root, shell))


def _run(argv: list[str], folder: Path = ROOT) -> None:
    done = subprocess.run(argv, cwd=folder, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        print(done.stdout, done.stderr, sep="", file=sys.stderr)
        raise SystemExit(f"{' '.join(argv[:4])} … ended with {done.returncode}")
