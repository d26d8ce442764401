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
