"""How releases of containerd put files of several versions together, and what our drop-in must be beside them.

Every case is a set of files that somebody has; what containerd 1.7.35 and 2.2.1 themselves make of the sets is asked in
`tests/cluster/test_runtime_containerd.py`.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import pytest

from fairlead import errors
from fairlead.plan.engineconfig import containerd, containerdset, tree
from fairlead.plan.engineconfig.model import Location, Proposal, Request

MAIN = "/etc/containerd/config.toml"
OTHER = "/etc/containerd/conf.d/99-nvidia.toml"
OLD, NEW = 'plugins."io.containerd.grpc.v1.cri"', 'plugins."io.containerd.cri.v1.runtime"'
IMPORTS = 'imports = ["/etc/containerd/conf.d/*.toml"]\n'
OPTIONS = 'containerd.runtimes.{}.options]\nBinaryName = "/opt/{}"\n'
V2 = f"version = 2\n[{OLD}.{OPTIONS.format('kata', 'kata')}"
V3 = f"version = 3\n[{NEW}.{OPTIONS.format('kata', 'kata')}"
REQUEST = Request(folder="/usr/libexec/fairlead")


class Host:
    """Files by path."""

    def __init__(self, files: Mapping[str, bytes]) -> None:
        self.files = files

    def read(self, path: str) -> bytes | None:
        return self.files.get(path)

    def glob(self, pattern: str) -> list[str]:
        return sorted(path for path in self.files if tree.matches(path, pattern))


def configured(files: Mapping[str, str], release: tuple[int, ...] | None) -> tuple[Proposal, Host]:
    host = Host({path: text.encode() for path, text in files.items()})
    proposal = containerd.propose(Location(config=MAIN, version=release), REQUEST, host)
    return proposal, Host({**host.files, **{edit.path: edit.after for edit in proposal.edits}})


def runtimes(host: Host, release: tuple[int, ...]) -> dict[str, Any]:
    found = containerdset.in_force(containerdset.load(MAIN, host), release)
    assert not found.refused
    return tree.table(found.section, "containerd", "runtimes", where="")


RELEASES = [(1, 7, 35), (2, 0, 5), (2, 2, 1), (2, 3, 2), (2, 3, 5)]


@pytest.mark.parametrize("release", RELEASES)
@pytest.mark.parametrize("main", ["", "#root = 1\n", "disabled_plugins = []\n", "version = 1\n", "version = 2\n"])
def test_our_handler_counts_whatever_version_the_main_file_names(main: str, release: tuple[int, ...]) -> None:
    _, host = configured({MAIN: main}, release)
    assert {"fairlead", "nvidia"} <= runtimes(host, release).keys()


@pytest.mark.parametrize("main", ["", "#root = 1\n", "disabled_plugins = []\n", "version = 2\n"])
def test_without_a_release_it_counts_in_each(main: str) -> None:
    _, host = configured({MAIN: main}, None)
    for release in RELEASES:
        assert "fairlead" in runtimes(host, release), release


MIXED = [
    (f"version = 2\n{IMPORTS}", V3),
    (f"version = 2\n{IMPORTS}[{OLD}]\nsandbox_image = 'x'\n", V3),
    (f"version = 3\n{IMPORTS}[{NEW}.{OPTIONS.format('runc', 'runc')}", V2),
    (f"version = 3\n{IMPORTS}", V2),
    (IMPORTS, V2),
    (IMPORTS, V3),
    (f"version = 3\n{IMPORTS}[{NEW}]\nenable_selinux = true\n", V2),
    (f"version = 1\n{IMPORTS}", V2),
    (f"version = 2\n{IMPORTS}", V2.removeprefix("version = 2\n")),
]


@pytest.mark.parametrize("release", [(2, 0, 5), (2, 2, 1), (2, 3, 5)])
@pytest.mark.parametrize(("main", "other"), MIXED)
def test_beside_a_drop_in_of_another_version_ours_counts_and_theirs_still_does(
    main: str, other: str, release: tuple[int, ...]
) -> None:
    before = runtimes(Host({MAIN: main.encode(), OTHER: other.encode()}), release)
    _, host = configured({MAIN: main, OTHER: other}, release)
    after = runtimes(host, release)
    assert {"fairlead", "nvidia"} <= after.keys()
    assert {name: after.get(name) for name in before} == before


def test_a_section_that_containerd_ignores_is_named() -> None:
    proposal, _ = configured({MAIN: f"version = 2\n{IMPORTS}[{OLD}]\nenable_selinux = true\n", OTHER: V3}, (2, 2, 1))
    assert f"containerd ignores the CRI section of {MAIN}: it is of another version" in proposal.notes


@pytest.mark.parametrize(
    ("main", "words"),
    [
        (f"version = 2\n{IMPORTS}[{OLD}.{OPTIONS.format('runc', 'runc')}", "version 2"),
        (f"{IMPORTS}[{OLD}.{OPTIONS.format('runc', 'runc')}", "it names no version"),
        (f"{IMPORTS}[{OLD}]\nenable_cdi = false\n", "it names no version"),
        (f"version = 1\n{IMPORTS}[plugins.cri.{OPTIONS.format('runc', 'runc')}", "version 1"),
    ],
)
def test_an_ignored_section_that_ours_would_inherit_from_is_refused_and_named(main: str, words: str) -> None:
    with pytest.raises(errors.Conflict, match=rf"{MAIN} \({words}\).* read as version 3"):
        configured({MAIN: main, OTHER: V3}, (2, 2, 1))
    configured({MAIN: main, OTHER: V3.replace("version = 3", "version = 1")}, (2, 3, 5))


def test_ours_leaves_the_version_that_counts_as_it_was() -> None:
    # Read as version 2 before us: as 3, whatever else the older file says would be lost.
    main = f"version = 3\n{IMPORTS}[{NEW}.{OPTIONS.format('runc', 'runc')}"
    _, host = configured({MAIN: main, OTHER: V2}, (2, 2, 1))
    assert containerdset.in_force(containerdset.load(MAIN, host), (2, 2, 1)).version == 2


@pytest.mark.parametrize(("other", "version"), [(V3, 3), (V3.replace("3", "4", 1), 4)])
@pytest.mark.parametrize("release", [(2, 3, 0), (2, 3, 4)])
def test_a_drop_in_above_the_main_file_keeps_2_3_from_starting_and_is_named(
    other: str, version: int, release: tuple[int, ...]
) -> None:
    with pytest.raises(errors.Conflict, match=rf"{OTHER} has version {version}, higher than 2 of {MAIN}"):
        configured({MAIN: f"version = 2\n{IMPORTS}", OTHER: other}, release)


def test_a_version_that_a_release_does_not_know_is_named() -> None:
    with pytest.raises(errors.Conflict, match=f"{MAIN} has version 4, and this release knows 1 to 3"):
        configured({MAIN: "version = 4\n"}, (2, 2, 1))
    with pytest.raises(errors.Conflict, match=f"{MAIN} has version 3, and containerd 1.x knows 1 and 2"):
        configured({MAIN: "version = 3\n"}, (1, 7, 35))


def test_an_import_without_a_file_is_named() -> None:
    files = {MAIN: f"version = 3\n{IMPORTS}", OTHER: 'version = 3\nimports = ["../late.toml"]\n'}
    with pytest.raises(errors.Conflict, match=f"{OTHER} imports /etc/containerd/late.toml, which is not there"):
        configured(files, (2, 2, 1))


@pytest.mark.parametrize("late", [V2, V3])
def test_a_nested_import_that_is_read_after_ours_keeps_its_handlers_and_ours(late: str) -> None:
    path = "/etc/containerd/late/a.toml"
    files = {MAIN: f"version = 3\n{IMPORTS}", OTHER: 'version = 3\nimports = ["../late/*.toml"]\n', path: late}
    _, host = configured(files, (2, 2, 1))
    assert {"fairlead", "kata"} <= runtimes(host, (2, 2, 1)).keys()


def test_containerd_s_own_word_is_held_against_the_request() -> None:
    handler = {"options": {"BinaryName": "/f"}}
    section = {"enable_cdi": False, "containerd": {"runtimes": {"fairlead": handler}}}
    dump = {"plugins": {"io.containerd.cri.v1.runtime": section}}
    assert [line.split(" in its")[0] for line in containerdset.judge_dump(dump, REQUEST, "/f", (2, 2))] == [
        'containerd itself finds no handler "nvidia" of ours',
        "containerd itself finds enable_cdi off",
    ]
    # A section that was not migrated counts for nothing.
    old = {"plugins": {"io.containerd.grpc.v1.cri": section, "io.containerd.cri.v1.runtime": {}}}
    assert len(containerdset.judge_dump(old, REQUEST, "/f", (2, 2))) == 2
