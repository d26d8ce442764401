"""What each engine is told: whole host trees before and after, and what is refused.

A case is a folder of `enginegolden`: `case.json` is the request, `before` and `after` are trees of files as they stand
on a host, `outcome.json` is what the operator is told.
"""

from __future__ import annotations

import json
import tomllib
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest

from fairlead import errors
from fairlead.plan.engineconfig import table, tree
from fairlead.plan.engineconfig.model import HEADER, Location, Proposal, Request
from fairlead.plan.gpu.allocation import enginesupport

GOLDEN = Path(__file__).parent / "enginegolden"
CASES = sorted(path.name for path in GOLDEN.iterdir() if path.is_dir())
CONTAINERD = table.ENGINES["containerd"].config
CRI_2 = "io.containerd.grpc.v1.cri"


@dataclass
class Host:
    """Files by path."""

    files: dict[str, bytes]

    def read(self, path: str) -> bytes | None:
        return self.files.get(path)

    def glob(self, pattern: str) -> list[str]:
        return sorted(path for path in self.files if tree.matches(path, pattern))


def read_tree(folder: Path) -> dict[str, bytes]:
    return {f"/{path.relative_to(folder)}": path.read_bytes() for path in folder.rglob("*") if path.is_file()}


def propose(case: Mapping[str, Any], host: Host) -> Proposal:
    engine = table.ENGINES[case["engine"]]
    version = tuple(case["version"]) if case.get("version") else None
    place = Location(config=engine.config, drop_in=case.get("drop_in", ""), version=version)
    return engine.propose(place, Request(folder="/usr/libexec/fairlead", **case.get("request", {})), host)


def after(host: Host, proposal: Proposal) -> dict[str, bytes]:
    return {**host.files, **{edit.path: edit.after for edit in proposal.edits}}


@pytest.mark.parametrize("name", CASES)
def test_an_engine_is_told_what_the_golden_files_say(name: str) -> None:
    folder = GOLDEN / name
    case = json.loads((folder / "case.json").read_text())
    host = Host(read_tree(folder / "before"))
    proposal = propose(case, host)
    found = {path: data.decode() for path, data in after(host, proposal).items()}
    assert found == {path: data.decode() for path, data in read_tree(folder / "after").items()}
    told = {"program": proposal.program, "runtimes": list(proposal.runtimes), "notes": list(proposal.notes)}
    assert told == json.loads((folder / "outcome.json").read_text())


@pytest.mark.parametrize("name", [name for name in CASES if not name.startswith("docker")])
def test_nobody_s_file_loses_a_line(name: str) -> None:
    folder = GOLDEN / name
    host = Host(read_tree(folder / "before"))
    result = after(host, propose(json.loads((folder / "case.json").read_text()), host))
    for path, data in host.files.items():
        mine = result[path].decode().splitlines()
        assert [line for line in data.decode().splitlines() if line not in mine] == []


def containerd(files: Mapping[str, str], *, version: tuple[int, ...] | None = (1, 7), **request: Any) -> Proposal:
    case = {"engine": "containerd", "version": version, "request": request}
    return propose(case, Host({path: text.encode() for path, text in files.items()}))


def section_of(proposal: Proposal, name: str = CRI_2) -> dict[str, Any]:
    found: dict[str, Any] = tomllib.loads(proposal.edits[0].after.decode())["plugins"][name]
    return found


def test_a_1_x_drop_in_holds_the_whole_section_and_a_2_x_one_ours_alone() -> None:
    files = {CONTAINERD: f'version = 2\n[plugins."{CRI_2}"]\nsandbox_image = "mine"\n'}
    assert section_of(containerd(files))["sandbox_image"] == "mine"
    assert "sandbox_image" not in section_of(containerd(files, version=(2, 0)))
    # Nobody knows which release reads it: right for both.
    assert section_of(containerd(files, version=None))["sandbox_image"] == "mine"


def test_1_x_needs_runc_spelled_out_where_nobody_does() -> None:
    runtimes = section_of(containerd({CONTAINERD: "version = 2\n"}))["containerd"]["runtimes"]
    assert runtimes["runc"] == {"runtime_type": "io.containerd.runc.v2"}


def test_a_file_that_1_x_reads_later_is_told_and_refused() -> None:
    files = {
        CONTAINERD: 'version = 2\nimports = ["/a/*.toml", "/b/late.toml"]\n',
        "/b/late.toml": f'version = 2\n[plugins."{CRI_2}"]\nenable_selinux = true\n',
    }
    with pytest.raises(errors.Conflict, match=r"/b/late\.toml is read after /a/zz-fairlead\.toml"):
        containerd(files)
    assert containerd(files, version=(2, 0)).edits


