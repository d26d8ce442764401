"""The DRA manager over real sockets: every step may be the last one, and no driver is believed."""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
from collections.abc import AsyncIterator, Callable, Iterator
from pathlib import Path

import msgspec
import pytest

from fairlead import errors, telemetry
from fairlead.node.kubelet.dra import claimrecord
from fairlead.store import retry
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.kubelet import draplugin
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.resource.resourceclaim import ResourceClaim
from tests.unit.node.kubelet.dra import claimworld
from tests.unit.node.kubelet.dra.claimworld import Node, claiming
from tests.unit.node.kubelet.dra.exampledriver import DRIVER, ExampleDriver, Prepared

_PREPARE = ("before-refer", "before-prepare", "after-prepare", "after-keep")
_UNPREPARE = ("before-let-go", "before-unprepare", "after-unprepare")


class KilledError(BaseException):
    """Ends what runs as a kill does: nothing catches it."""


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fl-") as name:  # a socket's path has 107 bytes
        yield Path(name)


@contextlib.asynccontextmanager
async def running(node: Node, *drivers: ExampleDriver, boot: str = "boot-1") -> AsyncIterator[Node]:
    """Run a node's part of the kubelet until the block ends; drivers are registered before it begins."""
    node.manager.load(boot)
    async with contextlib.AsyncExitStack() as stack, asyncio.TaskGroup() as tasks:
        task = tasks.create_task(node.watcher.run())
        for driver in drivers:
            await stack.enter_async_context(driver.serve(node.registry))
            assert await driver.until_told() == ""
        try:
            yield node
        finally:
            task.cancel()


@pytest.fixture
def node(folder: Path) -> Node:
    return Node(folder)


@pytest.fixture
def driver(node: Node) -> ExampleDriver:
    return ExampleDriver(node.store, node.folder / "cdi")


def dying(point: str) -> Callable[[str], None]:
    def crash(name: str) -> None:
        if name == f"dramanager.{point}":
            raise KilledError

    return crash


