"""The agent's DRA driver over real sockets, as a kubelet finds and calls it, beside the device plugin."""

from __future__ import annotations

import asyncio
import contextlib
import dataclasses
import socket
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path

import grpc.aio
import pytest

from fairlead import errors, settings
from fairlead.node.dra import serving
from fairlead.node.lease import gate
from fairlead.wire.kubelet import deviceplugin as wire
from fairlead.wire.kubelet import drahealth, draplugin
from fairlead.wire.kubelet import pluginregistration as registration
from tests.contract.test_agent_contract import NVIDIA, PATIENCE_S, Home
from tests.unit.node.dra import claimnode
from tests.unit.node.dra.claimnode import DRIVER, ClaimStore


@pytest.fixture
def home(monkeypatch: pytest.MonkeyPatch) -> Iterator[ClaimHome]:
    monkeypatch.setattr(Home, "ledger", "on")
    with tempfile.TemporaryDirectory(prefix="fl-") as name:  # a unix socket's path has 107 bytes
        yield ClaimHome(Path(name), 4)


class ClaimHome(Home):
    """A machine whose GPUs claims get; the test is the kubelet's DRA manager."""

    def __init__(self, root: Path, count: int) -> None:
        super().__init__(root, count)
        self.claims = ClaimStore()
        self.store = self.claims
        self.root = self.settings.kubelet_folder.parent
        self.choose(door="claims")

    def choose(self, **changes: object) -> None:
        node = dataclasses.replace(self.settings.node, **changes)  # type: ignore[arg-type]
        self.settings = dataclasses.replace(self.settings, node=node)

    async def found(self) -> Path:
        """Return the registration socket as soon as it is there."""
        async with asyncio.timeout(PATIENCE_S):
            while not (sockets := self.sockets()):  # noqa: ASYNC110 (the file system)
                await asyncio.sleep(0.01)
        return sockets[0]

    def sockets(self) -> list[Path]:
        return [one for one in (self.root / registration.FOLDER).glob("*.sock") if not one.name.startswith(".")]

    @contextlib.asynccontextmanager
    async def registered(self) -> AsyncIterator[registration.Info]:
        async with grpc.aio.insecure_channel(wire.target(await self.found())) as channel:
            stub = registration.Stub(channel)
            info = await stub.info(timeout_s=5)
            await stub.notify(timeout_s=5)
            yield info

    @contextlib.asynccontextmanager
    async def driver(self, version: str = draplugin.V1) -> AsyncIterator[draplugin.Stub]:
        async with self.registered() as info, grpc.aio.insecure_channel(wire.target(Path(info.endpoint))) as channel:
            yield draplugin.Stub(channel, version)

    def write(self, name: str, *devices: str) -> draplugin.Claim:
        ref = self.claims.write(claimnode.claim(name, *(claimnode.result(one, pool="node-1") for one in devices)))
        return draplugin.Claim(namespace=ref.namespace, name=ref.name, uid=ref.uid)

    def files(self) -> set[str]:
        return {one.name for one in self.settings.node.cdi_folder.glob("k8s.gpu.nvidia.com-claim_*.json")}


async def test_a_kubelet_finds_the_driver_and_has_a_claim_prepared(home: ClaimHome) -> None:
    async with home.kubelet(), home.agent(), home.registered() as info:
        assert (info.type, info.name) == ("DRAPlugin", DRIVER)
        assert info.versions == (
            "v1.DRAPlugin",
            "v1beta1.DRAPlugin",
            "v1.DRAResourceHealth",
            "v1alpha1.DRAResourceHealth",
        )
        assert Path(info.endpoint).is_absolute()
        assert Path(info.endpoint).stat().st_mode & 0o777 == 0o600
        one = home.write("one", "gpu-2")
        for version in draplugin.SERVICES:
            async with home.driver(version) as stub:
                answer = (await stub.prepare([one], timeout_s=20))[one.uid]
                assert answer.error == ""
                assert [(got.requests, got.device, got.cdi_devices) for got in answer.devices] == [
                    (
                        ("gpus",),
                        "gpu-2",
                        (
                            "k8s.gpu.nvidia.com/claim=uid-of-one-gpu-2",
                            "k8s.gpu.nvidia.com/claim=uid-of-one-metadata-gpus",
                        ),
                    )
                ]
        assert home.files() == {"k8s.gpu.nvidia.com-claim_uid-of-one.json"}
        async with home.driver() as stub:
            assert await stub.unprepare([one], timeout_s=20) == {one.uid: ""}
        assert home.files() == set()
    assert home.sockets() == []


async def test_where_claims_get_the_gpus_the_device_plugin_offers_none(home: ClaimHome) -> None:
    async with home.kubelet(), home.agent() as report:
        await home.found()
        assert report.supply.value.resources == ()
        assert len(report.supply.value.doors.claimed) == 4


async def test_every_claim_of_a_call_is_answered_whatever_its_neighbours_are(home: ClaimHome) -> None:
    good, lost = home.write("good", "gpu-0"), home.write("lost", "gpu-77")
    odd = draplugin.Claim(namespace="team", name="../../x", uid="../../etc/passwd")
    gone = draplugin.Claim(namespace="team", name="gone", uid="uid-of-gone")
    nul = draplugin.Claim(namespace="team\0", name="n", uid="u")
    async with home.kubelet(), home.agent(), home.driver() as stub:
        answers = await stub.prepare([odd, good, lost, gone, nul], timeout_s=20)
        assert set(answers) == {one.uid for one in (odd, good, lost, gone, nul)}
        assert answers[good.uid].error == ""
        assert "is not on this node" in answers[lost.uid].error
        assert "not found" in answers[gone.uid].error
        assert "claim name '../../x' is none" in answers[odd.uid].error
        assert "claim namespace 'team\\x00' is none" in answers[nul.uid].error
        ended = await stub.unprepare([odd, good, lost, gone], timeout_s=20)
        assert {uid: bool(why) for uid, why in ended.items()} == {
            odd.uid: True,
            good.uid: False,
            lost.uid: False,
            gone.uid: False,
        }