@pytest.mark.parametrize(
    ("late", "key"),
    [
        ("enable_cdi = false", "enable_cdi"),
        ('cdi_spec_dirs = ["/opt/cdi"]', "cdi_spec_dirs"),
    ],
)
def test_a_file_that_2_x_reads_later_may_add_but_not_take_back(late: str, key: str) -> None:
    main = 'version = 3\nimports = ["/a/*.toml", "/b/late.toml"]\n'
    head = 'version = 3\n[plugins."io.containerd.cri.v1.runtime"]\n'
    with pytest.raises(errors.Conflict, match=rf"/b/late\.toml is read after .* says otherwise about {key}"):
        containerd({CONTAINERD: main, "/b/late.toml": f"{head}{late}\n"}, version=(2, 2))
    assert containerd({CONTAINERD: main, "/b/late.toml": f"{head}enable_selinux = true\n"}, version=(2, 2)).edits


def test_imports_in_a_circle_end() -> None:
    files = {CONTAINERD: f'version = 3\nimports = ["{CONTAINERD}", "b.toml"]\n', "/etc/containerd/b.toml": "version=3"}
    assert len(containerd(files, version=(2, 2)).edits) == 2


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ("version = 2\nroot = \n", f"{CONTAINERD}:2:8: not TOML"),
        ("version = 2\nversion = 2\n", f"{CONTAINERD}:2:12: not TOML"),
        ("version = 9\n", "version 9 is not known"),
        ("version = true\n", "version True is not known"),
        ("version = 2\nimports = 3\n", "imports must be a list of texts, not 3"),
        ("version = 2\nplugins = 3\n", "plugins must be a table, not 3"),
        (f'version = 2\n[plugins]\n"{CRI_2}" = 1\n', "must be a table, not 1"),
        (f'version = 2\n[plugins."{CRI_2}".containerd]\nruntimes = 1\n', "containerd.runtimes must be a table"),
    ],
)
def test_a_file_that_cannot_be_meant_is_named_with_its_line(text: str, words: str) -> None:
    with pytest.raises(errors.ProtocolError) as caught:
        containerd({CONTAINERD: text})
    assert words in caught.value.message
    assert CONTAINERD in caught.value.message
    assert caught.value.hint


def test_bytes_that_are_no_text_are_named_with_their_line() -> None:
    host = Host({CONTAINERD: b"version = 2\nroot = \xff\n"})
    with pytest.raises(errors.ProtocolError, match=f"{CONTAINERD}:2: not UTF-8"):
        propose({"engine": "containerd", "version": (1, 7)}, host)


@pytest.mark.parametrize(
    ("text", "words"),
    [
        ('{\n "a": 1,\n "b"}', "/etc/docker/daemon.json:3:5: not JSON"),
        ("[]", "/etc/docker/daemon.json:1: a JSON object is wanted, not list"),
        ('{"runtimes": []}', "runtimes must be a table"),
    ],
)
def test_docker_s_file_too(text: str, words: str) -> None:
    with pytest.raises(errors.ProtocolError, match=words):
        propose({"engine": "docker"}, Host({"/etc/docker/daemon.json": text.encode()}))


@pytest.mark.parametrize(
    ("engine", "version"), [("containerd", (1, 6, 36)), ("docker", (24, 0, 7)), ("crio", (1, 22)), ("podman", (3, 4))]
)
def test_a_release_that_ignores_cdi_is_refused_unless_the_shim_injects(engine: str, version: tuple[int, ...]) -> None:
    with pytest.raises(errors.Unavailable) as caught:
        propose({"engine": engine, "version": version}, Host({}))
    assert caught.value.reason == "CDIUnsupported"
    assert propose({"engine": engine, "version": version, "request": {"enables_cdi": False}}, Host({})).edits


def test_an_unknown_release_is_told() -> None:
    assert "release of podman is not known" in propose({"engine": "podman"}, Host({})).notes[0]


@pytest.mark.parametrize(
    ("engine", "text"),
    [
        ("containerd", f'version = 2\n[plugins."{CRI_2}".containerd.runtimes.mine]\nruntime_type = "x"\n'),
        ("docker", '{"runtimes": {"mine": {"path": "x"}}}'),
        ("crio", '[crio.runtime.runtimes.mine]\nruntime_path = "x"\n'),
        ("podman", '[engine.runtimes]\nmine = ["x"]\n'),
    ],
)
def test_a_name_that_means_something_already_is_refused_but_the_alias_taken_over(engine: str, text: str) -> None:
    host = Host({table.ENGINES[engine].config: text.encode()})
    with pytest.raises(errors.Conflict, match='defines a runtime "mine" already'):
        propose({"engine": engine, "request": {"name": "mine"}}, host)
    notes = propose({"engine": engine, "request": {"alias": "mine"}}, host).notes
    assert any('"mine"' in note for note in notes)


