"""Commit subjects since a fixed commit: at most 72 characters, of the form `area: verb …`."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path
from typing import Final

import pytest

ROOT = Path(__file__).parents[2]
BASE: Final = "0e5730e4ffa8639a3e5c7ceafa331f82945cd116"
"""Subjects up to this commit are as they are."""
LONGEST: Final = 72
FORM: Final = re.compile(r"[a-z][\w./-]*(, [a-z][\w./-]*)*: [a-z]+[ ,].+")
NOT_VERBS: Final = frozenset(
    {"a", "an", "the", "one", "no", "not", "any", "every", "each", "all", "some", "more", "most", "less", "new", "old"}
    | {"other", "this", "that", "these", "those", "it", "its", "status", "tests", "words"}
    | {f"{verb}{ending}" for verb in ("add", "mak", "us", "remov", "fix") for ending in ("es", "s", "ed", "ing")}
)
"""First words that a subject was seen to have, or easily has, in place of a verb's plain form."""


def faults(subject: str) -> list[str]:
    """Return what is wrong with a subject."""
    found = []
    if len(subject) > LONGEST:
        found.append(f"{len(subject)} characters, at most {LONGEST}")
    if not FORM.fullmatch(subject) or subject.partition(": ")[2].split()[0].strip(",") in NOT_VERBS:
        found.append("not of the form `area: verb …`")
    if subject.endswith("."):
        found.append("ends with a full stop")
    return found


def git(*words: str) -> str:
    """Return what git says about this repository; skip where there is no git or no repository of ours."""
    try:
        done = subprocess.run(["git", "-C", ROOT, *words], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"no history to read: git {words[0]}: {getattr(error, 'stderr', '') or error}")
    return done.stdout.strip()


def test_every_commit_since_the_base_has_a_subject_of_the_house() -> None:
    if Path(git("rev-parse", "--show-toplevel")).resolve() != ROOT.resolve():
        pytest.skip("a copy inside another repository has no history of its own")
    if git("rev-parse", "--is-shallow-repository") == "true":
        pytest.skip("a shallow clone does not have every commit")
    git("merge-base", "--is-ancestor", BASE, "HEAD")
    subjects = git("log", "--no-merges", "--format=%s", f"{BASE}..HEAD").splitlines()
    assert {subject: wrong for subject in subjects if (wrong := faults(subject))} == {}


@pytest.mark.parametrize(
    ("subject", "is_right"),
    [
        ("silicon: scan once without an event loop, for cdi generate", True),
        ("trace, scheduler: keep steps as they were reported", True),
        ("plan/mig: pack MIG layouts", True),
        ("doctor: name each check that was not made, and the missing right, and hint", False),
        ("Add a thing", False),
        ("wip", False),
        ("docs: status of what a container is asked for", False),
        ("house: the lock is held", False),
        ("cli: fix.", False),
    ],
)
def test_what_a_subject_may_be(subject: str, is_right: bool) -> None:
    assert (faults(subject) == []) is is_right
