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


def test_blocks_are_run_for_their_mark_where_its_reason_holds(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    page = tmp_path / "page.md"
    block = "```console\n$ echo {}\n```\n"
    page.write_text(
        f"{block.format('a')}\n<!-- not run: needs a cluster -->\n{block.format('b')}\n"
        f"<!-- not run: needs a GPU -->\n{block.format('c')}"
    )
    runner = pages.Runner(tmp_path, timeout_s=20, plain=True)
    runner.page(page, [], marked="needs a cluster")
    runner.close()
    assert [line for line in capsys.readouterr().out.splitlines() if not line.startswith("$")] == ["b"]


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
    "tutorial/cdi-library.md": "tests/unit/fairlead_cdi/test_cdi_docs.py",
    "tutorial/client.md": "test_tutorials_run.py",
    "tutorial/service.md": "test_tutorials_run.py",
    "how-to/kubernetes.md": "tests/cluster/test_pages_on_cluster.py",
    "how-to/replace-nvidia-toolkit.md": "tests/system/test_migration.py",
    "how-to/recover-state.md": "tests/system/test_state_repaired.py",
    "how-to/pass-gpus-through.md": "tests/unit/cli/layer/test_cli_vfio_page.py, on a made-up machine",
    "how-to/check-a-gpu.md": "tests/system/test_gpu_check.py",
    "how-to/from-compose.md": "tests/system/test_compose.py",
    "how-to/lab-manifests.md": "tests/system/test_lab_manifests.py",
    "how-to/workloads.md": "tests/system/test_lab_manifests.py",
    "how-to/isolate-with-gvisor.md": "tests/system/test_gvisor.py",
    "how-to/virtual-machines.md": "tests/cluster/test_tenancies_on_cluster.py, on the cluster with Kata's stand-in",
    "how-to/nvlink-partitions.md": "tests/unit/cli/layer/fabric/test_cli_fabric_page.py, against a stand-in",
    "how-to/install.md": "test_first_hour.py (each way), test_systemd_unit.py (the unit)",
}


PAGES = [page for folder in ("tutorial", "how-to") for page in sorted((DOCS / folder).glob("*.md"))]
# What a reader types, in a block of whatever language: `console` is run, `sh` by the page's own test.
_TYPED = re.compile(
    r"^(?:(?:sudo )?(?:fairlead|kubectl|podman|docker|helm|pip|python)|make|curl|export) ", re.MULTILINE
)


def hidden(text: str) -> list[str]:
    """Return the first command of each block that holds commands and is none that a test would read."""
    fences = re.findall(r"^```([^\n]*)\n(.*?)^```", text, re.MULTILINE | re.DOTALL)
    return [found[0] for kind, block in fences if kind not in {"console", "sh"} and (found := _line(block))]


def _line(block: str) -> list[str]:
    return [line for line in block.splitlines() if _TYPED.match(line)]


def test_a_block_that_hides_its_commands_is_found() -> None:
    assert hidden("```\nfairlead ps\n```\n```console\n$ fairlead ps\n```\n```yaml\nfairlead: {}\n```\n") == [
        "fairlead ps"
    ]
    assert hidden("```text\n# first\nsudo kubectl get pods\n```\n") == ["sudo kubectl get pods"]


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_no_block_of_a_page_hides_commands_from_the_check(page: Path) -> None:
    assert hidden(page.read_text()) == []


@pytest.mark.parametrize("page", PAGES, ids=lambda page: page.name)
def test_every_line_of_a_console_block_is_a_command_or_what_one_prints(page: Path) -> None:
    blocks = re.findall(r"^```console\n(.*?)^```", page.read_text(), re.MULTILINE | re.DOTALL)
    assert [block for block in blocks if not block.startswith("$ ")] == []


def test_every_page_with_commands_is_run_or_says_where_else_they_are() -> None:
    found = {
        str(page.relative_to(DOCS)) for page in PAGES if re.search("^```(console|sh)$", page.read_text(), re.MULTILINE)
    }
    assert found == {"tutorial/first-container.md", *test_first_hour.PAGES_READ, *_ELSEWHERE}


@pytest.mark.parametrize("page", sorted(test_first_hour.PAGES_READ))
def test_a_page_that_is_run_has_no_block_that_the_runner_does_not_read(page: str) -> None:
    text = (DOCS / page).read_text()
    marked = re.findall(r"^(?:<!-- not run: [^\n]+ -->\n)?```sh$", text, re.MULTILINE)
    assert [block for block in marked if not block.startswith("<!--")] == []


@pytest.mark.parametrize("page", sorted(_ELSEWHERE))
def test_where_a_page_is_run_elsewhere_there_is_a_test_that_reads_it(page: str) -> None:
    names = re.findall(r"test_\w+\.py", _ELSEWHERE[page])
    tests = [found for name in names for found in Path(__file__).parents[1].rglob(name)]
    assert len(tests) == len(names) > 0
    assert page.rpartition("/")[2] in tests[0].read_text()