@pytest.mark.parametrize("engine", ["docker", "podman"])
def test_kata_is_for_engines_of_kubernetes(engine: str) -> None:
    with pytest.raises(errors.Invalid, match="no handlers for virtual machines"):
        propose({"engine": engine, "request": {"has_kata": True}}, Host({}))


def test_a_kata_handler_that_is_there_stays_as_it_is() -> None:
    text = 'version = 3\n[plugins."io.containerd.cri.v1.runtime".containerd.runtimes.kata-qemu-nvidia-gpu]\nx = 1\n'
    proposal = containerd({CONTAINERD: text}, version=(2, 2), has_kata=True)
    assert "kata" not in proposal.edits[0].after.decode()


def test_docker_has_no_drop_ins() -> None:
    with pytest.raises(errors.Invalid, match="no drop-ins"):
        propose({"engine": "docker", "drop_in": "/x"}, Host({}))


def test_annotations_of_pods_that_ask_for_devices_are_not_inherited() -> None:
    patterns = ["example.com/*", "*", "*/*", "cdi.k8s.io/*", "cdi.*/mine", "cdi.k8s.io"]
    runc = f'plugins."{CRI_2}".containerd.runtimes.runc'
    files = {CONTAINERD: f"version = 2\n[{runc}]\npod_annotations = {json.dumps(patterns)}\n"}
    for version in ((1, 7), (2, 0)):
        runtimes = section_of(containerd(files, version=version))["containerd"]["runtimes"]
        assert runtimes["fairlead"]["pod_annotations"] == ["example.com/*", "*", "cdi.k8s.io"]


def docker_members(document: Mapping[str, Any]) -> dict[str, Any]:
    """Return docker's file after us."""
    path = table.ENGINES["docker"].config
    proposal = propose({"engine": "docker", "version": (28, 0)}, Host({path: json.dumps(document).encode()}))
    found: dict[str, Any] = json.loads(proposal.edits[0].after)
    return found


def test_docker_s_newer_way_of_naming_a_runtime_is_inherited_from() -> None:
    options = {"Root": "/run/mine", "BinaryName": "/opt/crun"}
    mine = {"runtimeType": "io.containerd.runc.v2", "options": options}
    found = docker_members({"default-runtime": "mine", "runtimes": {"mine": mine}})["runtimes"]
    program = "/usr/libexec/fairlead/docker/fairlead-runtime"
    assert found["fairlead"] == {**mine, "options": {**options, "BinaryName": program}}
    assert found["mine"] == mine


def test_docker_s_runtime_of_another_kind_is_not_inherited_from() -> None:
    kata = {"runtimeType": "io.containerd.kata.v2", "options": {"ConfigPath": "/x"}}
    found = docker_members({"default-runtime": "kata", "runtimes": {"kata": kata}})["runtimes"]
    assert found["fairlead"] == {"path": "/usr/libexec/fairlead/fairlead-runtime"}


def test_a_docker_without_folders_for_cdi_gets_them_and_no_empty_one() -> None:
    assert docker_members({"cdi-spec-dirs": [""]})["cdi-spec-dirs"] == ["/etc/cdi", "/var/run/cdi"]


def crio(files: Mapping[str, str], **request: Any) -> dict[str, Any]:
    """Return our drop-in's section."""
    proposal = propose(
        {"engine": "crio", "request": request}, Host({name: text.encode() for name, text in files.items()})
    )
    found: dict[str, Any] = tomllib.loads(proposal.edits[0].after.decode())["crio"]["runtime"]
    return found


CRIO = "/etc/crio/crio.conf.d"


def test_a_handler_of_a_later_file_of_crio_s_counts_alone() -> None:
    head = "[crio.runtime.runtimes.runc]\n"
    files = {f"{CRIO}/10.conf": f'{head}runtime_root = "/run/a"\n', f"{CRIO}/20.conf": f'{head}monitor_path = "/b"\n'}
    handler = crio(files)["runtimes"]["fairlead"]
    assert "runtime_root" not in handler
    assert handler["monitor_path"] == "/b"


def test_crio_s_way_of_inheriting_never_leads_past_the_shim() -> None:
    text = '[crio.runtime.runtimes.runc]\nruntime_path = "/usr/sbin/runc"\ninherit_default_runtime = true\n'
    assert "inherit_default_runtime" not in crio({f"{CRIO}/10.conf": text})["runtimes"]["fairlead"]