@pytest.mark.parametrize("point", _PREPARE)
async def test_a_kill_while_preparing_leaves_nothing_double_and_nothing_lost(
    node: Node, driver: ExampleDriver, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = claiming("cpus", "more")
    await claimworld.add_claim(node.store, "cpus", pod)
    await claimworld.add_claim(node.store, "more", pod, found=claimworld.results("cpu-1"))
    async with running(node, driver):
        with monkeypatch.context() as armed:
            armed.setattr(telemetry, "crash_point", dying(point))
            with pytest.raises(KilledError):
                await node.manager.prepare(pod)
    async with running(Node(node.folder, node.store), driver) as again:
        records = await again.manager.prepare(pod)
        assert [one.phase for one in records] == ["Prepared", "Prepared"]
        assert len(again.manager.cdi_devices(pod, pod.spec.containers[0])) == 2
        assert len(driver.prepared) == 2
        await again.manager.unprepare(pod.metadata.uid)
        assert not driver.prepared
        assert not again.manager.holders()
    assert [call for call, _ in driver.calls].count("prepare") <= 2


@pytest.mark.parametrize("point", _PREPARE)
async def test_a_pod_that_is_gone_after_a_kill_while_preparing_leaves_nothing_prepared(
    node: Node, driver: ExampleDriver, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    pod = claiming("cpus")
    await claimworld.add_claim(node.store, "cpus", pod)
    async with running(node, driver):
        with monkeypatch.context() as armed:
            armed.setattr(telemetry, "crash_point", dying(point))
            with pytest.raises(KilledError):
                await node.manager.prepare(pod)
    async with running(Node(node.folder, node.store), driver) as again:
        for uid in again.manager.holders():  # as the kubelet does with pods that it does not know
            await again.manager.unprepare(uid)
        assert (driver.prepared, again.manager.holders()) == ({}, frozenset())


@pytest.mark.parametrize("point", _UNPREPARE)
async def test_a_kill_while_unpreparing_is_carried_on_and_no_other_pod_gets_in_between(
    node: Node, driver: ExampleDriver, point: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    first, second = claiming("cpus", name="first"), claiming("cpus", name="second")
    await claimworld.add_claim(node.store, "cpus", first, second)
    async with running(node, driver):
        await node.manager.prepare(first)
        with monkeypatch.context() as armed:
            armed.setattr(telemetry, "crash_point", dying(point))
            with pytest.raises(KilledError):
                await node.manager.unprepare(first.metadata.uid)
    async with running(Node(node.folder, node.store), driver) as again:
        if point != "before-let-go":
            with pytest.raises(errors.Conflict, match="is being unprepared"):
                await again.manager.prepare(second)
        await again.manager.unprepare(first.metadata.uid)
        assert not driver.prepared
        await again.manager.prepare(second)
        assert len(driver.prepared) == 1


async def test_each_driver_gets_one_call_for_all_claims_of_a_pod(node: Node, driver: ExampleDriver) -> None:
    other = ExampleDriver(node.store, node.folder / "cdi", name="net.example.com")
    pod = claiming("cpus", "both")
    await claimworld.add_claim(node.store, "cpus", pod)
    found = [*claimworld.results("cpu-1"), *claimworld.results("eth-0", driver="net.example.com", request="net")]
    await claimworld.add_claim(node.store, "both", pod, found=found)
    async with running(node, driver, other):
        await node.manager.prepare(pod)
        await node.manager.prepare(pod)
    assert driver.calls == [("prepare", ("cpus", "both"))]
    assert other.calls == [("prepare", ("both",))]


async def test_no_driver_is_called_while_another_of_the_pod_is_not_registered(
    node: Node, driver: ExampleDriver
) -> None:
    pod = claiming("both")
    found = [*claimworld.results("cpu-1"), *claimworld.results("eth-0", driver="net.example.com")]
    await claimworld.add_claim(node.store, "both", pod, found=found)
    async with running(node, driver):
        with pytest.raises(errors.Unavailable, match=r"DRA driver net\.example\.com is not registered"):
            await node.manager.prepare(pod)
    assert not driver.calls
    assert not node.manager.holders()


async def test_what_one_driver_did_is_kept_while_the_other_refuses_and_its_answer_counts_once(
    node: Node, driver: ExampleDriver
) -> None:
    other = ExampleDriver(node.store, node.folder / "cdi", name="net.example.com")
    other.refuse = "no cable"
    pod = claiming("cpus", "both")
    await claimworld.add_claim(node.store, "cpus", pod)
    found = [*claimworld.results("cpu-1"), *claimworld.results("eth-0", driver="net.example.com")]
    await claimworld.add_claim(node.store, "both", pod, found=found)
    async with running(node, driver, other):
        with pytest.raises(errors.Unavailable, match=r"failed for ResourceClaim both: no cable"):
            await node.manager.prepare(pod)
        other.refuse = ""
        await node.manager.prepare(pod)
        assert len(node.manager.cdi_devices(pod, pod.spec.containers[0])) == 3
    assert [sorted(names) for _, names in driver.calls] == [["both", "cpus"], ["both"]]


def _answer(**fields: object) -> Callable[[Prepared], Prepared]:
    device = draplugin.Device(**{"requests": ("cpus",), "pool": "here", "device": "cpu-0", **fields})  # type: ignore[arg-type]  # what a test bends
    return lambda answer: {uid: draplugin.Prepared(devices=(device,)) for uid in answer}


def _many(answer: Prepared) -> Prepared:
    device = draplugin.Device(requests=("cpus",), pool="here", device="cpu-0")
    return {uid: draplugin.Prepared(devices=(device,) * 300) for uid in answer}


@pytest.mark.parametrize(
    ("bend", "why"),
    [
        (lambda _: {}, "skipped ResourceClaim cpus"),
        (lambda answer: {**answer, "someone-elses": draplugin.Prepared()}, "unknown claim UID someone-elses"),
        (lambda answer: {f"{uid}\x00": one for uid, one in answer.items()}, "unknown claim UID"),
        (_answer(cdi_devices=("a.com/b=c",) * 10_000), "10000 CDI names"),
        (_answer(cdi_devices=("a.com/b=c\x00",)), "not a qualified CDI name"),
        (_answer(cdi_devices=("--privileged",)), "not a qualified CDI name"),
        (_answer(cdi_devices=("a.com/b=../../etc/shadow",)), "not a qualified CDI name"),
        (_answer(device="x\x1b[2J"), "control characters"),
        (_answer(pool="p" * 600), "too long"),
        (_answer(requests=("r",) * 300), "too long"),
        (_many, "300 devices"),
        (lambda answer: {uid: draplugin.Prepared(error="\x1b[31m" + "x" * 5000) for uid in answer}, r"\\x1b\[31mxxx"),
    ],
    ids=lambda value: value if isinstance(value, str) else "",
)
async def test_an_answer_that_cannot_be_believed_prepares_nothing_and_the_next_good_one_does(
    node: Node, driver: ExampleDriver, bend: Callable[[Prepared], Prepared], why: str
) -> None:
    pod = claiming("cpus")
    await claimworld.add_claim(node.store, "cpus", pod)
    async with running(node, driver):
        driver.bend = bend
        with pytest.raises(errors.FairleadError, match=why) as caught:
            await node.manager.prepare(pod)
        assert len(caught.value.message) < 2100
        assert not node.manager.cdi_devices(pod, pod.spec.containers[0])
        driver.bend = lambda answer: answer
        await node.manager.prepare(pod)
        assert node.manager.is_prepared(pod)
        assert len(node.manager.cdi_devices(pod, pod.spec.containers[0])) == 1


async def test_a_driver_that_hangs_is_given_up_after_the_deadline_and_holds_no_other_pod(
    folder: Path,
) -> None:
    node = Node(folder, call_s=0.3)
    slow, quick = (
        ExampleDriver(node.store, folder / "cdi"),
        ExampleDriver(node.store, folder / "cdi", "net.example.com"),
    )
    slow.gate.clear()
    hung, other = claiming("cpus"), claiming("net", name="other")
    await claimworld.add_claim(node.store, "cpus", hung)
    await claimworld.add_claim(node.store, "net", other, found=claimworld.results("e", driver="net.example.com"))
    async with running(node, slow, quick):
        calls = (node.manager.prepare(hung), node.manager.prepare(other))
        given_up, served = await asyncio.gather(*calls, return_exceptions=True)
        assert isinstance(given_up, errors.Unavailable)
        assert given_up.reason == "DriverTimeout"
        assert "did not answer NodePrepareResources within 0.3 s" in given_up.message
        assert not isinstance(served, BaseException)
        slow.gate.set()
        await node.manager.prepare(hung)
        assert node.manager.is_prepared(hung)


async def test_a_claim_of_the_same_name_waits_until_the_older_one_is_unprepared(
    node: Node, driver: ExampleDriver
) -> None:
    first, second = claiming("cpus", name="first"), claiming("cpus", name="second")
    old = await claimworld.add_claim(node.store, "cpus", first)
    async with running(node, driver):
        await node.manager.prepare(first)
        await node.store.delete(ResourceClaim, "cpus", "default")
        new = await claimworld.add_claim(node.store, "cpus", second)
        assert new.metadata.uid != old.metadata.uid
        with pytest.raises(errors.Conflict, match="older ResourceClaim of the same name cpus"):
            await node.manager.prepare(second)
        await node.manager.unprepare(first.metadata.uid)
        await node.manager.prepare(second)
        assert list(driver.prepared) == [new.metadata.uid]


async def test_a_claim_that_was_given_other_devices_waits_for_those_of_before(
    node: Node, driver: ExampleDriver
) -> None:
    first, second = claiming("cpus", name="first"), claiming("cpus", name="second")
    await claimworld.add_claim(node.store, "cpus", first)

    def moved(claim: ResourceClaim) -> ResourceClaim:
        users = [{"resource": "pods", "name": "second", "uid": second.metadata.uid}]
        allocation = {"devices": {"results": claimworld.results("cpu-1")}}
        status = msgspec.convert({"allocation": allocation, "reservedFor": users}, type(claim.status))
        return msgspec.structs.replace(claim, status=status)

    async with running(node, driver):
        await node.manager.prepare(first)
        await retry.change_status(node.store, ResourceClaim, "cpus", moved, namespace="default")
        with pytest.raises(errors.Conflict, match="has other devices now"):
            await node.manager.prepare(second)
        await node.manager.unprepare(first.metadata.uid)
        await node.manager.prepare(second)
        (name,) = node.manager.cdi_devices(second, second.spec.containers[0])
        assert name.endswith("-cpu-1")


async def test_a_pod_that_never_got_as_far_unprepares_nothing_of_others(node: Node, driver: ExampleDriver) -> None:
    first, stranger = claiming("cpus", name="first"), claiming("cpus", name="stranger")
    await claimworld.add_claim(node.store, "cpus", first)
    async with running(node, driver):
        await node.manager.prepare(first)
        with pytest.raises(errors.Conflict, match="not reserved for it"):
            await node.manager.prepare(stranger)
        assert await node.manager.unprepare(stranger.metadata.uid) == ()
        assert len(driver.prepared) == 1


async def test_an_unprepare_that_is_refused_is_asked_for_again(node: Node, driver: ExampleDriver) -> None:
    pod = claiming("cpus")
    await claimworld.add_claim(node.store, "cpus", pod)
    async with running(node, driver):
        await node.manager.prepare(pod)
        driver.refuse = "still open"
        with pytest.raises(
            errors.Unavailable, match=r"NodeUnprepareResources failed for ResourceClaim cpus: still open"
        ):
            await node.manager.unprepare(pod.metadata.uid)
        assert node.manager.holders() == {pod.metadata.uid}
        driver.refuse = ""
        await node.manager.unprepare(pod.metadata.uid)
        assert not node.manager.holders()


@pytest.mark.parametrize(("skips", "calls"), [(["*"], []), (["NodePrepareResources"], ["unprepare"])])
async def test_calls_that_no_device_of_a_driver_needs_are_not_made(
    node: Node, driver: ExampleDriver, skips: list[str], calls: list[str]
) -> None:
    pod = claiming("cpus")
    found = claimworld.results("cpu-0", skipNodeOperations=skips)
    await claimworld.add_claim(node.store, "cpus", pod, found=found)
    async with running(node, driver):
        await node.manager.prepare(pod)
        assert node.manager.is_prepared(pod)
        await node.manager.unprepare(pod.metadata.uid)
    assert [call for call, _ in driver.calls] == calls


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"allocation": None}, "is not allocated"),
        ({"reservedFor": []}, "not reserved for it"),
    ],
)
async def test_a_claim_that_is_not_the_pods_is_refused(
    node: Node, driver: ExampleDriver, change: dict[str, object], why: str
) -> None:
    pod = claiming("cpus")
    claim = await claimworld.add_claim(node.store, "cpus", pod)
    status = msgspec.convert({**msgspec.to_builtins(claim.status), **change}, type(claim.status))
    await node.store.update_status(msgspec.structs.replace(claim, status=status))
    async with running(node, driver):
        with pytest.raises(errors.Conflict, match=why):
            await node.manager.prepare(pod)
    assert not driver.calls


