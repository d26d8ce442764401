"""The DRA plugin's calls over real sockets: what one side says is what the other reads, in every version."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Iterator, Mapping
from pathlib import Path

import grpc.aio
import pytest

from fairlead import errors
from fairlead.wire.kubelet import deviceplugin, drahealth, draplugin, pluginregistration, podresources
from fairlead.wire.proto import drahealth_pb2, draplugin_pb2, podresources_pb2

CLAIM = draplugin.Claim(namespace="team", name="gpus", uid="u1")
SHARED = draplugin.Device(
    requests=("gpu",), pool="node-a", device="gpu-0", cdi_devices=("vendor.com/claim=u1-gpu-0",), share_id="s"
)


@pytest.fixture
def socket() -> Iterator[Path]:
    """A short path: a unix socket's has 107 bytes."""
    with tempfile.TemporaryDirectory(prefix="fl-") as name:
        yield Path(name) / "dra.sock"


@contextlib.asynccontextmanager
async def served(socket: Path, *handlers: grpc.GenericRpcHandler) -> AsyncIterator[grpc.aio.Channel]:
    server = grpc.aio.server()
    server.add_generic_rpc_handlers(handlers)
    server.add_insecure_port(deviceplugin.target(socket))
    await server.start()
    async with grpc.aio.insecure_channel(deviceplugin.target(socket), options=deviceplugin.CHANNEL_OPTIONS) as channel:
        try:
            yield channel
        finally:
            await server.stop(grace=None)


class Driver:
    """Answers with what it was made with, and keeps what it was asked."""

    def __init__(self, answer: draplugin.Prepared, *, problem: errors.FairleadError | None = None) -> None:
        self.answer, self.problem = answer, problem
        self.asked: list[draplugin.Claim] = []

    async def prepare(self, claims: tuple[draplugin.Claim, ...]) -> Mapping[str, draplugin.Prepared]:
        self.asked += claims
        if self.problem is not None:
            raise self.problem
        return {one.uid: self.answer for one in claims}

    async def unprepare(self, claims: tuple[draplugin.Claim, ...]) -> Mapping[str, str]:
        return {one.uid: self.answer.error for one in claims}

    async def watch(self) -> AsyncIterator[tuple[drahealth.DeviceHealth, ...]]:
        yield (drahealth.DeviceHealth(pool="p", device="d", health=drahealth.Health.HEALTHY, updated_at=9),)
        sick = drahealth.DeviceHealth(
            pool="p", device="d", health=drahealth.Health.UNHEALTHY, updated_at=10, timeout_s=20, message="XID 79"
        )
        yield (sick,)

    async def info(self) -> pluginregistration.Info:
        return pluginregistration.Info(
            type="DRAPlugin", name="gpu.example.com", endpoint="/p/dra.sock", versions=(draplugin.V1, drahealth.V1)
        )

    async def registered(self, problem: str) -> None:
        self.asked.append(draplugin.Claim(namespace="", name=problem, uid=""))


@pytest.mark.parametrize(("version", "share"), [(draplugin.V1, "s"), (draplugin.V1BETA1, None)])
async def test_prepared_devices_arrive_whole_and_the_share_in_v1_alone(
    socket: Path, version: str, share: str | None
) -> None:
    driver = Driver(draplugin.Prepared(devices=(SHARED,)))
    async with served(socket, *draplugin.handlers(driver)) as channel:
        answer = await draplugin.Stub(channel, version).prepare([CLAIM], timeout_s=10)
    (device,) = answer["u1"].devices
    assert (device.requests, device.pool, device.device) == (("gpu",), "node-a", "gpu-0")
    assert (device.cdi_devices, device.share_id) == (("vendor.com/claim=u1-gpu-0",), share)
    assert driver.asked == [CLAIM]


@pytest.mark.parametrize("version", draplugin.SERVICES)
async def test_the_trouble_of_one_claim_is_its_answer_in_both_calls(socket: Path, version: str) -> None:
    driver = Driver(draplugin.Prepared(error="no such device"))
    async with served(socket, *draplugin.handlers(driver)) as channel:
        stub = draplugin.Stub(channel, version)
        assert (await stub.prepare([CLAIM], timeout_s=10))["u1"].error == "no such device"
        assert await stub.unprepare([CLAIM], timeout_s=10) == {"u1": "no such device"}


