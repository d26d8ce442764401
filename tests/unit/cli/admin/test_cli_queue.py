"""`fairlead queue` against a service: made, shown, changed, refused in words, removed."""

from __future__ import annotations

import json

from tests.unit.cli.conftest import Service


def test_a_queue_is_made_shown_changed_and_removed(service: Service) -> None:
    made = service.fairlead("queue", "create", "team", "--deserved", "4", "--limit", "6", "-n", "red")
    assert made.exit_code == 0, made.stderr
    changed = service.fairlead("queue", "set", "team", "--weight", "3", "--limit", "memory=64Gi", "-o", "json")
    (item,) = json.loads(changed.stdout)["items"] if changed.stdout.startswith("{") else json.loads(changed.stdout)
    assert item["spec"]["weight"] == 3
    assert item["spec"]["limit"] == {"memory": "64Gi"}
    assert item["spec"]["deserved"] == {"nvidia.com/gpu": "4"}
    assert service.fairlead("queue", "ls", "-o", "name").stdout == "team\n"
    assert service.fairlead("queue", "rm", "team").exit_code == 0
    assert service.fairlead("queue", "ls", "-o", "name").stdout == ""


def test_what_cannot_be_meant_is_refused_with_the_next_step(service: Service) -> None:
    assert service.fairlead("queue", "create", "team").exit_code == 0
    again = service.fairlead("queue", "create", "team")
    assert (again.exit_code, 'queue "team" is there already' in again.stderr) == (4, True)
    lost = service.fairlead("queue", "set", "nosuch", "--weight", "1")
    assert (lost.exit_code, 'there is no queue "nosuch"' in lost.stderr) == (2, True)
    parent = service.fairlead("queue", "create", "below", "--parent", "nosuch")
    assert (parent.exit_code, 'its parent "nosuch" is not there' in parent.stderr) == (2, True)
    amount = service.fairlead("queue", "create", "bad", "--limit", "many")
    assert (amount.exit_code, "limit of nvidia.com/gpu" in amount.stderr) == (2, True)
    typo = service.fairlead("queue", "create", "bad", "--limit", "gpus=2")
    assert (typo.exit_code, '"gpus" is not a resource that is shared' in typo.stderr) == (2, True)


def test_a_queue_with_others_below_it_stays(service: Service) -> None:
    assert service.fairlead("queue", "create", "top").exit_code == 0
    assert service.fairlead("queue", "create", "below", "--parent", "top").exit_code == 0
    refused = service.fairlead("queue", "rm", "top")
    assert (refused.exit_code, "has queues below it: below" in refused.stderr) == (4, True)


def test_replicas_carry_group_and_queue_and_their_number(service: Service) -> None:
    assert service.fairlead("queue", "create", "team").exit_code == 0
    done = service.fairlead("run", "-d", "--name", "train", "--replicas", "3", "--gang", "--queue", "team", "demo")
    assert done.stdout.split() == ["train-0", "train-1", "train-2"]
    (shown,) = json.loads(service.fairlead("inspect", "train-1").stdout)
    assert "kueue.x-k8s.io/pod-group-name" in json.dumps(shown)
    alone = service.fairlead("run", "--gang", "demo")
    assert (alone.exit_code, "--gang and --min-available are for --replicas" in alone.stderr) == (2, True)


def test_an_array_gives_each_its_index_and_is_meant_by_its_name(service: Service) -> None:
    made = service.fairlead("run", "-d", "--name", "arr", "--replicas", "11", "demo", "env")
    names = [f"arr-{number}" for number in range(11)]
    assert made.stdout.split() == names
    waited = service.fairlead("wait", "arr")
    assert (waited.stdout.splitlines(), waited.exit_code) == ([f"{name} succeeded" for name in names], 0)
    said = set(service.fairlead("logs", "arr").stdout.splitlines())
    assert {f"{name:<6} | JOB_COMPLETION_INDEX={number}" for number, name in enumerate(names)} <= said
    assert {f"{name:<6} | FAIRLEAD_REPLICAS=11" for name in names} <= said
    assert "JOB_COMPLETION_INDEX=3\n" in service.fairlead("logs", "arr-3").stdout
    assert [one["name"] for one in json.loads(service.fairlead("inspect", "arr").stdout)] == names
    one_alone = service.fairlead("explain", "arr")
    assert (one_alone.exit_code, "arr-0 to arr-10" in one_alone.stderr) == (2, True)
    assert service.fairlead("rm", "arr").stdout.split() == names
    assert service.fairlead("ps", "-a", "-o", "name").stdout == ""


def test_wait_takes_several_and_ends_with_the_first_code_that_is_not_0(service: Service) -> None:
    for name, code in (("good", 0), ("bad", 3), ("worse", 4)):
        service.fairlead("run", "-d", "--name", name, "demo", "sh", "-c", f"exit {code}")
    waited = service.fairlead("wait", "good", "bad", "worse")
    assert (waited.stdout, waited.exit_code) == ("good succeeded\nbad failed\nworse failed\n", 3)


def test_a_container_that_has_the_name_of_an_array_is_meant_by_it(service: Service) -> None:
    service.fairlead("run", "-d", "--name", "arr", "--replicas", "2", "demo", "true")
    service.fairlead("run", "-d", "--name", "arr", "demo", "true")
    assert service.fairlead("wait", "arr").stdout == "succeeded\n"
    assert service.fairlead("rm", "-f", "arr").stdout == "arr\n"


def test_the_index_that_is_given_by_hand_stays(service: Service) -> None:
    by_hand = ("-e", "JOB_COMPLETION_INDEX=7")
    service.fairlead("run", "-d", "--name", "arr", "--replicas", "1", *by_hand, "demo", "env")
    assert "JOB_COMPLETION_INDEX=7\n" in service.fairlead("logs", "-f", "arr").stdout
