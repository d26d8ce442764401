"""Collects what a reader of a change should look at: words, sizes, subjects of commits. None of it fails a test.

Only what a change adds is looked at: the lines and files that differ from `origin/main`, or from the commit before the
last where there is no such branch or nothing differs from it. The house ring prints the remarks at its end.
"""

from __future__ import annotations

import collections
import re
import subprocess
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Final

from tests.house import measure

LONG_FILE: Final = 400
"""Code lines: a sign to look whether a module has two subjects. Packing its lines is no answer."""
MANY_MODULES: Final = 15
LONGEST_SUBJECT: Final = 72

WORDS: Final[Mapping[str, str]] = {
    "books": "name it: checkpoint, database, cache, allocations",
    "wish": "request",
    "wishes": "requests",
    "journey": "trace",
    "whoever": "name the process or the person: the caller, a user who, the kubelet",
    **dict.fromkeys(("nobody", "anybody", "somebody", "everybody"), "name the process or the person"),
    "anew": "again, new",
    "asker": "caller, client",
    "stranger": "another account, a new user",
}
"""Habits of this house, and what the field says."""
# But for a key of old files: found["wish"].
_WORD: Final = re.compile(rf"\b({'|'.join(WORDS)})\b(?!\"[\])])", re.IGNORECASE)
_IS_NO: Final = re.compile(
    r"(?<![Tt]here )\b(?:is|are) no (?:error|socket|link|file|folder|number|pod|process|container|object|message)\b"
)
_BEGINS: Final = re.compile(r'"""(?:`fairlead[\w-]*|[A-Z][a-z]+s,? )')
_SUBJECT: Final = re.compile(r"[a-z][\w./-]*(, [a-z][\w./-]*)*: [a-z]+[ ,].+")
_NOT_VERBS: Final = frozenset(
    {"a", "an", "the", "one", "no", "not", "any", "every", "each", "all", "some", "more", "most", "less", "new", "old"}
    | {"other", "this", "that", "these", "those", "it", "its", "status", "tests", "words"}
    | {f"{verb}{ending}" for verb in ("add", "mak", "us", "remov", "fix") for ending in ("es", "s", "ed", "ing")}
)
"""First words that a subject was seen to have, or easily has, in place of a verb's plain form."""
_HUNK: Final = re.compile(r"@@ -\S+ \+(\d+)")
_PROSE: Final = frozenset({".py", ".md"})


def remarks(root: Path) -> list[str]:
    """Return what to look at, a line each; nothing where there is no history to compare with."""
    base = _base(root)
    if base is None:
        return []
    added = _added(_git(root, "diff", "-U0", "--no-color", "--no-prefix", base, "--", "*.py", "*.md") or "")
    subjects = (_git(root, "log", "--no-merges", "--format=%s", f"{base}..HEAD") or "").splitlines()
    return [
        *(f"{path}:{number}: {what}" for path, lines in added.items() for number, what in _in_lines(path, lines)),
        *_in_files(root, added),
        *(f'commit "{subject}": {", ".join(wrong)}' for subject in subjects if (wrong := in_subject(subject))),
    ]


def in_line(line: str) -> list[str]:
    """Return what is to be said of the words of a line."""
    said = [f"{found[1]}: {WORDS[found[1].lower()]}" for found in _WORD.finditer(line)]
    return [*said, *(f"{found[0]}: is not a, there is no" for found in _IS_NO.finditer(line))]


def in_subject(subject: str) -> list[str]:
    """Return what is to be said of a commit's subject."""
    found = []
    if len(subject) > LONGEST_SUBJECT:
        found.append(f"{len(subject)} characters, at most {LONGEST_SUBJECT}")
    if not _SUBJECT.fullmatch(subject) or subject.partition(": ")[2].split()[0].strip(",") in _NOT_VERBS:
        found.append("not of the form `area: verb …`")
    if subject.endswith("."):
        found.append("ends with a full stop")
    return found


def _in_lines(path: str, lines: Mapping[int, str]) -> Iterator[tuple[int, str]]:
    if Path(path).suffix not in _PROSE or path.startswith(("docs/reference/", "tests/house/")):
        return  # made from the code, or about these very words
    for number, line in lines.items():
        yield from ((number, what) for what in in_line(line))
        if number == 1 and path.startswith("src/") and line.startswith('"""') and not _BEGINS.match(line):
            yield number, "a module begins with what it does: Reads …, Decides …"


def _in_files(root: Path, paths: Iterable[str]) -> Iterator[str]:
    ours = [
        root / path for path in paths if path.startswith("src/") and path.endswith(".py") and (root / path).exists()
    ]
    for path in ours:
        if (lines := measure.code_lines(path.read_text())) > LONG_FILE:
            yield f"{path.relative_to(root)}: {lines} code lines: has it two subjects?"
    counts = collections.Counter(one.parent for one in measure.sources(root / "src") if one.name != "__init__.py")
    for folder in sorted({path.parent for path in ours}):
        if counts[folder] > MANY_MODULES:
            yield f"{folder.relative_to(root)}: {counts[folder]} modules: has it two subjects?"


def _added(difference: str) -> dict[str, dict[int, str]]:
    """Return the lines that a diff adds, by path and number."""
    found: dict[str, dict[int, str]] = {}
    path, number = "", 0
    for line in difference.splitlines():
        if line.startswith("+++ "):
            path = line[4:].strip()
        elif hunk := _HUNK.match(line):
            number = int(hunk[1])
        elif line.startswith("+"):
            found.setdefault(path, {})[number] = line[1:]
            number += 1
    return found


def _base(root: Path) -> str | None:
    shared = _git(root, "merge-base", "origin/main", "HEAD")
    head = _git(root, "rev-parse", "HEAD")
    return shared if shared and shared != head else _git(root, "rev-parse", "HEAD~1")


def _git(root: Path, *words: str) -> str | None:
    try:
        done = subprocess.run(["git", "-C", root, *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError):
        return None
    return done.stdout.strip()
