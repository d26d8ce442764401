"""The API by keys over a cluster: an account is held to its tenancies before anything is asked of the API server."""

from __future__ import annotations

from collections.abc import AsyncIterator
from dataclasses import replace
from pathlib import Path

import pytest

from fairlead.plan.metering.price import Pricing
from fairlead.serve.accounts import port, stores
from fairlead.serve.accounts.roles import Role
from fairlead.serve.backend import cluster
from fairlead.serve.database import engine
from fairlead.serve.limits.gate import Policy
from fairlead.wire.kubernetes import core
from tests.unit.serve.backend.test_backend_cluster import Server
from tests.unit.serve.v1.accounts.test_api_accounts import OBJECTS, UNLIMITED, Lab
from tests.unit.serve.world import World


class ClusterLab(Lab):
    """The same people, where containers are pods of an API server."""

    def __init__(self, world: World, accounts: port.Accounts) -> None:
        super().__init__(world, accounts)
        self.server = Server()
        backend = cluster.backend(store=world.store, server=self.server, pods=self.server, pricing=Pricing())
        self.services = replace(world.services, backend=backend, accounts=accounts)
        self.app = self.guarded(Policy(key=UNLIMITED, address=UNLIMITED))


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[ClusterLab]:
    async with engine.opened(engine.url_of("", tmp_path)) as database:
        made = ClusterLab(world, stores.open_accounts(database))
        await made.tenancy("red")
        await made.tenancy("blue")
        await made.account("ann", role=Role.DEVELOPER)
        await made.account("ben", role=Role.VIEWER)
        await made.account("stranger", role=Role.OWNER, tenancy="blue")
        await made.account("root", is_root=True)
        yield made


async def test_a_developers_container_is_a_pod_of_their_tenancys_namespace(lab: ClusterLab) -> None:
    answer = await lab.run("ann", "train")
    assert answer.status_code == 201, answer.text
    pod = await lab.world.store.get(core.Pod, "train", lab.namespaces["red"])
    assert (pod.spec.containers[0].image, pod.spec.preemption_policy) == ("demo", "")
    refused = await lab.run("ben", "other")
    assert (refused.status_code, refused.json()["reason"]) == (403, "RoleForbids")


async def test_another_tenancys_pod_is_not_found_and_neither_evicted_nor_removed(lab: ClusterLab) -> None:
    await lab.run("ann", "train")
    # A restart is refused on a cluster, whatever its name is.
    for method, path in (one for one in OBJECTS if not one[1].endswith(":restart")):
        place = f"{'&' if '?' in path else '?'}namespace={lab.namespaces['red']}"
        answer = await lab.ask("stranger", method, path + place)
        assert answer.status_code == 404, (path, answer.text)
    assert (lab.server.evicted, lab.server.commands) == ([], [])
    assert await lab.world.store.get(core.Pod, "train", lab.namespaces["red"])
    assert (await lab.ask("stranger", "GET", "/v1/containers")).json()["items"] == []


@pytest.mark.parametrize("wanted", [{"namespace": "kube-system"}, {"tenancy": "red"}])
async def test_no_container_is_made_where_one_is_not_a_member(lab: ClusterLab, wanted: dict[str, str]) -> None:
    answer = await lab.run("stranger", "train", **wanted)
    assert answer.status_code == 404, answer.text
    assert (await lab.world.store.list(core.Pod)).items == ()


async def test_what_only_root_may_is_refused_before_the_server_is_asked(lab: ClusterLab) -> None:
    answer = await lab.run("ann", "train", binds=[{"host_path": "/etc", "container_path": "/host"}])
    assert (answer.status_code, answer.json()["reason"]) == (403, "UserPodForbidden"), answer.text
    assert (await lab.world.store.list(core.Pod)).items == ()


async def test_who_may_run_containers_may_remove_them(lab: ClusterLab) -> None:
    await lab.run("ann", "train")
    assert (await lab.ask("ann", "DELETE", "/v1/containers/train")).status_code < 300
    assert (await lab.ask("ben", "GET", "/v1/containers")).json()["items"] == []
