"""How pages are read: commands, what they print, what is marked as not run; and every page says which of them run."""

from __future__ import annotations

import re
import sys
from pathlib import Path

import pytest

sys.path.insert(0, str(Path(__file__).parents[1] / "system"))

import pages
import test_first_hour

DOCS = Path(__file__).parents[2] / "docs"
PAGE = """
```console
$ echo one
one
$ false
error: it is …
```

<!-- not run: needs a cluster -->
```console
$ kubectl get nodes
```
"""


def test_blocks_are_read_with_what_they_print_and_why_they_are_not_run() -> None:
    first, second = pages.read(PAGE)
    assert [(step.command, step.printed, step.may_end(0)) for step in first.steps] == [
        ("echo one", ["one"], True),
        ("false", ["error: it is …"], False),
    ]
    assert (first.why, second.why) == ("", "needs a cluster")


@pytest.mark.parametrize(
    ("printed", "output", "absent"),
    [
        ("GPU 0: X (UUID: …)", "GPU 0: X (UUID: GPU-1)\n", False),
        ("one  two   # said so", "one two\n", False),
        ("three", "four\n", True),
    ],
)
def test_a_printed_line_must_be_printed(printed: str, output: str, absent: bool) -> None:
    assert bool(pages.missing(pages.Step("x", [printed]), output)) == absent


def test_a_page_is_run_and_what_is_not_as_printed_is_named(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    page = tmp_path / "page.md"
    page.write_text("```console\n$ cd /\n$ pwd\n/\n$ echo a\nb\n$ false\n$ printf '\\033[1m'\n```\n")
    runner = pages.Runner(tmp_path, timeout_s=20, plain=True)
    runner.page(page, [])
    runner.close()
    capsys.readouterr()
    assert [problem.split(": ", 1)[1] for problem in runner.problems] == [
        "echo a: did not print 'b'",
        "false: ended with 1",
        "printf '\\033[1m': printed escapes",
    ]


def test_a_titled_block_is_a_file_and_a_comment_names_the_exit_code(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    page.write_text(
        '```yaml title="sub/x"\nof $READER\n```\n'
        "```console\n$ export WHO=READER\n$ cat sub/x; exit 3   # exit code 3\nof $you\n"
        "$ echo by $WHO\nby you\n$ true # exit code 1\n```\n"
    )
    runner = pages.Runner(tmp_path, timeout_s=20, plain=True, said=["READER=you"])
    runner.page(page, [])
    runner.close()
    assert "\nof $you\n" in capsys.readouterr().out
    assert [problem.split(": ", 1)[1] for problem in runner.problems] == ["true # exit code 1: ended with 0"]


def test_the_tutorial_is_run_whole() -> None:
    blocks = pages.read((DOCS / "tutorial/first-container.md").read_text())
    assert [block.why for block in blocks if block.why] == []
    assert (
        len(re.findall("```(?:console|.*title=)", (DOCS / "tutorial/first-container.md").read_text()))
        == len(blocks)
        > 6
    )


# Pages that another file runs as printed, because they need more than a bare root.
_ELSEWHERE = {
    "how-to/kubernetes.md": "tests/cluster/test_pages_on_cluster.py",
    "how-to/replace-nvidia-toolkit.md": "tests/system/test_migration.py",
    "how-to/recover-state.md": "tests/system/test_state_repaired.py",
    "how-to/install.md": "test_first_hour.py (each way), test_systemd_unit.py (the unit)",
}


def test_every_page_with_commands_is_run_or_says_where_else_they_are() -> None:
    found = {
        str(page.relative_to(DOCS))
        for folder in ("tutorial", "how-to")
        for page in (DOCS / folder).glob("*.md")
        if re.search("^```(console|sh)$", page.read_text(), re.MULTILINE)
    }
    assert found == {"tutorial/first-container.md", *test_first_hour.PAGES_READ, *_ELSEWHERE}
