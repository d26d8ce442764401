from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from fairlead import errors
from fairlead.cli.container.start import runflags
from fairlead.cli.core import options
from fairlead.cli.core.client import Client
from fairlead.model.gpu import GPU
from fairlead.model.ids import GPUUUID
from fairlead.plan.sharing import fraction
from fairlead.serve.admission.request import (
    BindRequest,
    HealthRequest,
    HostRequest,
    LimitRequest,
    MemoryMount,
    PortRequest,
    VolumeMount,
)
from fairlead.serve.backend.hardware import GPUListing, GPUView
from fairlead.serve.v1.nodes.view import NodeView
from fairlead.serve.v1.status.view import Status


@pytest.mark.parametrize(
    ("typed", "meant"),
    [
        ("512m", "512Mi"),
        ("4g", "4Gi"),
        ("1.5g", "1.5Gi"),
        ("64k", "64Ki"),
        ("100b", "100"),
        ("64mb", "64Mi"),
        ("4Gi", "4Gi"),
        ("2G", "2G"),
        ("lots", "lots"),
        (None, None),
    ],
)
def test_sizes_mean_what_docker_users_mean(typed: str | None, meant: str | None) -> None:
    assert runflags.memory(typed) == meant


def test_variables_come_from_files_then_the_command_line_then_ours(tmp_path: Path) -> None:
    file = tmp_path / "env"
    file.write_text("# a remark\n\nA=1\nB=from file \nHOME\n")
    found = options.environment(("B=2", "TERM"), (file,), {"HOME": "/root", "TERM": "dumb"})
    assert found == {"A": "1", "B": "2", "HOME": "/root", "TERM": "dumb"}
    assert options.environment((), (file,), {"HOME": "/"})["B"] == "from file "
    file.write_bytes("A=one\u2028two\x0cthree\r\nB=\n".encode())
    assert options.environment((), (file,), {}) == {"A": "one\u2028two\x0cthree", "B": ""}


@pytest.mark.parametrize("word", ["NOWHERE", "", "=x"])
def test_a_variable_without_value_is_refused_by_name(word: str) -> None:
    with pytest.raises(errors.Invalid, match=f'--env "{word}"'):
        options.environment((word,), (), {})


def test_a_file_of_variables_that_cannot_be_read_is_named(tmp_path: Path) -> None:
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    for name in ("none", "binary"):
        with pytest.raises(errors.Invalid, match=name):
            options.environment((), (tmp_path / name,), {})