def test_a_file_that_crio_reads_later_may_add_but_not_take_back() -> None:
    late = f"{CRIO}/zzz.conf"
    assert crio({late: '[crio.runtime.runtimes.mine]\nruntime_path = "/x"\n'})
    with pytest.raises(errors.Conflict, match=r"zzz\.conf is read after .*, and says otherwise about default_runtime"):
        crio({late: '[crio.runtime]\ndefault_runtime = "runc"\n'}, is_default=True)
    # The main file is read first, wherever ours goes.
    case = {"engine": "crio", "drop_in": "/a/b.conf", "request": {"is_default": True}}
    main = b'[crio.runtime]\ndefault_runtime = "runc"\n'
    assert propose(case, Host({table.ENGINES["crio"].config: main})).edits


def test_a_containerd_without_its_cri_plugin_is_told() -> None:
    assert any("CRI plugin" in one for one in containerd({CONTAINERD: 'disabled_plugins = ["cri"]\n'}).unmet)


def test_annotations_reach_the_shim_only_where_the_engine_does_not_inject() -> None:
    files = {CONTAINERD: "version = 2\n"}
    with_cdi = section_of(containerd(files))["containerd"]["runtimes"]["fairlead"]
    without = section_of(containerd(files, enables_cdi=False))["containerd"]["runtimes"]["fairlead"]
    assert "container_annotations" not in with_cdi
    assert without["container_annotations"] == ["cdi.k8s.io/*"]
    assert "pod_annotations" not in without


def test_every_file_of_ours_says_so_in_its_first_line() -> None:
    for engine in ("containerd", "crio", "podman"):
        edit = propose({"engine": engine}, Host({})).edits[0]
        assert edit.after.startswith(HEADER.encode())
        assert edit.changes == ()


@pytest.mark.parametrize(
    ("text", "version"),
    [
        ("containerd github.com/containerd/containerd v1.7.35 e1\n", (1, 7, 35)),
        ("containerd github.com/containerd/containerd/v2 v2.2.1 \n", (2, 2, 1)),
        ("containerd github.com/containerd/containerd 1.6.20~ds1 1.6.20~ds1-1+deb12u3\n", (1, 6, 20)),
        ("Docker version 26.1.5+dfsg1, build a72d7cd\n", (26, 1, 5)),
        ("crio version 1.30.1\nVersion: 1.30.1\n", (1, 30, 1)),
        ("podman version 5.4\n", (5, 4)),
        ("no number here", None),
    ],
)
def test_releases_are_read_from_what_programs_print(text: str, version: tuple[int, ...] | None) -> None:
    assert enginesupport.parse_version(text) == version


@pytest.mark.parametrize("runtime", ["containerd://1.6.36", "containerd://1.6.20~ds1", "cri-o://1.22.0"])
def test_a_node_whose_engine_ignores_cdi_is_refused(runtime: str) -> None:
    with pytest.raises(errors.Unavailable, match="does not inject CDI"):
        enginesupport.check_node(runtime)


@pytest.mark.parametrize("runtime", ["containerd://1.7.0", "containerd://2.2.1", "cri-o://1.30.1", "other://1.0", ""])
def test_a_node_whose_engine_injects_or_is_unknown_passes(runtime: str) -> None:
    enginesupport.check_node(runtime)


@pytest.mark.parametrize("drop_in", ["/etc/containerd/conf.d/-0", "/etc/containerd/conf.d/[a].toml"])
def test_a_drop_in_that_no_import_finds_is_refused(drop_in: str) -> None:
    with pytest.raises(errors.Invalid, match="would not be read"):
        propose({"engine": "containerd", "version": (1, 7), "drop_in": drop_in}, Host({CONTAINERD: b"version = 2\n"}))


def test_an_import_cannot_look_at_the_whole_disk() -> None:
    with pytest.raises(errors.ProtocolError, match="in more than 2 places"):
        containerd({CONTAINERD: 'version = 2\nimports = ["/*/*/*/*.toml"]\n'})


def test_a_folder_among_crio_s_drop_ins_is_read_in_its_place() -> None:
    late = {"/etc/crio/crio.conf.d/zzz/9.conf": '[crio.runtime.runtimes.fairlead]\nruntime_path = "/x"\n'}
    with pytest.raises(errors.Conflict, match="already"):
        crio(late)
    late = {"/etc/crio/crio.conf.d/zzz/9.conf": '[crio.runtime.runtimes.nvidia]\nruntime_path = "/x"\n'}
    with pytest.raises(errors.Conflict, match=r"zzz/9\.conf is read after .* says otherwise about runtimes"):
        crio(late)
