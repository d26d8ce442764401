"""Rights of components: the table is the chart's, what a list does not show is asked for, and what lacks is named."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import msgspec
import pytest

from fairlead import errors
from fairlead.cli.admin import manifests
from fairlead.store.kubernetes import rights
from fairlead.store.kubernetes.rights import Right
from fairlead.wire.kubernetes import api
from tests.unit.store import virtualtime


class Server:
    """An API server whose answers a test sets."""

    def __init__(self, *rules: api.Rule, granted: tuple[Right, ...] = ()) -> None:
        self.rules, self.granted = rules, granted
        self.asked: list[str] = []
        self.is_away = False

    async def list_rules(self, namespace: str = "default") -> tuple[api.Rule, ...]:
        if self.is_away:
            raise errors.Unavailable("no answer", reason="Refused")
        return self.rules

    async def may(
        self, verb: str, resource: str, *, group: str = "", part: str = "", namespace: str = "", user: str = ""
    ) -> bool:
        right = Right(verb=verb, resource=resource, group=group, part=part)
        self.asked.append(f"{user}{right.text}")
        return right in self.granted


def rule(verbs: str, resources: str, *, group: str = "", names: tuple[str, ...] = ()) -> api.Rule:
    return api.Rule(
        verbs=tuple(verbs.split()), api_groups=(group,), resources=tuple(resources.split()), resource_names=names
    )


ALL = api.Rule(verbs=("*",), api_groups=("*",), resources=("*",))


@pytest.mark.parametrize(
    ("component", "table"),
    [("agent", (*rights.AGENT, *rights.LEASING)), ("scheduler", rights.SCHEDULER), ("controller", rights.CONTROLLER)],
)
def test_a_components_table_is_the_charts_role(component: str, table: tuple[Right, ...]) -> None:
    roles = [one for one in manifests.load("simulated") if one["kind"] == "ClusterRole"]
    (role,) = (one for one in roles if one["metadata"]["name"] == f"fairlead-{component}")
    found = {
        (verb, resource, group)
        for one in role["rules"]
        for verb in one["verbs"]
        for resource in one["resources"]
        for group in one["apiGroups"]
    }
    assert found == {(one.verb, one.full, one.group) for one in table}


@pytest.mark.parametrize(
    ("given", "verb", "resource", "group", "allows"),
    [
        (rule("get list", "pods"), "list", "pods", "", True),
        (rule("get list", "pods"), "watch", "pods", "", False),
        (rule("*", "pods"), "update", "pods", "", True),
        (rule("update", "pods"), "update", "pods/status", "", False),
        (rule("update", "*/status"), "update", "pods/status", "", True),
        (rule("get", "pods"), "get", "pods", "apps", False),
        (rule("get", "pods", names=("one",)), "get", "pods", "", False),
        (ALL, "update", "gpudevices/status", "fairlead.dev", True),
    ],
)
def test_a_rule_covers_what_it_says(given: api.Rule, verb: str, resource: str, group: str, *, allows: bool) -> None:
    assert given.allows(verb, resource, group) is allows


async def test_what_the_list_does_not_show_is_asked_for_before_it_is_called_lacking() -> None:
    webhook = (Right(verb="get", resource="events"),)
    server = Server(rule("get list watch patch", "nodes"), granted=webhook)
    needed = (*rights.AGENT[:2], *webhook, Right(verb="create", resource="events"))
    assert [one.text for one in await rights.find_lacking(server, needed)] == ["create events"]
    assert server.asked == ["get events", "create events"]
    assert len(await rights.find_lacking(server, needed, user="ann ")) == 3
    assert server.asked[2:] == ["ann get nodes", "ann list nodes", "ann get events", "ann create events"]


def test_what_is_lacking_is_named_until_it_is_granted_and_a_silent_server_takes_nothing_back() -> None:
    server = Server(*(rule(one.verb, one.full, group=one.group) for one in rights.AGENT[:-1]))
    watched = rights.Watched(server, rights.AGENT)

    async def run() -> None:
        async with asyncio.TaskGroup() as tasks:
            task = tasks.create_task(watched.run())
            assert watched.problem() == ""
            await asyncio.sleep(1)
            assert watched.problem() == "the service account may not update gpudevices/status"
            server.is_away = True
            await asyncio.sleep(60)
            assert watched.problem()
            server.is_away, server.rules = False, (ALL,)
            await asyncio.sleep(2 * rights.RECHECK_S)
            assert watched.problem() == ""
            task.cancel()

    virtualtime.run(run(), moment_s=0)


def test_questions_and_answers_are_those_of_the_api() -> None:
    asked: dict[str, Any] = json.loads(
        api.access_review("update", "pods", group="", part="status", namespace="", user="ann")
    )
    assert (asked["kind"], asked["spec"]["user"]) == ("SubjectAccessReview", "ann")
    assert asked["spec"]["resourceAttributes"] == {"verb": "update", "resource": "pods", "subresource": "status"}
    own = json.loads(api.access_review("get", "pods", group="", part="", namespace="x"))
    assert (own["kind"], "user" in own["spec"]) == ("SelfSubjectAccessReview", False)
    assert json.loads(api.rules_review("x"))["spec"] == {"namespace": "x"}
    rules = [{"verbs": ["get"], "apiGroups": [""], "resources": ["pods"]}]
    answer = msgspec.json.encode({"status": {"resourceRules": rules, "incomplete": True}})
    assert api.parse_rules(answer) == (rule("get", "pods"),)
    with pytest.raises(errors.ProtocolError):
        api.parse_rules(b"[]")
