"""`fairlead fabric …` against the stub: the article's table, options before and after, what is refused."""

from __future__ import annotations

import contextlib
import json
import threading
from collections.abc import Iterator
from pathlib import Path

import click.testing
import pytest

from fairlead import errors
from fairlead.cli.core import invocation
from fairlead.cli.doctor.sharing import fabric, passthrough
from fairlead.cli.layer.fabric import group
from fairlead.model.vfio import Function, FunctionKind, Snapshot
from fairlead.silicon.fabric import address, agentserver, connection, nvfm
from tests.fabricstub import library
from tests.fabricstub.lattice import A100
from tests.fabricstub.manager import Manager

ARTICLE = """\
PARTITION ID  STATUS    GPUs  NVLINKS  GPU PHYSICAL IDs
------------  ------    ----  -------  ----------------
0             Inactive  8     144      1,2,3,4,5,6,7,8
1             Inactive  4     72       1,2,3,4
2             Inactive  4     72       5,6,7,8
3             Inactive  2     36       1,3
4             Inactive  2     36       2,4
5             Inactive  2     36       5,7
6             Inactive  2     36       6,8
7             Active    1     0        1
8             Active    1     0        2
9             Active    1     0        3
10            Active    1     0        4
11            Active    1     0        5
12            Active    1     0        6
13            Active    1     0        7
14            Active    1     0        8
"""


