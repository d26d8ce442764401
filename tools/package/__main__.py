"""`python -m tools.package`: build the wheels or the Debian package, install on this machine or take it away again."""

from __future__ import annotations

import argparse
import os
import sys
from pathlib import Path

from tools.package import deb, tree


def main() -> int:
    """Run one verb."""
    parser = argparse.ArgumentParser(prog="python -m tools.package", description=__doc__)
    parser.add_argument("verb", choices=("wheels", "deb", "install", "uninstall"))
    parser.add_argument("--prefix", type=Path, default=Path("/usr/local"), help="where to install (%(default)s)")
    parser.add_argument("--dist", type=Path, default=tree.ROOT / "dist", help="where packages go (%(default)s)")
    asked = parser.parse_args()
    if asked.verb == "wheels":
        print(*tree.wheels(asked.dist), sep="\n")
    elif asked.verb == "deb":
        print(deb.build(asked.dist))
    else:
        _change(asked.verb, asked.prefix.absolute())
    return 0


def _change(verb: str, prefix: Path) -> None:
    nearest = next(path for path in (prefix, *prefix.parents) if path.exists())
    if not os.access(nearest, os.W_OK):
        sys.exit(f"error: {prefix} is not yours to write\n  hint: as root, or: make {verb} PREFIX=$HOME/.local")
    if verb == "uninstall":
        tree.uninstall(prefix)
        print(f"fairlead is gone from {prefix}; /var/lib/fairlead and /etc/fairlead stay")
        return
    tree.install(prefix)
    print(f"fairlead is installed: {prefix}/bin/fairlead, with its man pages and the completion of bash, zsh and fish")
    if str(prefix / "bin") not in os.environ.get("PATH", "").split(":"):
        print(f"  next: export PATH={prefix}/bin:$PATH")


if __name__ == "__main__":
    sys.exit(main())