async def test_a_claim_of_a_template_is_its_pods_alone_and_is_waited_for(node: Node, driver: ExampleDriver) -> None:
    pod = claiming(name="train")
    reference = core.PodResourceClaim(name="cpus", resource_claim_template_name="cpus")
    pod = msgspec.structs.replace(pod, spec=msgspec.structs.replace(pod.spec, resource_claims=(reference,)))
    made = core.PodResourceClaimStatus(name="cpus", resource_claim_name="train-cpus-x")
    named = msgspec.structs.replace(pod, status=core.PodStatus(resource_claim_statuses=(made,)))
    await claimworld.add_claim(node.store, "train-cpus-x", pod)
    async with running(node, driver):
        with pytest.raises(errors.Unavailable, match="is not made yet"):
            await node.manager.prepare(pod)
        with pytest.raises(errors.Conflict, match="was not made for this pod"):
            await node.manager.prepare(named)
    assert not driver.calls


async def test_after_a_reboot_a_claim_is_prepared_again_before_a_container_starts(
    node: Node, driver: ExampleDriver
) -> None:
    pod = claiming("cpus")
    await claimworld.add_claim(node.store, "cpus", pod)
    async with running(node, driver):
        await node.manager.prepare(pod)
    async with running(Node(node.folder, node.store), driver) as again:
        assert again.manager.is_prepared(pod)
    async with running(Node(node.folder, node.store), driver, boot="boot-2") as rebooted:
        assert not rebooted.manager.is_prepared(pod)
        assert not rebooted.manager.cdi_devices(pod, pod.spec.containers[0])
        await rebooted.manager.prepare(pod)
        assert rebooted.manager.is_prepared(pod)
    assert [call for call, _ in driver.calls] == ["prepare", "prepare"]