async def test_an_error_of_the_driver_comes_back_as_its_class_and_reason(socket: Path) -> None:
    driver = Driver(draplugin.Prepared(), problem=errors.Unavailable("the API is away", reason="StoreAway"))
    async with served(socket, *draplugin.handlers(driver)) as channel:
        with pytest.raises(errors.Unavailable, match="the API is away") as caught:
            await draplugin.Stub(channel).prepare([CLAIM], timeout_s=10)
    assert caught.value.reason == "StoreAway"


@pytest.mark.parametrize("version", drahealth.SERVICES)
async def test_health_is_reported_until_the_driver_ends_the_stream(socket: Path, version: str) -> None:
    driver = Driver(draplugin.Prepared())
    async with served(socket, *drahealth.handlers(driver)) as channel:
        reports = [report async for report in drahealth.Stub(channel, version).watch()]
    ((first,), (second,)) = reports
    assert (first.health, first.timeout_s, first.message) == (drahealth.Health.HEALTHY, 0, "")
    assert (second.health, second.timeout_s, second.message) == (drahealth.Health.UNHEALTHY, 20, "XID 79")


async def test_a_driver_without_a_health_stream_is_known_by_its_status(socket: Path) -> None:
    async with served(socket, *draplugin.handlers(Driver(draplugin.Prepared()))) as channel:
        with pytest.raises(errors.ProtocolError) as caught:
            await anext(drahealth.Stub(channel).watch())
    assert caught.value.context["status"] == "UNIMPLEMENTED"


async def test_a_plugin_says_what_it_is_and_hears_what_came_of_it(socket: Path) -> None:
    driver = Driver(draplugin.Prepared())
    async with served(socket, pluginregistration.handlers(driver)) as channel:
        stub = pluginregistration.Stub(channel)
        info = await stub.info(timeout_s=10)
        await stub.notify(timeout_s=10)
        await stub.notify("another plugin has the name", timeout_s=10)
    assert (info.type, info.name, info.endpoint) == ("DRAPlugin", "gpu.example.com", "/p/dra.sock")
    assert info.versions == ("v1.DRAPlugin", "v1.DRAResourceHealth")
    assert [one.name for one in driver.asked] == ["", "another plugin has the name"]


async def test_bytes_that_are_no_answer_are_refused(socket: Path) -> None:
    async def serve(request: bytes, _context: grpc.aio.ServicerContext[bytes, bytes]) -> bytes:
        await asyncio.sleep(0)
        return b"\xff" + request

    method: grpc.RpcMethodHandler[bytes, bytes] = grpc.unary_unary_rpc_method_handler(serve)
    handler = grpc.method_handlers_generic_handler(draplugin.SERVICES[draplugin.V1], {"NodePrepareResources": method})
    async with served(socket, handler) as channel:
        with pytest.raises(errors.ProtocolError) as caught:
            await draplugin.Stub(channel).prepare([CLAIM], timeout_s=10)
    assert caught.value.reason == "AnswerUnreadable"


def test_field_numbers_are_those_of_kubernetes() -> None:
    device = draplugin_pb2.Device(
        request_names=["r"], pool_name="p", device_name="d", cdi_device_ids=["c"], share_id="s"
    )
    assert device.SerializeToString() == b"\n\x01r\x12\x01p\x1a\x01d\x22\x01c*\x01s"
    claim = draplugin_pb2.Claim(namespace="n", uid="u", name="m")
    assert claim.SerializeToString() == b"\n\x01n\x12\x01u\x1a\x01m"
    health = drahealth_pb2.DeviceHealth(
        device=drahealth_pb2.DeviceIdentifier(pool_name="p", device_name="d"),
        health=drahealth_pb2.HEALTHY,
        last_updated_time=3,
        health_check_timeout_seconds=4,
        message="m",
    )
    assert health.SerializeToString() == b"\n\x06\n\x01p\x12\x01d\x10\x01\x18\x03 \x04*\x01m"


def test_devices_of_claims_are_read_as_written_and_fields_of_a_newer_kubelet_are_passed_over() -> None:
    device = podresources.ClaimDevice(
        driver="gpu.example.com", pool="p", device="d", cdi_devices=("v.com/c=1",), share_id="s"
    )
    item = podresources.DynamicResource(claim="gpus", namespace="team", devices=(device,))
    newer = podresources.emit_dynamic(item).SerializeToString() + b"\xfa\x3f\x01x"  # field 127
    container = podresources_pb2.ContainerResources(
        name="main", dynamic_resources=[podresources_pb2.DynamicResource.FromString(newer)]
    )
    assert podresources.parse_dynamic(container) == (item,)
