"""podman's networks by its program: what is asked of it, and what its refusals mean (4.3's and 5.4's words)."""

from __future__ import annotations

import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, cast

import pytest

from fairlead import command, errors, settings
from fairlead.engine import port
from fairlead.engine.podman import cli, networks
from fairlead.engine.podman import host as podman_host


@dataclass
class Program:
    """A podman that knows networks, and refuses with the given words."""

    rows: list[dict[str, Any]] = field(default_factory=list)
    says: str = ""
    forgets: bool = False
    calls: list[tuple[str, ...]] = field(default_factory=list)

    def answer(self, arguments: tuple[str, ...]) -> command.Result:
        self.calls.append(arguments)
        if arguments[:2] == ("network", "ls"):
            return command.Result(code=0, stdout=json.dumps(self.rows).encode(), stderr=b"")
        if self.says:
            return command.Result(code=125, stdout=b"", stderr=f"Error: {self.says}\n".encode())
        if arguments[1] == "create" and not self.forgets:
            subnets = [one.partition("=")[2] for one in arguments if one.startswith("--subnet=")]
            self.rows.append(row(arguments[-1], subnets))
        return command.Result(code=0, stdout=b"", stderr=b"")


def row(name: str, subnets: list[str], driver: str = "bridge") -> dict[str, Any]:
    parts = [{"subnet": one, "gateway": one.replace("0/24", "1")} for one in subnets]
    return {"name": name, "driver": driver, "network_interface": f"br-{name}", "subnets": parts, "labels": {"a": "b"}}


class Scripted(cli.Podman):
    def __init__(self, program: Program, network: str) -> None:
        super().__init__(settings.Settings().engine)
        self._program, self._network = program, network

    async def run(
        self, *arguments: str, timeout_s: float = 1.0, stdin: int | None = None, folder: Path = Path("/")
    ) -> command.Result:
        return self._program.answer(arguments)

    async def host(self) -> podman_host.Host:
        notes = ("containers have no network but their own loopback: no nft",)
        info = port.EngineInfo(
            name="podman", version="5.4.2", runtime="runc", cdi_ceiling="0.5.0", cgroup_version=2, notes=notes
        )
        return podman_host.Host(
            info=info,
            conmon="/usr/bin/conmon",
            globals=(),
            ulimits=(),
            network=self._network,
            may_fall_back=False,
            pid_folder=Path("/run"),
            bundle_folder=Path("/run"),
        )


def made(program: Program, network: str = "bridge") -> networks.PodmanNetworks:
    one = networks.PodmanNetworks()
    one._podman = cast("cli.Podman", Scripted(program, network))
    return one


async def test_only_bridges_are_listed_with_what_is_known_of_them() -> None:
    program = Program(rows=[row("red", ["10.1.0.0/24"]), row("host", [], driver="host"), {"name": "x"}])
    program.rows.append({"name": "bare", "driver": "bridge", "subnets": None, "labels": None})
    listed = await made(program).list_networks()
    assert listed == (
        port.Network(
            name="red", interface="br-red", subnets=("10.1.0.0/24",), gateways=("10.1.0.1",), labels={"a": "b"}
        ),
        port.Network(name="bare", interface="", subnets=(), gateways=(), labels={}),
    )


@pytest.mark.parametrize(
    ("subnets", "resolves", "asked"),
    [
        (("10.1.0.0/24",), True, ["--label=k=v", "--subnet=10.1.0.0/24"]),
        (
            ("10.1.0.0/24", "fd00::/64"),
            False,
            ["--label=k=v", "--ipv6", "--subnet=10.1.0.0/24", "--subnet=fd00::/64", "--disable-dns"],
        ),
    ],
)
async def test_a_network_is_made_as_asked_and_read_back(
    subnets: tuple[str, ...], resolves: bool, asked: list[str]
) -> None:
    program = Program()
    found = await made(program).create_network("red", subnets, labels={"k": "v"}, resolves_names=resolves)
    assert found.subnets == subnets
    assert program.calls[0] == ("network", "create", *asked, "--", "red")


@pytest.mark.parametrize(
    ("says", "error", "reason"),
    [
        ("network name red already used: network already exists", errors.Conflict, "NetworkExists"),
        ("subnet 10.1.0.0/24 is already used on the host", errors.Conflict, "NetworkExists"),
        ("netavark: no such file or directory", errors.Unavailable, "NetworkUnusable"),
    ],
)
async def test_a_refusal_to_make_one_says_whether_another_subnet_may_help(
    says: str, error: type[errors.FairleadError], reason: str
) -> None:
    with pytest.raises(error) as caught:
        await made(Program(says=says)).create_network("red", ("10.1.0.0/24",), labels={}, resolves_names=True)
    assert caught.value.reason == reason
    assert says in caught.value.message


async def test_a_machine_whose_networks_do_not_work_makes_none_and_says_why() -> None:
    program = Program()
    with pytest.raises(errors.Unavailable, match="own loopback: no nft") as caught:
        await made(program, "none").create_network("red", (), labels={}, resolves_names=True)
    assert caught.value.reason == "NetworkUnusable"
    assert program.calls == []


async def test_a_network_that_vanishes_at_once_is_an_error() -> None:
    with pytest.raises(errors.Unavailable, match="was made and is not listed"):
        await made(Program(forgets=True)).create_network("red", (), labels={}, resolves_names=True)


@pytest.mark.parametrize("says", ["", "unable to find network with name or ID red: network not found"])
async def test_removing_what_is_not_there_is_no_error(says: str) -> None:
    program = Program(says=says)
    await made(program).remove_network("red")
    assert program.calls == [("network", "rm", "--", "red")]


@pytest.mark.parametrize(
    ("says", "error", "reason"),
    [
        ('"red" has associated containers with it. Use -f', errors.Conflict, "NetworkInUse"),
        ("network is being used: network is in use", errors.Conflict, "NetworkInUse"),
        ("permission denied", errors.Unavailable, "NetworkUnusable"),
    ],
)
async def test_a_network_that_stays_says_why(says: str, error: type[errors.FairleadError], reason: str) -> None:
    with pytest.raises(error) as caught:
        await made(Program(says=says)).remove_network("red")
    assert caught.value.reason == reason


@pytest.mark.parametrize("name", ["", "-x", "a b", "../a", "a\x00"])
async def test_a_name_that_would_be_an_option_or_a_path_reaches_no_program(name: str) -> None:
    program = Program()
    with pytest.raises(errors.FairleadError):
        await made(program).remove_network(name)
    with pytest.raises(errors.FairleadError):
        await made(program).create_network(name, (), labels={}, resolves_names=True)
    assert program.calls == []
