"""`python -m tools.image`: build the container image without a registry, say what is in it, remove what it left."""

from __future__ import annotations

import argparse
import shutil
import sys
from pathlib import Path

from fairlead import errors
from tools.image import build, builder, contents


def main() -> int:
    """Run one verb."""
    arguments = _parser().parse_args()
    verb = {"build": _build, "contents": _contents, "clean": _clean}
    try:
        verb[arguments.verb](arguments)
    except errors.FairleadError as error:
        print(f"error: {error.message}", file=sys.stderr)
        if error.hint:
            print(f"  next: {error.hint}", file=sys.stderr)
        return errors.row_of(error).exit
    return 0


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.image", description=__doc__)
    parser.add_argument("--cache", type=Path, default=builder.CACHE, help="holds the builder's store (%(default)s)")
    verbs = parser.add_subparsers(dest="verb", required=True)
    one = verbs.add_parser("build", help="build it where the tree has changed, print the archive's path")
    one.add_argument("--fresh", action="store_true", help="with Debian's newest packages, from no earlier step")
    verbs.add_parser("contents", help="print what is in it as a table")
    verbs.add_parser("clean", help="remove the builder's store and the archives")
    return parser


def _build(arguments: argparse.Namespace) -> None:
    one = build.ensure_image(cache=arguments.cache, fresh=arguments.fresh, say=_say)
    print(f"{one.path}  {one.name}  {one.packed_bytes / 1e6:.1f} MB  sha256:{one.id[:12]}")


def _contents(arguments: argparse.Namespace) -> None:
    print("\n".join(contents.table(build.ensure_image(cache=arguments.cache, say=_say))))


def _clean(arguments: argparse.Namespace) -> None:
    builder.remove(arguments.cache)
    shutil.rmtree(build.FOLDER, ignore_errors=True)


def _say(text: str) -> None:
    print(f"image: {text}", file=sys.stderr)


if __name__ == "__main__":
    sys.exit(main())
