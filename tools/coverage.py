"""Branch coverage of the package, room by room, held to the floors in `pyproject.toml`: `make coverage`.

Runs the unit and contract rings without their slow tests under coverage.py (children included: kubelet, probes,
programs), prints each room's share of branches taken and, for rooms below their floor, the files that miss most. The
floors of `model`, `wire`, `plan`, `errors` and `fairlead_cdi` are 95 %; the others' are a ratchet: raise one when a
room got better. A branch that no test takes is a question whether the code is needed. Where a test failed the figures
are printed too, for what was run, and it exits 1.
"""

from __future__ import annotations

import json
import subprocess
import sys
import tomllib
from collections import defaultdict
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parent.parent
REPORT = ROOT / "build" / "coverage.json"
RINGS = ("tests/unit", "tests/contract")
_WORST = 5
_LIMIT_S = 300
"""Of one test: being measured makes some take several times as long."""


def room_of(path: str) -> str:
    """Return the room of a file below `src`: a folder or a module of the package, or the other distribution's name."""
    parts = Path(path).parts[1:]
    return parts[0] if parts[0] != "fairlead" else parts[1].removesuffix(".py")


def shares(files: dict[str, Any]) -> dict[str, tuple[int, int]]:
    """Return branches taken and branches there are, by room; rooms without any are left out."""
    rooms: dict[str, list[int]] = defaultdict(lambda: [0, 0])
    for path, found in files.items():
        room = rooms[room_of(path)]
        room[0] += found["summary"]["covered_branches"]
        room[1] += found["summary"]["num_branches"]
    return {room: (taken, there) for room, (taken, there) in rooms.items() if there}


def percent(taken: int, there: int) -> float:
    """Return the share in percent."""
    return 100.0 * taken / there


def missing(files: dict[str, Any], room: str) -> list[str]:
    """Return the files of a room that miss most branches, with the lines that the first of them leave."""
    worst = sorted(
        (path for path in files if room_of(path) == room), key=lambda path: -files[path]["summary"]["missing_branches"]
    )
    return [
        f"    {path}: {', '.join(f'{a}->{b}' for a, b in files[path]['missing_branches'][:_WORST])}"
        for path in worst[:_WORST]
        if files[path]["summary"]["missing_branches"]
    ]


def measure() -> tuple[dict[str, Any], bool]:
    """Run the rings and return coverage.py's report by file, and whether every test passed."""
    REPORT.parent.mkdir(exist_ok=True)
    run = (sys.executable, "-m", "coverage")
    subprocess.run([*run, "erase"], cwd=ROOT, check=True)
    chosen = ("-m", "not slow and not cluster", f"--timeout={_LIMIT_S}")
    tests = [*run, "run", "-m", "pytest", *RINGS, *chosen, "-q", "-p", "no:cacheprovider"]
    passed = not subprocess.run(tests, cwd=ROOT, check=False).returncode
    subprocess.run([*run, "combine", "-q"], cwd=ROOT, check=True)
    subprocess.run([*run, "json", "-q", "-i", "-o", str(REPORT)], cwd=ROOT, check=True)
    files: dict[str, Any] = json.loads(REPORT.read_text())["files"]
    return files, passed


def main() -> int:
    """Measure, print, and answer 1 where a room is below its floor or has none."""
    floors: dict[str, float] = tomllib.loads((ROOT / "pyproject.toml").read_text())["tool"]["fairlead"]["coverage"]
    files, passed = measure()
    failed = not passed
    for room, (taken, there) in sorted(shares(files).items()):
        share, floor = percent(taken, there), floors.get(room)
        is_low = floor is None or share < floor
        failed |= is_low
        print(f"{room:14} {share:6.1f} % of {there:5} branches, floor {floor}{'  BELOW' if is_low else ''}")
        if is_low:
            print("\n".join(missing(files, room)))
    if not passed:
        print("coverage: a test failed, so shares may be lower than they are")
    return int(failed)


if __name__ == "__main__":
    raise SystemExit(main())
