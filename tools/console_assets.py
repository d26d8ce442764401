"""Fetch the console's libraries: `python tools/console_assets.py` rewrites `serve/console/static/vendor`.

Each package is packed by npm, its hash compared with the table, and the files in the table are taken out of it. What
ships is committed: no build and no installation asks npm. `--check` compares what is there with the table, offline.
"""

from __future__ import annotations

import argparse
import hashlib
import subprocess
import sys
import tarfile
import tempfile
import tomllib
from pathlib import Path
from typing import Any, Final

FOLDER: Final = Path(__file__).parents[1] / "src/fairlead/serve/console/static/vendor"
TABLE: Final = FOLDER / "assets.toml"


def packages() -> list[dict[str, Any]]:
    """Return the rows of the table."""
    found: list[dict[str, Any]] = tomllib.loads(TABLE.read_text())["package"]
    return found


def problems() -> list[str]:
    """Return what differs between the folder and the table; empty: nothing."""
    wanted = {file["name"]: file["sha256"] for package in packages() for file in package["files"]}
    there = {path.name: _sha256(path.read_bytes()) for path in FOLDER.iterdir() if path != TABLE}
    return [
        f"{name}: table {wanted.get(name, 'nothing')}, folder {there.get(name, 'nothing')}"
        for name in sorted({*wanted, *there})
        if wanted.get(name) != there.get(name)
    ]


def fetch(package: dict[str, Any]) -> None:
    """Pack one package and take its files. Raises: SystemExit: a hash is another than the table's."""
    with tempfile.TemporaryDirectory(prefix="fl-") as folder:
        argv = ["npm", "pack", f"{package['name']}@{package['version']}", "--silent", "--pack-destination", folder]
        subprocess.run(argv, check=True, stdout=subprocess.DEVNULL)
        (packed,) = Path(folder).glob("*.tgz")
        if (found := hashlib.sha512(packed.read_bytes()).hexdigest()) != package["sha512"]:
            raise SystemExit(f"{package['name']}: its package has the SHA-512 {found}")
        with tarfile.open(packed) as archive:
            for file in package["files"]:
                member = archive.extractfile(f"package/{file['path']}")
                data = b"" if member is None else member.read()
                if _sha256(data) != file["sha256"]:
                    raise SystemExit(f"{file['name']}: its SHA-256 is {_sha256(data)}")
                (FOLDER / file["name"]).write_bytes(data)


def _sha256(data: bytes) -> str:
    return hashlib.sha256(data).hexdigest()


def main() -> None:
    """Fetch, or compare."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="compare only; asks nobody")
    if not parser.parse_args().check:
        for package in packages():
            fetch(package)
    for problem in (found := problems()):
        print(problem, file=sys.stderr)
    sys.exit(1 if found else 0)


if __name__ == "__main__":
    main()