async def test_a_gpu_has_one_door_and_the_file_says_which(
    home: ClaimHome, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(serving, "LEAVING_S", 0.1)
    monkeypatch.setattr(gate, "SLOW_S", 0.2)
    file = tmp_path / "config.yaml"
    file.write_text("version: v1\nfairlead: {claims: {devices: [0, 1]}}\n")
    home.settings = dataclasses.replace(home.settings, plugin=settings.PluginSettings(config_file=file))
    home.choose(door="plugin")
    async with home.kubelet(), home.agent() as report, home.driver() as stub:
        await home.until_capacity(2, 2)
        assert await home.start("pod", 2) == ("GPU-2", "GPU-3")
        refused, given = home.write("refused", "gpu-2"), home.write("given", "gpu-0")
        answers = await stub.prepare([refused, given], timeout_s=20)
        assert "is not on this node" in answers[refused.uid].error
        assert answers[given.uid].error == ""
        file.write_text("version: v1\nfairlead: {claims: {devices: all}}\n")
        async with asyncio.timeout(PATIENCE_S):
            while report.supply.value.doors.awaited != {"GPU-2", "GPU-3"}:
                await report.supply.wait(report.supply.version)
        # The pod's GPUs keep their door until they come back.
        assert report.supply.value.doors.claimed == {"GPU-0", "GPU-1"}
        await asyncio.sleep(1.5 * gate.NAMED_S)  # a pod that no list has named is not known to have ended
        await home.end("pod")
        async with asyncio.timeout(PATIENCE_S):
            while len(report.supply.value.doors.claimed) < 4:
                await report.supply.wait(report.supply.version)
        assert (await stub.prepare([refused], timeout_s=20))[refused.uid].error == ""
        # And back: a GPU that a claim has stays with claims until it is unprepared and no claim has it allocated.
        file.write_text("version: v1\n")
        await home.until_capacity(2, 2)
        assert report.supply.value.doors.leaving == {"GPU-0", "GPU-2"}
        await stub.unprepare([refused, given], timeout_s=20)
        await home.until_capacity(4, 4)
        assert NVIDIA in {ad.resource for ad in report.supply.value.resources}


async def test_health_is_told_at_once_and_of_every_device(home: ClaimHome) -> None:
    async with home.kubelet(), home.agent(), home.registered() as info:
        for version in drahealth.SERVICES:
            async with grpc.aio.insecure_channel(wire.target(Path(info.endpoint))) as channel:
                reports = drahealth.Stub(channel, version).watch()
                async with asyncio.timeout(PATIENCE_S), contextlib.aclosing(reports):
                    first = [await anext(reports) for _ in range(4)]
                    told = [one for report in first for one in report if one.health is drahealth.Health.HEALTHY]
                    assert {one.device for one in told} >= {"gpu-0", "gpu-3"}
                    assert {one.pool for one in told} == {"node-1"}
                    # One report a GPU: a reader that falls silent makes its own devices stale, and no others.
                    assert all(len({one.device.split("-")[1] for one in report}) == 1 for report in first)


async def test_a_socket_that_a_killed_agent_left_is_swept_and_a_living_one_stays(home: ClaimHome) -> None:
    registry = home.root / registration.FOLDER
    registry.mkdir(parents=True)
    left, living = registry / f"{DRIVER}-dead-reg.sock", registry / f"{DRIVER}-other-reg.sock"
    with socket.socket(socket.AF_UNIX) as dead, socket.socket(socket.AF_UNIX) as other:
        dead.bind(str(left))
        other.bind(str(living))
        other.listen()
        async with home.kubelet(), home.agent():
            async with asyncio.timeout(PATIENCE_S):
                while len(home.sockets()) != 2 or left in home.sockets():  # noqa: ASYNC110 (the file system)
                    await asyncio.sleep(0.01)
        assert home.sockets() == [living]


async def test_a_socket_that_somebody_removed_is_served_anew(home: ClaimHome) -> None:
    async with home.kubelet(), home.agent():
        (await home.found()).unlink()
        async with home.driver() as stub:
            one = home.write("one", "gpu-0")
            assert (await stub.prepare([one], timeout_s=20))[one.uid].error == ""


async def test_without_a_gpu_for_claims_no_driver_stands_beside_another(home: ClaimHome) -> None:
    home.choose(door="plugin")
    async with home.kubelet(), home.agent():
        await home.until_capacity(4, 4)
        await asyncio.sleep(0.3)
        assert home.sockets() == []


async def test_claims_without_an_api_server_are_refused_at_the_start(home: ClaimHome) -> None:
    home.has_store = False
    with pytest.raises(BaseExceptionGroup) as refused:
        async with home.agent():
            pass
    assert refused.group_contains(errors.Invalid, match=r"node\.door=claims")


async def test_claims_without_a_ledger_are_refused_at_the_start(home: ClaimHome) -> None:
    home.settings = dataclasses.replace(home.settings, lease=settings.LeaseSettings(ledger="off"))
    with pytest.raises(BaseExceptionGroup) as refused:
        async with home.agent():
            pass
    assert refused.group_contains(errors.Invalid, match=r"node\.door.*lease\.ledger")
