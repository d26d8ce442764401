"""The agent as the published article's DaemonSet runs a plugin: three mounts, no privilege, variables alone.

Such a container sees sysfs, the kubelet's plugin folder, the CDI folder and /dev/vfio. It has no PodResources socket
and no Node object to read, and its device cgroup lets it open no node of VFIO: so the ledger is off.
"""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import structlog.testing

from fairlead import errors, settings
from fairlead.kernel import vfionode
from fairlead.node.vfio import nodes
from fairlead.plan.vfio import slot
from fairlead.wire.kubernetes import core, meta
from tests.contract.test_agent_contract import NVIDIA, Home
from tests.contract.test_fabric_slots import compose
from tests.unit.silicon.vfio import pcitree

PUBLISHED = {
    "cdiVersion": "0.7.0",
    "kind": "nvidia.com/gpu",
    "containerEdits": {},
    "devices": [
        {
            "name": str(at),
            "containerEdits": {
                "deviceNodes": [{"path": f"/dev/vfio/{group}", "type": "c", "permissions": "rwm"}],
            },
        }
        for at, group in enumerate(sorted(int(address.split(":")[1], 16) for address in pcitree.HGX_MODULES))
    ],
}
"""The article's file, for the eight groups of this machine."""
VARIABLES = {
    "FAIRLEAD_NODE_VFIO": "bound",
    "FAIRLEAD_NODE_VFIO_NAMES": "index",
    "FAIRLEAD_LEASE_LEDGER": "off",
    "FAIRLEAD_NODE_ENGINE": "containerd://2.2.1",
}
"""What the manifest's `env` has; the others below only move a container's folders to where a test may write."""


class Forbidden:
    """An API server that grants nothing: the manifest's service account has no role."""

    async def _refuse(self, *_: object, **__: object) -> Any:
        raise errors.Denied("pods is forbidden: the service account has no role", reason="Forbidden")

    async def _refuse_watch(self, *_: object, **__: object) -> AsyncIterator[Any]:
        await self._refuse()
        yield

    get = list = create = update = update_status = apply = delete = patch = _refuse
    watch = _refuse_watch


class DaemonSet(Home):
    """A node with eight bound GPUs whose agent runs in such a container."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch, **more: str) -> None:
        super().__init__(root, 0)
        pcitree.build_hgx(root, driver="vfio-pci", regions=True)
        self.settings = settings.load(
            flags={},
            env={
                **VARIABLES,
                **more,
                "FAIRLEAD_STATE_FOLDER": str(root),
                "FAIRLEAD_STATE_RUN": str(root / "run"),
                "FAIRLEAD_NODE_CDI_FOLDER": str(root / "cdi"),
                "FAIRLEAD_NODE_KUBELET_FOLDER": str(root / "kubelet"),
                "FAIRLEAD_NODE_HOST_MOUNT": str(root),
                "FAIRLEAD_SILICON_ROOT": str(root),
                "FAIRLEAD_SILICON_RESCAN_S": "0.2",
            },
            file=None,
        )
        self.store = Forbidden()  # type: ignore[assignment]  # what is used of a store
        self.is_kubelet_foreign, self.has_list = True, False
        self.denied: list[str] = []

        def deny(gpu: Any) -> vfionode.Hold:
            self.denied.append(gpu.address)
            raise errors.Unavailable("the container's device cgroup refuses it", reason=vfionode.DENIED)

        monkeypatch.setattr(nodes, "take_hold", deny)

    def published(self) -> list[dict[str, Any]]:
        found = []
        for path in self.settings.node.cdi_folder.glob("*.json"):
            with contextlib.suppress(FileNotFoundError):  # removed since it was listed
                found.append(json.loads(path.read_text()))
        return found

    async def ask(self, count: int) -> tuple[str, ...]:
        limits = {NVIDIA: str(count)}
        main = core.Container(name="main", resources=core.ResourceRequirements(limits=limits))
        pod = core.Pod(
            metadata=meta.ObjectMeta(name="vm", namespace="team", uid="vm"), spec=core.PodSpec(containers=(main,))
        )

        async def forget(_: str, __: object) -> None:
            return

        return tuple(item for one in await self.devices.allocate(pod, forget) for item in one.device_ids)


@pytest.fixture
def folder() -> Iterator[Path]:
    with tempfile.TemporaryDirectory(prefix="fl-") as name:
        yield Path(name)


async def test_the_published_daemonset_with_our_image_offers_eight_gpus_and_writes_the_published_file(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = DaemonSet(folder, monkeypatch)
    with structlog.testing.capture_logs() as log:
        async with home.kubelet(), home.agent():
            await home.until_capacity(8, 8)
            (found,) = home.published()
            assert set(await home.ask(2)) < set("01234567")
    assert found.pop("cdiVersion") <= PUBLISHED["cdiVersion"], "the oldest that suffices, so that older engines read it"
    published = {name: value for name, value in PUBLISHED.items() if name not in {"cdiVersion", "containerEdits"}}
    assert found == json.loads(json.dumps(published).replace('"rwm"', '"rw"'))
    assert home.denied == [], "nothing asks for what such a container may not open"
    said = [one["error"] for one in log if one["event"] == "gpus are passed through without a ledger"]
    assert said == [slot.UNKEPT]


async def test_such_a_container_with_the_ledger_on_gives_no_gpu_away(
    folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    home = DaemonSet(folder, monkeypatch, FAIRLEAD_LEASE_LEDGER="on")
    home.has_list = True
    async with home.kubelet(), home.agent():
        await home.until_capacity(8, 0)
        assert set(home.denied) == set(pcitree.HGX_MODULES)
        assert home.published() == []


@pytest.mark.parametrize(
    ("name", "value"), [("FAIRLEAD_NODE_VFIO", "bind"), ("FAIRLEAD_NODE_VFIO", "label"), ("FAIRLEAD_NODE_FABRIC", "on")]
)
def test_what_needs_the_ledger_is_refused_without_it(
    folder: Path, monkeypatch: pytest.MonkeyPatch, name: str, value: str
) -> None:
    home = DaemonSet(folder, monkeypatch, **{name: value})
    with pytest.raises(errors.Invalid, match=f"{value}, and lease.ledger is off"):
        compose(home.settings)
