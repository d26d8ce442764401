"""The verbs that look at the machine, and those that need no service."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import click
import msgspec
import pytest
import yaml

from fairlead import settings
from fairlead.cli import main
from fairlead.cli import verbs as lazy
from fairlead.cli.core import invocation, lazygroup
from fairlead.cli.image import image
from fairlead.serve.backend.hardware import ImageView
from tests.unit.cli.conftest import Service, fairlead


def test_gpus_topology_and_nodes_are_tables(service: Service) -> None:
    gpus = service.fairlead("gpus")
    assert gpus.stdout.splitlines()[1].split()[:7] == ["0", "H100", "80GB", "HBM3", "-", "80", "GiB"]
    assert "SIMULATED" in gpus.stderr
    matrix = service.fairlead("topology").stdout.splitlines()
    assert matrix[1].split() == ["GPU0", "X", "NV18", "NV18", "NV18", "0"]
    assert service.fairlead("nodes", "-o", "name").stdout == "one\n"
    assert service.fairlead("gpus", "-o", "name").stdout.splitlines() == [f"GPU-{index}" for index in range(4)]


def test_capacity_is_a_table_or_data(service: Service) -> None:
    rows = service.fairlead("capacity").stdout.splitlines()
    assert rows[0].split() == ["RESOURCE", "MODEL", "OFFERED", "FREE", "LARGEST", "PODS", "THAT", "FIT", "FRAGMENTED"]
    assert rows[1].split() == [
        "nvidia.com/gpu",
        "-",
        "4",
        "4",
        "4",
        "4",
        "of",
        "1,",
        "2",
        "of",
        "2,",
        "1",
        "of",
        "4",
        "-",
    ]
    found = json.loads(service.fairlead("capacity", "-o", "json").stdout)
    assert found[0]["fits"] == {"1": 4, "2": 2, "4": 1}


def test_a_snapshot_is_replayed_without_a_cluster(tmp_path: Path) -> None:
    ready = {"type": "Ready", "status": "True"}
    status = {"allocatable": {"nvidia.com/gpu": "1", "pods": "9"}, "conditions": [ready]}
    node = {"apiVersion": "v1", "kind": "Node", "metadata": {"name": "one"}, "status": status}
    wanted = {"limits": {"nvidia.com/gpu": "1"}, "requests": {"nvidia.com/gpu": "1"}}
    spec = {"schedulerName": "fairlead", "containers": [{"name": "main", "image": "i", "resources": wanted}]}
    about = {name: {"name": name, "namespace": "default", "uid": name} for name in ("a", "b")}
    pods = [{"apiVersion": "v1", "kind": "Pod", "metadata": one, "spec": spec} for one in about.values()]
    file = tmp_path / "snapshot.json"
    head = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "SchedulerSnapshot", "policy": "packed"}
    file.write_text(json.dumps({**head, "items": [node, *pods]}))
    said = fairlead("scheduler", "--replay", str(file)).stdout.splitlines()
    assert [line for line in said if line.startswith("default/")] == [
        "default/a: node one",
        "default/b: 0/1 nodes are available: 1 Insufficient nvidia.com/gpu.",
    ]
    shown = fairlead("scheduler", "--replay", str(file), "-o", "json").stdout
    found = json.loads(shown)
    assert [one["node"] for one in found] == ["one", ""]
    assert found[1]["refused"][0]["why"] == "Insufficient nvidia.com/gpu"


def test_moves_that_make_room_are_printed_from_a_snapshot(tmp_path: Path) -> None:
    ready = {"type": "Ready", "status": "True"}
    status = {"allocatable": {"nvidia.com/gpu": "2", "pods": "9"}, "conditions": [ready]}
    items: list[dict[str, object]] = [
        {"apiVersion": "v1", "kind": "Node", "metadata": {"name": name}, "status": status} for name in ("n0", "n1")
    ]
    owner = {"apiVersion": "apps/v1", "kind": "ReplicaSet", "name": "web", "uid": "web", "controller": True}
    for name, gpus, node in (("web-0", 1, "n0"), ("web-1", 1, "n1"), ("big", 2, "")):
        wanted = {"limits": {"nvidia.com/gpu": str(gpus)}, "requests": {"nvidia.com/gpu": str(gpus)}}
        main = {"name": "main", "image": "i", "resources": wanted}
        spec = {"schedulerName": "fairlead", "nodeName": node, "containers": [main]}
        about = {"name": name, "namespace": "default", "uid": name, "ownerReferences": [owner] if node else []}
        began = {"phase": "Running", "startTime": "2020-01-01T00:00:00Z"} if node else {}
        items.append({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": spec, "status": began})
    file = tmp_path / "snapshot.json"
    head = {"apiVersion": "fairlead.dev/v1alpha1", "kind": "SchedulerSnapshot", "policy": "packed"}
    file.write_text(json.dumps({**head, "at": "2026-01-01T00:00:00Z", "items": items}))
    said = fairlead("scheduler", "--plan-moves", "--replay", str(file)).stdout
    assert "default/big would fit on n0 after 1 move:\n  default/web-0: n0 -> n1\n" in said
    shown = fairlead("scheduler", "--plan-moves", "--replay", str(file), "-o", "json").stdout
    found = json.loads(shown)
    assert found["steps"][0]["moves"] == [{"namespace": "default", "name": "web-0", "from": "n0", "to": "n1"}]


def test_status_is_text_or_data(service: Service) -> None:
    text = service.fairlead("status").stdout
    assert "SIMULATED (h100x4)" in text
    assert json.loads(service.fairlead("status", "-o", "json").stdout)["node"] == "one"
    assert yaml.safe_load(service.fairlead("status", "-o", "yaml").stdout)["gpus"]["found"] == 4


def test_doctor_judges_what_the_service_says(service: Service) -> None:
    folder = service.world.services.info.cdi_folder
    broken = service.fairlead("doctor", "-o", "json")
    found = json.loads(broken.stdout)
    assert broken.exit_code == 1
    assert {item["level"] for item in found if item["check"] == "plugin"} == {"ok"}
    specs = [item for item in found if item["check"] == "cdi"]
    assert {item["level"] for item in specs} == {"fail"}
    assert all(item["why"] and item["fix"] for item in specs)
    folder.mkdir()
    (folder / "nvidia.com-gpu.json").write_text("{}")
    assert service.fairlead("doctor").exit_code == 1  # a file is there, and defines no device


def test_faults_are_injected_and_profiles_listed(service: Service) -> None:
    assert service.fairlead("simulate", "fault", "xid", "79", "-g", "3").stdout == "xid injected\n"
    assert service.world.faults.asked == [("xid", 3, "79")]
    unknown = service.fairlead("simulate", "fault", "fire")
    assert (unknown.exit_code, "offered: lost, xid" in unknown.stderr) == (2, True)
    assert "h100x8" in fairlead("simulate", "profiles", "-o", "name").stdout.splitlines()
    assert {"xid", "lost", "recover"} <= set(fairlead("simulate", "faults", "-o", "name").stdout.splitlines())


def test_images_are_made_listed_and_removed(service: Service, tmp_path: Path) -> None:
    root = tmp_path / "root"
    root.mkdir()
    (root / "Containerfile").write_text('FROM demo\nCMD ["echo", "built"]\n')
    assert service.fairlead("image", "build", str(root), "made").stdout == "made\n"
    assert service.fairlead("run", "made").stdout == "built\n"
    assert "imported" in service.fairlead("image", "import", str(root), "imported", "--", "echo").stdout
    assert "imported" in service.fairlead("image", "ls").stdout
    service.fairlead("image", "rm", "imported")
    assert "imported" not in service.fairlead("image", "ls", "-o", "name").stdout


def test_an_image_of_several_names_has_a_row_for_each() -> None:
    one = ImageView(id="da590b1f15de8d0909a9570560", names=("demo:latest", "demo:two"), size_bytes=1, created_at=None)
    bare = msgspec.structs.replace(one, names=())
    assert [item.names for item in image.rows((one, bare))] == [("demo:latest",), ("demo:two",), (one.id[:19],)]


def test_the_names_of_images_are_listed_one_a_line(service: Service) -> None:
    assert service.fairlead("tag", "demo", "other:two").exit_code == 0
    titled = [line.split()[0] for line in service.fairlead("images").stdout.splitlines()]
    assert service.fairlead("images", "-o", "name").stdout.splitlines() == titled[1:]


def test_no_service_is_said_with_the_next_step(tmp_path: Path) -> None:
    result = fairlead("ps", env={"FAIRLEAD_API_SOCKET": str(tmp_path / "none.sock")})
    assert result.exit_code == 6
    assert "does not exist" in result.stderr
    assert "fairlead up" in result.stderr


def test_an_address_of_another_kind_is_refused() -> None:
    result = fairlead("--url", "ftp://host", "ps")
    assert (result.exit_code, "ftp://host" in result.stderr) == (2, True)


def test_settings_say_where_each_value_comes_from(tmp_path: Path) -> None:
    file = tmp_path / "config.toml"
    file.write_text('[node]\nname = "from-file"\n')
    env = {"FAIRLEAD_LOG_LEVEL": "debug", "FAIRLEAD_CONFIG": str(file)}
    found = {item["key"]: item for item in json.loads(fairlead("settings", "-o", "json", env=env).stdout)}
    assert (found["node.name"]["value"], found["node.name"]["source"]) == ("from-file", "file")
    assert (found["log.level"]["value"], found["log.level"]["source"]) == ("debug", "environment")
    assert found["api.socket"]["source"] == "default"
    assert set(found) == {row.key for row in settings.rows()}
    wrong = fairlead("settings", env={"FAIRLEAD_LOG_LEVL": "debug"})
    assert (wrong.exit_code, "FAIRLEAD_LOG_LEVEL" in wrong.stderr) == (2, True)


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_every_shell_gets_its_script(shell: str) -> None:
    result = fairlead("completion", shell)
    assert result.exit_code == 0
    assert "_FAIRLEAD_COMPLETE" in result.stdout


def test_completion_offers_verbs_and_containers(service: Service) -> None:
    service.fairlead("run", "-d", "--name", "train", "demo")
    group = main.root
    context = group.make_context("fairlead", [], obj=service.env, resilient_parsing=True)
    verbs = [item.value for item in group.shell_complete(context, "st")]
    assert sorted(verbs) == ["start", "state", "stats", "status", "stop"]
    assert "kubelet" not in [item.value for item in group.shell_complete(context, "")]
    context.obj = invocation.Invocation(env=service.env)
    logs = group.get_command(context, "logs")
    assert logs is not None
    inner = click.Context(logs, parent=context)
    offered = logs.params[0].shell_complete(inner, "tr")
    assert [item.value for item in offered] == ["train"]


def test_the_tables_help_is_each_verbs_own() -> None:
    context = click.Context(main.root)
    for name, verb in lazy.VERBS.items():
        command = main.root.get_command(context, name)
        assert command is not None
        assert (command.help or "").startswith(verb.help.rstrip(".")), name


def test_help_names_every_verb_and_imports_none() -> None:
    code = (
        "import sys; from fairlead.cli import main; code = main.invoke(['--help'], env={});"
        "heavy = {'httpx', 'msgspec', 'litestar', 'grpc', 'rich', 'yaml', 'structlog', 'asyncio'} & set(sys.modules);"
        "sys.exit(f'imported: {heavy}' if heavy else code)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr
    assert all(name in result.stdout for name, verb in lazy.VERBS.items() if not verb.is_hidden)


def test_verbs_that_ask_the_service_load_no_framework() -> None:
    code = (
        "import sys; from fairlead.cli import verbs; from fairlead.cli.core import lazygroup;"
        "asking = {'Run containers', 'Find out why', 'Images, volumes, secrets', 'GPUs'};"
        "own = {'doctor', 'mig', 'lease'};"
        "rows = [row.target for name, row in verbs.VERBS.items() if row.section in asking and name not in own];"
        "commands = [lazygroup.load(target) for target in [*rows, 'admin.quota:group']];"
        "heavy = {'asyncio', 'grpc', 'httpx', 'litestar', 'pygments', 'rich', 'structlog', 'websockets', 'yaml'};"
        "sys.exit(f'imported: {heavy & set(sys.modules)}' if heavy & set(sys.modules) or len(commands) < 15 else 0)"
    )
    result = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert result.returncode == 0, result.stderr


def test_a_bug_is_shown_whole_and_has_an_exit_code_of_its_own(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(lazy.VERBS, "ps", lazygroup.Verb("Containers", "output:FORMS", "no command"))
    result = fairlead("ps")
    assert result.exit_code == 70
    assert "this is a bug in fairlead" in result.stderr