@pytest.fixture(scope="session")
def stub(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return library.compile_library(tmp_path_factory.mktemp("nvfm"))


class Scene:
    def __init__(self, manager: Manager, stub: Path, folder: Path) -> None:
        self.manager, self.folder = manager, folder
        self.address = f"127.0.0.1:{manager.port}"
        self.env = {
            "FAIRLEAD_FABRIC_LIBRARY": str(stub),
            "FAIRLEAD_STATE_FOLDER": str(folder),
            "FAIRLEAD_FABRIC_TIMEOUT_S": "2",
            "FAIRLEAD_CONFIG": "/dev/null",
            "COLUMNS": "80",
        }

    def invoke(self, *args: str) -> click.testing.Result:
        call = invocation.Invocation(env=self.env)
        return click.testing.CliRunner().invoke(
            group.group, args, obj=call, catch_exceptions=False, standalone_mode=False
        )

    def run(self, *args: str) -> str:
        return self.invoke(*args).stdout


@pytest.fixture
def scene(stub: Path, tmp_path: Path) -> Iterator[Scene]:
    with library.running("tcp:127.0.0.1:0") as manager:
        manager.active = set(range(7, 15))
        yield Scene(manager, stub, tmp_path)


def test_the_articles_command_prints_the_articles_table(scene: Scene) -> None:
    assert scene.run("--address", scene.address, "list") == ARTICLE
    assert scene.run("list", "--address", scene.address) == ARTICLE
    assert scene.run("--address", "127.0.0.1:1", "list", "--address", scene.address) == ARTICLE


def test_a_fabric_of_sixteen_gpus_fits_eighty_columns(stub: Path, tmp_path: Path) -> None:
    with library.running("tcp:127.0.0.1:0", A100) as manager:
        lines = Scene(manager, stub, tmp_path).run("list", "--address", f"127.0.0.1:{manager.port}").splitlines()
    assert len(lines) == 2 + 35
    assert max(map(len, lines)) <= 80


def test_programs_get_every_field_and_names_alone(scene: Scene) -> None:
    rows = json.loads(scene.run("list", "-o", "json", "--address", scene.address))
    assert len(rows) == 15
    assert (rows[3]["id"], rows[3]["modules"], rows[3]["links"], rows[3]["is_active"]) == (3, [1, 3], 36, False)
    assert rows[3]["gpus"][0]["link_mbps"] == 26562
    assert scene.run("list", "-o", "name", "--address", scene.address).split() == [str(one) for one in range(15)]
    assert "26562" in scene.run("list", "-o", "wide", "--address", scene.address)


def test_activation_says_what_it_did_and_what_was_so_already(scene: Scene) -> None:
    before = ("--address", scene.address)
    assert scene.run(*before, "deactivate", "7", "9", "0") == (
        "partition 7: inactive\npartition 9: inactive\npartition 0: inactive already\n"
    )
    assert scene.run(*before, "activate", "3") == "partition 3: active\n"
    done = json.loads(scene.run(*before, "activate", "3", "-o", "json"))
    assert done == [{"id": 3, "is_active": True, "was_active": True}]
    assert scene.manager.journal == ["deactivate 7", "deactivate 9", "activate 3"]


def test_an_overlap_is_a_conflict_and_an_unknown_partition_is_asked_of_nobody(scene: Scene) -> None:
    with pytest.raises(errors.Conflict) as caught:
        scene.invoke("--address", scene.address, "activate", "1")
    assert errors.row_of(caught.value).exit == 4
    listed = {one["id"]: one for one in json.loads(scene.run("--address", scene.address, "list", "-o", "json"))}
    wanted = {one["module"] for one in listed[1]["gpus"]}
    active = [one for one in listed.values() if one["is_active"] and wanted & {gpu["module"] for gpu in one["gpus"]}]
    named = " ".join(str(one["id"]) for one in active)
    assert named
    assert f"`fairlead fabric deactivate {named}`" in (caught.value.hint or "")
    with pytest.raises(errors.NotFound, match="no partition 99"):
        scene.invoke("--address", scene.address, "activate", "7", "99")
    assert scene.manager.journal == []


def test_status_says_what_is_active_and_what_failed(scene: Scene) -> None:
    scene.manager.faults["links"] = ""
    said = scene.run("status", "--address", scene.address)
    assert "15 (1 of 8, 2 of 4, 4 of 2, 8 of 1 GPUs)" in said
    assert "7, 8, 9, 10, 11, 12, 13, 14" in said
    assert "NVSwitch 00000000:0f:00.0: links of the ports 3, 7" in said
    assert max(map(len, said.splitlines())) <= 80
    found = json.loads(scene.run("status", "-o", "json", "--address", scene.address))
    assert (found["partitions"], found["through"], found["unsupported"]) == (
        15,
        "library",
        [{"id": 1, "modules": [1, 3]}],
    )


@pytest.mark.parametrize("option", ["--address", "--agent", "--library"])
def test_an_option_that_a_script_left_empty_switches_no_other_manager(scene: Scene, option: str) -> None:
    scene.env["FAIRLEAD_FABRIC_MANAGER"] = scene.address
    for line in ((option, "", "deactivate", "7"), ("deactivate", "7", option, " ")):
        with pytest.raises(errors.Invalid, match=f"{option} is empty"):
            scene.invoke(*line)
    assert scene.manager.journal == []


def test_tcp_is_refused_for_an_agent_before_a_secret_is_asked_for(scene: Scene) -> None:
    for line in (("list", "--agent", "127.0.0.1:6667"), ("serve", "--listen", "127.0.0.1:6667")):
        with pytest.raises(errors.Invalid, match=r"127\.0\.0\.1:6667 is TCP"):
            scene.invoke(*line)


def test_what_is_no_id_of_a_partition_is_named(scene: Scene) -> None:
    with pytest.raises(click.BadParameter, match="'x' is not a valid id of a partition"):
        scene.invoke("activate", "x")


@pytest.mark.parametrize("wrong", ["", "nowhere", "a\x1b[2J:1", "x" * 5000, "/run/a\0b", "1:2:3"])
def test_what_is_no_address_is_refused_before_anything_is_loaded(scene: Scene, wrong: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        scene.invoke("list", "--address", wrong) if wrong else scene.invoke("list", "--agent", " ")
    assert errors.row_of(caught.value).exit == 2


def test_nothing_that_answers_is_unavailable_and_says_what_to_do(scene: Scene) -> None:
    scene.manager.stop()
    with pytest.raises(errors.Unavailable) as caught:
        scene.invoke("list", "--address", scene.address)
    assert errors.row_of(caught.value).exit == 6
    with pytest.raises(errors.Unavailable, match="cannot be loaded") as caught:
        scene.invoke("list", "--library", "/nowhere/libnvfm.so.1")
    assert "nvidia-fabricmanager-dev" in str(caught.value.hint)
    with pytest.raises(click.UsageError, match="one of the two"):
        scene.invoke("list", "--agent", "/x", "--address", scene.address)
    with pytest.raises(click.UsageError, match="another one"):
        scene.invoke("serve", "--agent", "/x")


def test_the_agent_is_asked_in_place_of_the_library(scene: Scene, stub: Path) -> None:
    scene.env["FAIRLEAD_FABRIC_LIBRARY"] = "/nowhere"
    before = threading.active_count()
    secret = scene.folder / "fabric.secret"
    with pytest.raises(errors.Unavailable, match="secret") as caught:
        scene.invoke("list", "--agent", str(scene.folder / "a.sock"))
    assert "umask 077" in str(caught.value.hint)
    secret.write_bytes(b"k" * 32)
    secret.chmod(0o600)
    line = connection.Connection("fm", lambda: nvfm.NVFM(str(stub), address.parse(scene.address), timeout_s=2))
    server = agentserver.AgentServer(line, b"k" * 32, timeout_s=2, is_allowed=lambda _: True)
    server.listen(address.parse(str(scene.folder / "a.sock")))
    with contextlib.closing(server):
        assert scene.run("list", "--agent", str(scene.folder / "a.sock")) == ARTICLE
        scene.env["FAIRLEAD_FABRIC_AGENT"] = str(scene.folder / "a.sock")
        assert json.loads(scene.run("status", "-o", "json"))["through"] == "agent"
        assert threading.active_count() - before < 20


def _switch() -> Snapshot:
    found = Function(
        address="0000:07:00.0", kind=FunctionKind.NVSWITCH, vendor=0x10DE, device=0x22A3, driver="vfio-pci"
    )
    return Snapshot(functions=(found,))


def test_doctor_names_what_is_wrong_with_the_fabric_and_the_fix(scene: Scene) -> None:
    plain = invocation.Invocation(env=scene.env).settings()
    assert list(fabric.check(fabric.collect(plain, Snapshot()))) == []
    there = invocation.Invocation(env=scene.env | {"FAIRLEAD_FABRIC_MANAGER": scene.address}).settings()
    scene.manager.faults["links"] = ""
    good, *failed = fabric.check(fabric.collect(there, _switch()))
    assert (good.level, "15 partitions; active: 7, 8" in good.what) == ("ok", True)
    assert [one.level for one in failed] == ["warn", "warn"]
    scene.manager.stop()
    (gone,) = fabric.check(fabric.collect(there, _switch()))
    assert (gone.level, "1 switches are passed through" in gone.what, "fabric.agent" in gone.fix) == (
        "warn",
        True,
        True,
    )
    agent = invocation.Invocation(env=scene.env | {"FAIRLEAD_FABRIC_AGENT": "/nowhere.sock"}).settings()
    (lost,) = passthrough.check(passthrough.Facts(fabric=fabric.collect(agent, Snapshot())))
    assert (lost.level, "secret" in lost.what, "urandom" in lost.fix) == ("fail", True, True)


@pytest.mark.parametrize(
    ("models", "is_fabric"),
    [
        (("AD102GL [L40S]",), False),
        (("AD102GL [L40S]", "GA100 [A100 PCIe 80GB]"), False),
        (("GH100 [H100 SXM5 80GB]",), True),
        (("AD102GL [L40S]", "GB100 [B200]"), True),
        (("",), True),
    ],
)
def test_doctor_asks_no_manager_for_gpus_that_can_have_no_fabric(
    scene: Scene, models: tuple[str, ...], is_fabric: bool
) -> None:
    scene.manager.stop()
    env = scene.env | {"FAIRLEAD_NODE_FABRIC": "on", "FAIRLEAD_FABRIC_MANAGER": scene.address}
    gpus = tuple(
        Function(
            address=f"0000:0{at}:00.0",
            kind=FunctionKind.GPU,
            vendor=0x10DE,
            device=0x9999,
            driver="vfio-pci",
            model=model,
        )
        for at, model in enumerate(models)
    )
    config = invocation.Invocation(env=env | {"FAIRLEAD_STATE_FOLDER": str(scene.folder / "state")}).settings()
    (found,) = fabric.check(fabric.collect(config, Snapshot(functions=gpus)))
    assert (found.level, "does nothing here" in found.what) == (("fail", False) if is_fabric else ("ok", True))
    if not is_fabric:
        assert all(model in found.what for model in models)
        (scene.folder / "state/agent").mkdir(parents=True)
        (scene.folder / "state/agent/fabric.json").write_text("{}")
        (asked,) = fabric.check(fabric.collect(config, Snapshot(functions=gpus)))
        assert asked.level == "fail", "a Manager listed partitions here: the agent asks it still"


@pytest.mark.parametrize(
    ("manager", "guests", "level", "says"),
    [
        ("580.95.05", "580.95.05", None, ""),
        ("580.95.05", "570.10", "fail", "580.95.05"),
        ("580.95.05", "", "warn", "fabric.guest_driver"),
        ("", "570.10", "warn", "fabric.version"),
        ("", "", "warn", "fabric.version and fabric.guest_driver"),
    ],
)
def test_doctor_and_status_hold_the_managers_version_against_that_of_guests(
    scene: Scene, manager: str, guests: str, level: str | None, says: str
) -> None:
    scene.env |= {"FAIRLEAD_FABRIC_VERSION": manager, "FAIRLEAD_FABRIC_GUEST_DRIVER": guests}
    scene.env |= {"FAIRLEAD_NODE_FABRIC": "on", "FAIRLEAD_FABRIC_MANAGER": scene.address}
    _, *found = fabric.check(fabric.collect(invocation.Invocation(env=scene.env).settings(), Snapshot()))
    assert [one.level for one in found] == [level] * bool(level)
    assert all(says in f"{one.what} {one.fix}" for one in found)
    shown = json.loads(scene.run("status", "-o", "json"))
    assert (shown["version"], shown["guest_driver"]) == (manager, guests)
    assert ("until both are one" in scene.run("status")) is (level == "fail")
