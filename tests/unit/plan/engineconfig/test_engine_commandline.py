"""Which file an engine reads by its command line, and what that line overrules."""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.plan.engineconfig import commandline
from fairlead.plan.engineconfig.model import Edit, Member, Proposal

USUAL = "/etc/containerd/config.toml"


def parse(line: str, engine: str = "containerd", folder: str = "/") -> commandline.Running | None:
    return commandline.parse(engine, line.split(), usual=USUAL, folder=folder)


K3S = "/var/lib/rancher/k3s/agent/etc/containerd/config.toml"
K0S = "/etc/k0s/containerd.toml"
MICROK8S = "/var/snap/microk8s/current/args/containerd.toml"


@pytest.mark.parametrize(
    ("line", "config"),
    [
        ("/usr/bin/containerd", USUAL),
        (f"containerd -c {K3S} -a /run/k3s/c.sock", K3S),
        (f"/var/lib/k0s/bin/containerd --root=/r --log-level=info --config={K0S}", K0S),
        (f"/snap/microk8s/1/bin/containerd -config {MICROK8S}", MICROK8S),
        ("containerd --config ../a.toml --config b/../c.toml", "/srv/c.toml"),
        ("containerd --root config --config /x", "/x"),
    ],
)
def test_the_main_file_of_a_containerd_is_read_from_its_command_line(line: str, config: str) -> None:
    found = parse(line, folder="/srv")
    assert found is not None
    assert found.config == config


@pytest.mark.parametrize(
    "line", ["containerd config dump", "containerd --config /x config dump", "containerd-shim -c x", "ctr x"]
)
def test_what_is_not_the_engine_is_none(line: str) -> None:
    assert parse(line) is None


def test_dockerd_and_crio_name_theirs_in_their_own_ways() -> None:
    docker, crio = parse("dockerd -H fd:// --config-file=/x.json", "docker"), parse("crio -c /c -d /d", "crio")
    assert docker is not None and docker.config == "/x.json"  # noqa: PT018
    assert crio is not None and (crio.config, crio.options["d"]) == ("/c", ("/d",))  # noqa: PT018
    assert parse("crio --config /c config", "crio") is None


def test_an_engine_that_reads_another_file_is_refused_and_names_it() -> None:
    other = commandline.Running(program="/k0s/containerd", config="/etc/k0s/containerd.toml", pid=7)
    with pytest.raises(errors.Conflict, match=r"containerd \(pid 7\) reads /etc/k0s/containerd.toml") as caught:
        commandline.refuse_elsewhere("containerd", USUAL, (other,))
    assert "--config /etc/k0s/containerd.toml" in str(caught.value.hint)
    usual = commandline.Running(program="containerd", config=USUAL, pid=8)
    for running in ((), (usual,), (other, usual)):
        commandline.refuse_elsewhere("containerd", USUAL, running)


def test_a_file_that_is_generated_is_not_advised() -> None:
    k3s = commandline.Running(program="containerd", config="/var/lib/rancher/k3s/agent/etc/containerd/config.toml")
    assert "written at each start" in commandline.hint_elsewhere((k3s,))


def docker(line: str, *members: Member) -> tuple[str, ...]:
    edit = Edit(path="/etc/docker/daemon.json", before=None, after=b"", changes=members)
    found = parse(line, "docker")
    assert found is not None
    return commandline.find_conflicts("docker", (found,), Proposal(program="", runtimes=(), edits=(edit,)))


def test_an_option_of_dockerd_that_its_file_has_too_is_named() -> None:
    runtime = Member(path=("runtimes", "nvidia"), value={"path": "/x"})
    kind = Member(path=("runtimes", "nvidia"), value={"runtimeType": "io.containerd.runc.v2"})
    default = Member(path=("default-runtime",), value="fairlead")
    cdi = Member(path=("features", "cdi"), value=True)
    # Runtimes of both are put together (measured with dockerd --validate of 29).
    assert docker("dockerd --add-runtime nvidia=/y", runtime) == ()
    assert "--add-runtime nvidia=/y" in docker("dockerd --add-runtime nvidia=/y", kind)[0]
    assert "--default-runtime runc" in docker("dockerd --default-runtime=runc", runtime, default)[0]
    assert docker("dockerd --default-runtime runc", runtime) == ()
    assert "--feature cdi=true" in docker("dockerd --feature cdi=true", cdi)[0]


def test_options_of_crio_overrule_its_files_and_are_named() -> None:
    after = b'[crio.runtime]\ndefault_runtime = "fairlead"\n'
    proposal = Proposal(
        program="", runtimes=(), edits=(Edit(path="/etc/crio/crio.conf.d/zz.conf", before=None, after=after),)
    )
    for line, words in (("crio -d /x", "--config-dir /x"), ("crio --default-runtime crun", "--default-runtime crun")):
        found = parse(line, "crio")
        assert found is not None
        assert words in commandline.find_conflicts("crio", (found,), proposal)[0]
    same = parse("crio --config-dir /etc/crio/crio.conf.d/", "crio")
    assert same is not None
    assert commandline.find_conflicts("crio", (same,), proposal) == ()