def test_volumes_are_read_in_both_notations(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.chdir(tmp_path)
    found = runflags.mounts(
        ("/a:/b", "data:/d:ro", "/a:/b:ro", "./data:/d", ".:/e"),
        ("type=bind,src=/a,dst=/b,readonly", "type=volume,source=more,target=/m"),
        cluster=False,
    )
    here = os.fspath(tmp_path)
    assert found["volumes"] == (
        VolumeMount(name="data", container_path="/d", read_only=True),
        VolumeMount(name="more", container_path="/m"),
    )
    assert found["binds"] == (
        BindRequest(host_path="/a", container_path="/b"),
        BindRequest(host_path="/a", container_path="/b", read_only=True),
        BindRequest(host_path=f"{here}/data", container_path="/d"),
        BindRequest(host_path=here, container_path="/e"),
        BindRequest(host_path="/a", container_path="/b", read_only=True),
    )


@pytest.mark.parametrize(
    ("typed", "says"),
    [
        ("data/x:/d", "neither a name nor a path"),
        (":/d", "neither a name nor a path"),
        ("/a", "not of the form"),
        ("/a:b", "not of the form"),
        ("/a:/b:rx", "not of the form"),
        ("/a:/b:ro:z", "not of the form"),
    ],
)
def test_a_volume_that_cannot_be_mounted_is_refused(typed: str, says: str) -> None:
    with pytest.raises(errors.Invalid, match=says):
        runflags.mounts((typed,), (), cluster=False)


@pytest.mark.parametrize(
    "typed", ["type=tmpfs,src=a,dst=/b", "type=bind,src=/a", "src=/a,dst=/b", "type=bind,src=/a,dst=/b,x=1"]
)
def test_a_mount_with_a_part_that_is_not_carried_out_is_refused(typed: str) -> None:
    with pytest.raises(errors.Invalid, match=r"type=bind.volume,source="):
        runflags.mounts((), (typed,), cluster=False)


def test_a_relative_path_means_nothing_on_another_machine() -> None:
    with pytest.raises(errors.Invalid, match="another machine"):
        runflags.mounts(("./a:/b",), (), cluster=True)


def test_ports_are_read_with_address_and_protocol() -> None:
    assert runflags.ports(("8080:80", "127.0.0.1:53:53/udp", "[::1]:1:2")) == (
        PortRequest(host_port=8080, container_port=80),
        PortRequest(host_port=53, container_port=53, protocol="UDP", host_ip="127.0.0.1"),
        PortRequest(host_port=1, container_port=2, host_ip="::1"),
    )
    assert runflags.ports(("127.0.0.1::80/udp",)) == (
        PortRequest(host_port=0, container_port=80, protocol="UDP", host_ip="127.0.0.1"),
    )


def test_hosts_and_checks_of_health_are_read() -> None:
    assert runflags.hosts(("db:10.0.0.7", "six:fd00::1", "b=[::1]")) == (
        HostRequest(name="db", address="10.0.0.7"),
        HostRequest(name="six", address="fd00::1"),
        HostRequest(name="b", address="::1"),
    )
    for typed in ("db", "db:host-gateway", ":10.0.0.7", "a b:10.0.0.7", "db:10.0.0"):
        with pytest.raises(errors.Invalid, match="is not of the form"):
            runflags.hosts((typed,))
    bare = dict.fromkeys(("health_interval", "health_timeout", "health_retries", "health_start_period"))
    asked = {**bare, "health_cmd": "curl -f localhost", "health_retries": 5, "no_healthcheck": False}
    assert runflags.health(asked) == HealthRequest(command=("/bin/sh", "-c", "curl -f localhost"), retries=5)
    assert runflags.health({**bare, "health_cmd": None, "no_healthcheck": True}) is None
    for wrong in ({**asked, "no_healthcheck": True}, {**asked, "health_cmd": None}):
        with pytest.raises(errors.Invalid):
            runflags.health(wrong)


@pytest.mark.parametrize("typed", ["80", "a:b", "1-2:3-4", "8080:80/", "", "--privileged:80"])
def test_a_port_that_cannot_be_read_is_refused(typed: str) -> None:
    with pytest.raises(errors.Invalid, match="is not of the form"):
        runflags.ports((typed,))


def test_memory_is_mounted_with_its_size() -> None:
    assert runflags.memory_mounts(("/scratch", "/t:rw,size=64m"), "2g") == (
        MemoryMount(container_path="/scratch"),
        MemoryMount(container_path="/t", size="64Mi"),
        MemoryMount(container_path="/dev/shm", size="2Gi"),
    )


@pytest.mark.parametrize("typed", ["scratch", "/t:uid=0", "/t:exec"])
def test_memory_with_options_that_are_not_carried_out_is_refused(typed: str) -> None:
    with pytest.raises(errors.Invalid, match="size=N"):
        runflags.memory_mounts((typed,), None)


def test_a_file_of_variables_without_end_is_refused() -> None:
    with pytest.raises(errors.Invalid, match="larger than"):
        options.environment((), (Path("/dev/zero"),), {})


@pytest.mark.parametrize(
    ("typed", "soft", "hard"),
    [
        ("memlock=-1", -1, -1),
        ("nofile=1024:65536", 1024, 65536),
        ("core=0:unlimited", 0, -1),
        ("stack=8388608", 8388608, 8388608),
    ],
)
def test_limits_are_read_as_docker_has_them(typed: str, soft: int, hard: int) -> None:
    assert runflags.ulimits((typed,)) == (LimitRequest(name=typed.partition("=")[0], soft=soft, hard=hard),)


@pytest.mark.parametrize("typed", ["", "nofile", "nofile=", "nofile=1:", "nofile=x", "=1", "nofile=1:2:3"])
def test_a_limit_that_cannot_be_read_is_refused(typed: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        runflags.ulimits((typed,))
    assert caught.value.reason == "UlimitInvalid"


class Offering(Client):
    """A client of a service whose nodes offer these resources."""

    def __init__(self, *nodes: dict[str, str]) -> None:
        self._nodes = tuple(
            NodeView(
                name=f"n{at}",
                state="ready",
                reason="",
                capacity={},
                allocatable=offered,
                used={},
                taints=(),
                kernel="",
                engine="",
            )
            for at, offered in enumerate(nodes)
        )

    def status(self) -> Status:
        return Status(
            is_simulated=True,
            gpus={},
            problems=(),
            version="1",
            node="n0",
            started_at="2026-01-01T00:00:00Z",
            socket="",
            state_folder="",
            cdi_folder="",
            scheduler="",
            resource="nvidia.com/gpu",
            profile="",
            nodes=self._nodes,
            containers={},
        )


@pytest.mark.parametrize(
    ("nodes", "fields"),
    [
        ([{"nvidia.com/gpu": "8"}], {"gpus": 2, "resources": {}}),
        ([{"cpu": "2"}], {"gpus": 2, "resources": {}}),
        (
            [{"nvidia.com/gpu": "0", "nvidia.com/gpu.shared": "32"}],
            {"gpus": 0, "resources": {"nvidia.com/gpu.shared": 2}},
        ),
        ([{"nvidia.com/gpu.shared": "32"}, {"nvidia.com/gpu": "8"}], {"gpus": 2, "resources": {}}),
    ],
)
def test_a_number_of_gpus_means_the_resource_that_they_have(
    nodes: list[dict[str, str]], fields: dict[str, object], capsys: pytest.CaptureFixture[str]
) -> None:
    assert runflags.devices(["2"], Offering(*nodes)) == fields
    assert ("-g means nvidia.com/gpu.shared here" in capsys.readouterr().err) == bool(fields["resources"])


def by_amounts() -> Client:
    """A client of a service with one GPU of 80 GiB that is given by amounts."""
    gpu = GPU(uuid=GPUUUID("GPU-0"), index=0, minor=0, pci_bus_id="", name="X", memory_bytes=80 << 30)
    view = GPUView(gpu=gpu, node="n0", holders=(), resource="nvidia.com/mps-core", sharing="mps", replicas=100)
    listing = GPUListing(gpus=(view,), unreadable=(), drivers=(), is_simulated=True)

    class Answering(Offering):
        def call(self, *_: object, **__: object) -> Any:
            return listing

    return Answering({"nvidia.com/mps-core": "100", "nvidia.com/mps-memory": "80"})


def asked(
    memory: str | None = None, compute: str | None = None, isolation: str | None = None, gpus: tuple[str, ...] = ()
) -> dict[str, Any]:
    return {"gpu_memory": memory, "gpu_compute": compute, "isolation": isolation, "gpus": gpus}


def test_a_part_of_a_gpu_becomes_the_resources_that_stand_for_it(capsys: pytest.CaptureFixture[str]) -> None:
    part = {"nvidia.com/mps-core": 30, "nvidia.com/mps-memory": 20}
    for size, compute in (("20g", "0.3"), ("20Gi", "30%")):
        assert runflags.gpu_part(asked(size, compute), by_amounts()) == part
        assert "20 GiB and 30% of a GPU, isolated by MPS" in capsys.readouterr().err
    assert runflags.gpu_part(asked(), by_amounts()) == {}


@pytest.mark.parametrize(
    ("given", "reason"),
    [
        (asked(isolation="mps"), "FractionInvalid"),
        (asked("8Gi", gpus=("1",)), "FractionInvalid"),
        (asked("eight"), "QuantityInvalid"),
        (asked("-1"), "FractionInvalid"),
        (asked("0"), "FractionInvalid"),
        (asked(compute="300"), "FractionInvalid"),
        (asked("8Gi", isolation="mig"), "IsolationAbsent"),
        (asked("81Gi"), "FractionTooLarge"),
    ],
)
def test_a_part_of_a_gpu_that_cannot_be_given_is_refused(given: dict[str, Any], reason: str) -> None:
    with pytest.raises(errors.FairleadError) as caught:
        runflags.gpu_part(given, by_amounts())
    assert caught.value.reason == reason


@pytest.mark.parametrize(
    ("given", "found"),
    [
        (asked(), ("", "")),
        (asked(isolation="gvisor"), ("", "gvisor")),
        (asked(isolation="none"), ("", "none")),
        (asked("8Gi", isolation="none"), ("none", "")),
        (asked("8Gi", isolation="gvisor"), ("", "gvisor")),
        (asked("8Gi", isolation="mig, vm"), ("mig", "vm")),
        (asked("8Gi", isolation="none,gvisor"), ("none", "gvisor")),
        (asked("8Gi", isolation="none,none"), ("none", "none")),
        (asked(isolation="mps"), ("mps", "")),
    ],
)
def test_isolation_is_of_a_part_of_a_gpu_or_of_the_container(given: dict[str, Any], found: tuple[str, str]) -> None:
    assert runflags.isolations(given) == found


@pytest.mark.parametrize(
    "word", ["", " ", "lxc", "gvisor,vm", "mps,mig", "none,none", ",", "gvisor,", "\0", "x" * 100_000]
)
def test_words_of_isolation_that_do_not_go_together_are_refused(word: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        runflags.isolations(asked(isolation=word))
    assert (caught.value.reason, len(caught.value.message) < 300) == ("IsolationInvalid", True)


@pytest.mark.parametrize(
    "offered",
    [{"nvidia.com/a": "1", "nvidia.com/b": "1"}, {"nvidia.com/mig-1g.10gb": "7"}],
)
def test_where_several_could_be_meant_the_user_is_asked(offered: dict[str, str]) -> None:
    with pytest.raises(errors.Invalid, match="is meant") as caught:
        runflags.devices(["1"], Offering(offered))
    assert caught.value.hint in {"-g nvidia.com/a=1", "-g nvidia.com/mig-1g.10gb=1"}


@pytest.mark.parametrize(("word", "count"), [("2", 2), ("-1", -1), ("9" * 5000, "9" * 5000)])
def test_a_number_that_no_reader_takes_goes_on_as_text(word: str, count: object) -> None:
    found = runflags.devices((f"x.y/z={word}",), Offering({"nvidia.com/gpu": "8"}))
    assert found["resources"] == {"x.y/z": count}


def test_the_offered_isolations_are_those_that_are_planned() -> None:
    assert runflags.ISOLATIONS == fraction.ISOLATIONS
