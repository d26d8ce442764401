"""`python -m tools.console_pictures`: take pictures of every page of the console, and say which changed.

Needs root, podman, busybox-static and Chromium. `--keep` puts the new ones into docs/pictures/console and writes the
gallery; without it, those that changed are put side by side below build/console-pictures.
"""

from __future__ import annotations

import argparse
import datetime as dt
import json
import shutil
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path

from tools.console_pictures import camera, comparison, gallery, pages, story

import browser  # isort: skip  (of tests/system, which story puts there)

ROOT = Path(__file__).parents[2]
_MACHINE = (
    *("unshare", "--mount", "--pid", "--fork", "--mount-proc", "--kill-child"),
    str(ROOT / "tests" / "machine.sh"),
)
"""Containers of another Fairlead on this machine have the same numbers of simulated GPUs: here nobody sees them."""
_BUILD = ROOT / "build" / "console-pictures"


def main(argv: Sequence[str] | None = None) -> int:
    """Take the pictures. Returns 1 where one changed, is new or has a problem that needs no eye."""
    asked = _parser().parse_args(argv)
    if not asked.inside:
        given = sys.argv[1:] if argv is None else argv
        return subprocess.run(
            (*_MACHINE, sys.executable, "-m", "tools.console_pictures", "--inside", *given), check=False
        ).returncode
    shown = tuple(page for page in pages.SHOWN if not asked.only or page.name in asked.only)
    shutil.rmtree(_BUILD, ignore_errors=True)
    _BUILD.mkdir(parents=True)
    with story.told() as told, browser.opened("--ignore-certificate-errors") as page:
        taken = [_written(one) for one in camera.take(told, page, shown, is_whole=asked.whole)]
        version = page.call("Browser.getVersion")["product"]
    is_changed = _compared(taken, version, has_sides=not asked.keep)
    for one in taken:
        for problem in one.problems:
            print(f"{one.name}: {problem}")
    if asked.keep:
        _keep(taken, version, is_every=not asked.only)
        return 0
    return int(is_changed or any(one.problems for one in taken))


def _parser() -> argparse.ArgumentParser:
    parser = argparse.ArgumentParser(prog="python -m tools.console_pictures", description=__doc__)
    parser.add_argument("--compare", action="store_true", help="compare with the kept ones; what is done anyway")
    parser.add_argument("--keep", action="store_true", help="keep the new ones and write the gallery")
    parser.add_argument("--whole", action="store_true", help="write each at full size too, below build/")
    parser.add_argument("--inside", action="store_true", help="in a machine of its own already")
    parser.add_argument("only", nargs="*", metavar="PAGE", help=f"of {', '.join(page.name for page in pages.SHOWN)}")
    return parser


def _written(one: camera.Taken) -> camera.Taken:
    print(one.name, flush=True) if one.width == pages.WIDTHS[0] and one.scheme == pages.SCHEMES[0] else None
    if one.whole:
        (_BUILD / one.name).with_suffix(".png").write_bytes(one.whole)
    return one


def _compared(taken: Sequence[camera.Taken], version: str, *, has_sides: bool) -> bool:
    """Print which pictures changed. Args: has_sides: put each beside the kept one, which takes a second."""
    kept = {one.name: gallery.KEPT / one.name for one in taken}
    new = [name for name, path in kept.items() if not path.exists()]
    pairs = [(one.name, kept[one.name].read_bytes(), one.data) for one in taken if one.name not in new]
    before = gallery.facts().get("browser", version)
    if before != version:
        print(f"note: the kept ones are {before}'s, these {version}'s: letters may be drawn otherwise")
    count, quiet = 0, 0.0
    with browser.opened() as page:
        decoder = comparison.Decoder(page)
        for name, found in comparison.changed(decoder, iter(pairs)):
            if not found.is_changed:
                quiet = max(quiet, found.most)
            else:
                count += 1
                old, data = next((old, data) for one, old, data in pairs if one == name)
                taller = f", {found.taller:+d} px tall" if found.taller else ""
                print(f"changed: {name}: {found.blocks} blocks, by {found.most:.0f} at most{taller}")
                if has_sides:
                    side = (_BUILD / f"changed-{name}").with_suffix(".png")
                    side.write_bytes(decoder.sides(old, data))
                    print(f"  {side}")
    for name in new:
        print(f"new: {name}")
    print(
        f"{len(taken)} pictures: {count} changed, {len(new)} new; a block of the others differs by {quiet:.1f} at most"
    )
    return bool(count or new)


def _keep(taken: Sequence[camera.Taken], version: str, *, is_every: bool) -> None:
    gallery.KEPT.mkdir(parents=True, exist_ok=True)
    if is_every:
        for path in gallery.KEPT.glob("*.webp"):
            path.unlink()
    for one in taken:
        (gallery.KEPT / one.name).write_bytes(one.data)
    today = dt.datetime.now(dt.UTC).date().isoformat()
    gallery.FACTS.write_text(json.dumps({"taken": today, "browser": version}, indent=1) + "\n")
    gallery.PAGE.write_text(gallery.text(today, version))
    size = sum(path.stat().st_size for path in gallery.KEPT.glob("*.webp"))
    print(f"kept {len(taken)}; all are {size / (1 << 20):.1f} MiB")


if __name__ == "__main__":
    sys.exit(main())
