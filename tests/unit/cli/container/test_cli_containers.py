"""The verbs over containers, against a live service on a real unix socket."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path

import msgspec
import pytest
import yaml

from fairlead.store import retry
from fairlead.wire.kubernetes import core
from tests.unit.cli.conftest import Service


def test_run_follows_the_output_and_exits_with_the_containers_code(service: Service) -> None:
    result = service.fairlead("run", "-g", "2", "--entrypoint", "sh", "demo", "--", "-c", "echo one; exit 3")
    assert (result.stdout, result.exit_code) == ("one\n", 3)


def test_run_of_the_images_own_command_succeeds(service: Service) -> None:
    result = service.fairlead("run", "demo")
    assert (result.stdout, result.exit_code) == ("hello\n", 0)


def test_run_passes_options_after_the_image_to_the_container(service: Service) -> None:
    result = service.fairlead("run", "-e", "A=1", "demo", "echo", "-g", "-o", "x")
    assert (result.stdout, result.exit_code) == ("-g -o x\n", 0)


def test_run_detached_prints_the_name_and_ps_lists_it(service: Service) -> None:
    name = service.fairlead("run", "-d", "-g", "1", "--name", "train", "demo", "sleep", "60").stdout.strip()
    assert name == "train"
    assert service.fairlead("wait", name, "--state", "started").exit_code == 0
    table = service.fairlead("ps").stdout.splitlines()
    assert table[0].split()[:3] == ["NAME", "STATE", "REASON"]
    assert table[1].split()[:4] == ["train", "running", "-", "1"]


def test_a_dry_run_says_what_would_become_of_it_and_runs_nothing(service: Service, tmp_path: Path) -> None:
    told = service.fairlead("run", "--dry-run", "-g", "2", "--name", "train", "demo")
    assert told.stdout.splitlines()[0] == "train would be accepted, asking for 2 x nvidia.com/gpu"
    assert "there is room" in told.stdout
    never = service.fairlead("run", "--dry-run", "-g", "9", "demo")
    assert (never.exit_code, "will never fit: 9 asked" in never.stdout) == (0, True), never.stdout
    manifest = tmp_path / "pod.yaml"
    manifest.write_text("apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec: {containers: [{name: a, image: demo}]}")
    assert (
        "a would be accepted, asking for no devices" in service.fairlead("run", "--dry-run", "-f", str(manifest)).stdout
    )
    assert service.fairlead("ps", "-a", "-o", "name").stdout == ""
    refused = service.fairlead("run", "--dry-run", "-g", "nvidia.com/gpu=0.5", "demo")
    assert (refused.exit_code, "is invalid" in refused.stderr) == (2, True)


def test_ps_speaks_every_form(service: Service) -> None:
    service.fairlead("run", "--name", "done", "demo")
    assert service.fairlead("ps", "-o", "name").stdout == ""
    assert service.fairlead("ps", "-a", "-o", "name").stdout == "done\n"
    assert json.loads(service.fairlead("ps", "-a", "-o", "json").stdout)[0]["name"] == "done"
    assert yaml.safe_load(service.fairlead("ps", "-a", "-o", "yaml").stdout)[0]["state"] == "succeeded"
    assert "DEVICES" in service.fairlead("ps", "-a", "-o", "wide").stdout


def test_refusals_come_with_the_rule_the_hint_and_the_tables_exit_code(service: Service) -> None:
    result = service.fairlead("run", "-g", "nvidia.com/gpu=0.5", "demo")
    assert result.exit_code == 2
    assert result.stderr.startswith('error: Pod "demo-" is invalid')
    missing = service.fairlead("logs", "nobody")
    assert missing.exit_code == 2
    assert missing.stderr.splitlines()[1].startswith("  hint: ")
    taken = [service.fairlead("run", "-d", "--name", "a", "demo") for _ in range(2)]
    assert [result.exit_code for result in taken] == [0, 4]


_COMMANDS = {
    "fairlead.dev/device-change": '{"id":"1","action":"attach","container":"main","resource":"r","device":"GPU-3"}',
    "fairlead.dev/stop": "1",
    "fairlead.dev/stop-grace": "0",
    "fairlead.dev/devices": '{"nvidia.com/gpu":["GPU-3"]}',
}


@pytest.mark.parametrize("name", sorted(_COMMANDS))
def test_annotations_that_once_were_commands_are_refused_at_the_door(service: Service, name: str) -> None:
    item = {"containers": [{"name": "main", "image": "demo"}]}
    about = {"name": "p", "annotations": {name: _COMMANDS[name]}}
    manifest = yaml.safe_dump({"apiVersion": "v1", "kind": "Pod", "metadata": about, "spec": item})
    refused = service.fairlead("run", "-f", "-", stdin=manifest)
    assert (refused.exit_code, f"metadata.annotations[{name}]" in refused.stderr) == (3, True), refused.stderr
    assert service.fairlead("ps", "-a", "-o", "name").stdout == ""


def test_annotations_that_once_were_commands_show_nowhere_and_do_nothing(service: Service) -> None:
    service.fairlead("run", "-d", "-g", "1", "--name", "train", "demo", "sleep", "60")
    service.fairlead("wait", "train", "--state", "started")

    async def forge() -> None:
        await retry.change(service.world.store, core.Pod, "train", _forged, namespace="default")

    asyncio.run_coroutine_threadsafe(forge(), service.loop).result(10)
    gpus = json.loads(service.fairlead("gpus", "-o", "json").stdout)["gpus"]
    assert [bool(gpu["holders"]) for gpu in gpus] == [True, False, False, False]
    assert json.loads(service.fairlead("explain", "train", "-o", "json").stdout)["state"] == "running"
    for verb in (("explain", "train"), ("explain", "train", "-o", "json"), ("trace", "train"), ("ps", "-o", "wide")):
        shown = service.fairlead(*verb)
        assert (shown.exit_code, "GPU-3" in shown.stdout, "device-change" in shown.stdout) == (0, False, False)


def _forged(pod: core.Pod) -> core.Pod:
    return msgspec.structs.replace(pod, metadata=msgspec.structs.replace(pod.metadata, annotations=_COMMANDS))


def test_an_image_that_is_nowhere_fails_with_its_reason(service: Service) -> None:
    result = service.fairlead("run", "--name", "a", "nowhere")
    assert result.exit_code == 125
    assert result.stderr.startswith("error: a did not start (ImageNotFound): ")
    assert "\n  hint: " in result.stderr


def test_an_image_that_is_not_there_is_not_removed_in_silence(service: Service) -> None:
    result = service.fairlead("rmi", "nosuch")
    assert (result.stdout, result.exit_code) == ("", 2)
    assert 'no image is called "nosuch"' in result.stderr


def test_run_of_a_manifest_follows_its_pod(service: Service, tmp_path: Path) -> None:
    file = tmp_path / "pod.yaml"
    file.write_text(
        "apiVersion: v1\nkind: Pod\nmetadata: {name: two-gpus}\nspec:\n  restartPolicy: Never\n  containers:\n"
        '  - {name: main, image: demo, command: ["echo", "from yaml"], resources: {limits: {nvidia.com/gpu: 2}}}\n'
    )
    result = service.fairlead("run", "-f", str(file))
    assert (result.stdout, result.exit_code) == ("from yaml\n", 0)
    piped = service.fairlead("run", "-d", "-f", "-", stdin=file.read_text().replace("two-gpus", "other"))
    assert piped.stdout == "other\n"


def test_run_removes_what_was_to_be_removed(service: Service) -> None:
    assert service.fairlead("run", "--rm", "--name", "a", "demo").exit_code == 0
    service.fairlead("wait", "a", "--state", "gone")
    assert service.fairlead("ps", "-a", "-o", "name").stdout == ""


def test_run_needs_an_image_or_a_file(service: Service) -> None:
    result = service.fairlead("run")
    assert result.exit_code == 2
    assert "IMAGE or --file" in result.stderr


def test_logs_are_read_followed_and_cut(service: Service) -> None:
    service.fairlead(
        "run", "-d", "--name", "a", "--entrypoint", "sh", "demo", "-c", "echo 1; echo 2; sleep 0.05; echo 3"
    )
    assert service.fairlead("logs", "-f", "a").stdout == "1\n2\n3\n"
    assert service.fairlead("logs", "--tail", "1", "a").stdout == "3\n"
    refused = service.fairlead("logs", "--tail", "9" * 5000, "a")
    assert (refused.exit_code, "is not a number of lines" in refused.stderr) == (2, True)
    assert service.fairlead("logs", "-t", "a").stdout.splitlines()[0].endswith("Z 1")


def test_following_what_never_starts_says_why(service: Service) -> None:
    service.fairlead("run", "-d", "--name", "a", "nowhere")
    result = service.fairlead("logs", "-f", "a")
    assert result.exit_code == 4
    assert "never started (ImageNotFound" in result.stderr


def test_stop_keeps_and_rm_removes(service: Service) -> None:
    service.fairlead("run", "-d", "--name", "a", "demo", "sleep", "60")
    service.fairlead("wait", "a", "--state", "started")
    assert service.fairlead("stop", "a").stdout == "a\n"
    assert service.fairlead("wait", "a").exit_code == 137
    assert json.loads(service.fairlead("ps", "-a", "-o", "json").stdout)[0]["state"] == "stopped"
    assert service.fairlead("rm", "a").stdout == "a\n"
    assert service.fairlead("ps", "-a", "-o", "name").stdout == ""


def test_wait_gives_up_in_time(service: Service) -> None:
    service.fairlead("run", "-d", "--name", "a", "demo", "sleep", "60")
    result = service.fairlead("wait", "a", "--timeout", "0.01")
    assert result.exit_code == 5
    assert "not ended" in result.stderr


def test_explain_says_why_nothing_fits(service: Service) -> None:
    service.fairlead("run", "-d", "--wait", "--name", "a", "-g", "9", "demo")
    service.fairlead("wait", "a", "--state", "started", "--timeout", "0.2")
    lines = service.fairlead("explain", "a").stdout.splitlines()
    assert lines[0] == "a is pending: will never fit: 9 asked, this machine has 4"
    assert lines[1].split() == ["one", "does", "not", "fit", "4", "free"]


@pytest.mark.parametrize("asked", [("-g", "9"), ("-d", "-g", "9")])
def test_what_never_fits_ends_at_once_with_the_reason(service: Service, asked: tuple[str, ...]) -> None:
    result = service.fairlead("run", "--name", "a", *asked, "demo")
    assert (result.stdout, result.exit_code) == ("", 1), result.stderr
    assert "a will never fit: " in result.stderr
    assert "run --wait" in result.stderr
    assert service.fairlead("ps", "-aq").stdout == ""


def test_what_never_fits_is_waited_for_where_that_is_asked(service: Service) -> None:
    result = service.fairlead("run", "-d", "--wait", "--name", "a", "-g", "9", "demo")
    assert (result.stdout, result.exit_code) == ("a\n", 0)
    assert service.fairlead("ps", "-aq").stdout != ""


def test_who_waits_is_listed_with_its_place_and_why(service: Service) -> None:
    service.fairlead("run", "-d", "--name", "big", "-g", "3", "demo", "sleep", "60")
    service.fairlead("wait", "big", "--state", "started")
    for name, priority in (("first", "0"), ("urgent", "9")):
        service.fairlead("run", "-d", "--name", name, "-g", "2", "--priority", priority, "demo")
    listed = {item["name"]: item for item in json.loads(service.fairlead("ps", "-o", "json").stdout)}
    words = "waiting for 2 GPUs: 1 of 4 is free; 3 held by big"
    assert listed["first"]["waiting"]["message"].startswith(words)
    assert {name: listed[name]["waiting"]["place"] for name in ("first", "urgent")} == {"urgent": 1, "first": 2}
    assert listed["big"]["waiting"] is None
    rows = service.fairlead("ps").stdout.splitlines()
    assert any(row.startswith("first") and "2nd in queue" in row for row in rows)


def test_a_priority_that_is_neither_a_class_nor_a_number_is_refused(service: Service) -> None:
    result = service.fairlead("run", "--priority", "2000000000", "demo")
    assert result.exit_code == 2
    assert 'priority "2000000000"' in result.stderr


def test_trace_shows_the_steps_and_the_first_lines(service: Service) -> None:
    service.fairlead("run", "--name", "a", "-g", "1", "demo")
    lines = service.fairlead("trace", "a").stdout.splitlines()
    assert lines[0] == "a · demo · 1 x nvidia.com/gpu · succeeded (0)"
    assert [line.split()[0] for line in lines if "kernel" in line] == ["├─"]
    assert any("isolation read back: not recorded" in line for line in lines)
    assert lines[-1].strip() == "hello"
    document = json.loads(service.fairlead("trace", "-o", "json", "a").stdout)
    assert document["entries"][2]["step"]["reason"] == "Accepted"


def test_exec_carries_output_input_and_exit_code(service: Service) -> None:
    service.fairlead("run", "-d", "--name", "a", "demo", "sleep", "60")
    service.fairlead("wait", "a", "--state", "started")
    result = service.fairlead("exec", "a", "--", "sh", "-c", "echo out; exit 4")
    assert (result.stdout, result.exit_code) == ("out\n", 4)
    assert service.fairlead("exec", "nobody", "sh").exit_code == 2


def test_events_of_one_container(service: Service) -> None:
    service.fairlead("run", "--name", "a", "demo")
    found = json.loads(service.fairlead("events", "pod/a", "-o", "json").stdout)
    assert {item["object"] for item in found} == {"pod/a"}
    assert "Accepted" in {item["reason"] for item in found}


def test_rm_spares_what_runs_unless_it_is_forced(service: Service) -> None:
    service.fairlead("run", "-d", "--name", "a", "demo", "sleep", "60")
    service.fairlead("run", "--name", "b", "demo")
    service.fairlead("wait", "a", "--state", "started")
    refused = service.fairlead("rm", "b", "a")
    assert refused.exit_code == 4
    assert "a is running; nothing was removed" in refused.stderr
    assert "fairlead rm -f b a" in refused.stderr
    assert service.fairlead("ps", "-aq").stdout == "a\nb\n"
    assert service.fairlead("rm", "-a").stdout == "b\n"
    assert service.fairlead("rm", "-f", "-t", "0", "a").stdout == "a\n"
    assert service.fairlead("rm").exit_code == 2


def test_ps_keeps_what_is_asked_for(service: Service) -> None:
    service.fairlead("run", "-d", "--name", "train", "demo", "sleep", "60")
    service.fairlead("run", "--name", "ended", "demo")
    service.fairlead("wait", "train", "--state", "started")
    assert service.fairlead("ps", "-q").stdout == "train\n"
    assert service.fairlead("ps", "-q", "ended").stdout == "ended\n"
    assert service.fairlead("ps", "-q", "--filter", "status=exited").stdout == "ended\n"
    assert service.fairlead("ps", "-aq", "--filter", "name=rai").stdout == "train\n"
    refused = service.fairlead("ps", "--filter", "size=1")
    assert refused.exit_code == 2
    assert "name, node, status" in refused.stderr


def test_all_gpus_are_those_of_the_node_with_the_most(service: Service) -> None:
    service.fairlead("run", "-d", "--name", "a", "-g", "all", "demo")
    assert json.loads(service.fairlead("inspect", "a").stdout)[0]["gpus"] == 4


@pytest.mark.parametrize("typed", ["0,1", "device=0,1", "GPU-1,GPU-2"])
def test_gpus_are_asked_for_by_number(service: Service, typed: str) -> None:
    refused = service.fairlead("run", "-g", typed, "demo")
    assert refused.exit_code == 2
    assert "by number, not by name" in refused.stderr
    assert "-g 2" in refused.stderr


def test_a_number_after_n_of_logs_is_a_number_of_lines(service: Service) -> None:
    service.fairlead("run", "-d", "--name", "a", "--entrypoint", "sh", "demo", "-c", "echo 1; echo 2")
    service.fairlead("wait", "a")
    assert service.fairlead("logs", "-n", "1", "a").stdout == "2\n"


def test_a_manifest_s_vain_fields_are_told(service: Service) -> None:
    text = "apiVersion: v1\nkind: Pod\nmetadata: {name: a}\nspec:\n  hostPID: true\n"
    text += "  restartPolicy: Never\n  containers: [{name: main, image: demo}]\n"
    result = service.fairlead("run", "-d", "-f", "-", stdin=text)
    assert result.stderr == "warning: spec.hostPID is not carried out on one machine\n"
