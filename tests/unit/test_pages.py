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
    assert [(step.command, step.printed, step.must_fail) for step in first.steps] == [
        ("echo one", ["one"], False),
        ("false", ["error: it is …"], True),
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


def test_the_tutorial_is_run_whole() -> None:
    blocks = pages.read((DOCS / "tutorial/first-container.md").read_text())
    assert [block.why for block in blocks if block.why] == []
    assert len(re.findall("```console", (DOCS / "tutorial/first-container.md").read_text())) == len(blocks) > 6


# Pages whose commands the runner does not run yet, and what does run of them.
_ELSEWHERE = {
    "how-to/audit-isolation.md": "what it shows is made by tests/system/test_attach.py, test_isolation_runtimes.py",
    "how-to/replace-nvidia-device-plugin.md": "a cluster's steps; tests/contract/test_live_config.py switches by label",
    "how-to/configure-an-engine.md": "the engines are those of tests/cluster/test_runtime_containerd.py and others",
    "how-to/install.md": "test_first_hour.py installs in each of its ways; `service` needs systemd as process 1",
    "how-to/metrics.md": "the page it reads is scraped by tests/cluster/test_prometheus.py",
    "how-to/kubernetes.md": "needs a cluster: tests/cluster",
}


def test_every_page_with_commands_is_run_or_says_where_else_they_are() -> None:
    found = {
        str(page.relative_to(DOCS))
        for folder in ("tutorial", "how-to")
        for page in (DOCS / folder).glob("*.md")
        if pages.read(page.read_text())
    }
    assert found == {"tutorial/first-container.md", *test_first_hour.PAGES_READ, *_ELSEWHERE}
