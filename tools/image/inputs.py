"""What the image is made of: files of this tree, and the version they say.

`fingerprint` is over every byte that can reach the image, so an image with the tree's fingerprint need not be built
again. The same selection stands in `.dockerignore`, which the builder reads; a test holds the two together.
"""

from __future__ import annotations

import fnmatch
import hashlib
import tomllib
from collections.abc import Iterator
from pathlib import Path
from typing import Final

ROOT: Final = Path(__file__).parent.parent.parent
SELECTED: Final = (
    "Containerfile",
    "LICENSE",
    "README.md",
    "pyproject.toml",
    "src",
    "tools/build_protos.py",
    "tools/image",
)
LEFT_OUT: Final = ("__pycache__", "*_pb2.py", "*_pb2.pyi")


def version() -> str:
    """Return the version the image gets."""
    project = tomllib.loads((ROOT / "pyproject.toml").read_text())["project"]
    return str(project["version"])


def fingerprint() -> str:
    """Return a digest of all that the image is made from, this machine's packages apart."""
    digest = hashlib.sha256()
    for path in files():
        content = path.read_bytes()
        digest.update(f"{path.relative_to(ROOT)}\0{len(content)}\0".encode() + content)
    return digest.hexdigest()


def files() -> Iterator[Path]:
    """Yield the files the builder sees, in the order of their names."""
    for name in SELECTED:
        start = ROOT / name
        for path in sorted(start.rglob("*")) if start.is_dir() else (start,):
            parts = path.relative_to(ROOT).parts
            left_out = any(fnmatch.fnmatchcase(part, pattern) for part in parts for pattern in LEFT_OUT)
            if path.is_file() and not left_out:
                yield path