async def test_a_full_disk_prepares_nothing(node: Node, driver: ExampleDriver, monkeypatch: pytest.MonkeyPatch) -> None:
    pod = claiming("cpus")
    await claimworld.add_claim(node.store, "cpus", pod)

    def full(*_: object, **__: object) -> None:
        raise errors.Unavailable("no space", reason="StateWriteFailed")

    async with running(node, driver):
        with monkeypatch.context() as patched:
            patched.setattr("fairlead.files.write_atomic", full)
            with pytest.raises(errors.Unavailable, match="no space"):
                await node.manager.prepare(pod)
        assert not driver.calls
        assert not node.manager.holders()


async def test_a_checkpoint_of_a_newer_version_is_left_alone(node: Node) -> None:
    path = node.state / claimrecord.NAME
    path.write_text('{"version": 2, "checksum": "", "claims": []}')
    with pytest.raises(errors.Unavailable, match="has version 2"):
        node.manager.load("boot-1")
    assert path.read_text().startswith('{"version": 2')


async def test_a_damaged_checkpoint_is_rebuilt_from_what_the_store_says(folder: Path) -> None:
    node = Node(folder, MemoryStore())
    pod = claiming("cpus")
    await claimworld.add_claim(node.store, "cpus", pod)
    (node.state / claimrecord.NAME).write_bytes(b"\xff")
    assert not node.manager.load("boot-1")
    await node.manager.restore([pod, claiming("gone", name="other")])
    (record,) = node.manager.of_pod(pod.metadata.uid)
    assert (record.phase, [one.driver for one in record.drivers]) == ("Preparing", [DRIVER])
    assert not node.manager.is_prepared(pod)
