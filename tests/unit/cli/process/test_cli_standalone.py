"""What one machine makes before its controllers run."""

from __future__ import annotations

from pathlib import Path

import msgspec
import pytest

from fairlead import errors, settings
from fairlead.cli.process import standalone
from fairlead.model.gpu import Inventory
from fairlead.plan.dra import deviceclass
from fairlead.store.embedded.memory import MemoryStore
from fairlead.wire.kubernetes.resource.deviceclass import DeviceClass
from tests.unit.silicon.vfio import pcitree

_GPU = "gpu.nvidia.com"


async def _named(store: MemoryStore) -> dict[str, str | None]:
    """Return the extended resource of each class."""
    await standalone.ensure_classes(store, "nvidia.com/gpu")
    return {one.metadata.name: one.spec.extended_resource_name for one in (await store.list(DeviceClass)).items}


async def test_the_class_of_whole_gpus_stands_for_their_resource() -> None:
    store = MemoryStore()
    assert await _named(store) == {_GPU: "nvidia.com/gpu", "mig.nvidia.com": None, "vfio.gpu.nvidia.com": None}
    version = (await store.get(DeviceClass, _GPU)).metadata.resource_version
    await _named(store)
    assert (await store.get(DeviceClass, _GPU)).metadata.resource_version == version


async def test_a_class_that_an_earlier_release_made_stands_for_it_from_now_on() -> None:
    store = MemoryStore()
    for one in deviceclass.CLASSES:
        await store.create(one)
    assert (await _named(store))[_GPU] == "nvidia.com/gpu"


async def test_a_class_that_a_person_has_changed_stays() -> None:
    store = MemoryStore()
    gpu = deviceclass.CLASSES[0]
    await store.create(msgspec.structs.replace(gpu, spec=msgspec.structs.replace(gpu.spec, selectors=())))
    assert (await _named(store))[_GPU] is None


class Empty:
    """Silicon on which no driver answers."""

    async def scan(self) -> Inventory:
        return Inventory()


@pytest.mark.parametrize(
    ("driver", "vfio", "said"),
    [
        ("vfio-pci", "bound", None),
        ("nvidia", "bind", None),
        ("vfio-pci", "off", "8 are bound to VFIO"),
        ("nvidia", "off", "no GPU was found"),
    ],
)
async def test_a_machine_whose_gpus_are_for_virtual_machines_has_what_to_serve(
    tmp_path: Path, driver: str, vfio: str, said: str | None
) -> None:
    tree = pcitree.build_hgx(tmp_path, driver=driver)
    config = settings.load(
        flags={}, env={"FAIRLEAD_SILICON_ROOT": str(tree.root), "FAIRLEAD_NODE_VFIO": vfio}, file=None
    )
    if said is None:
        await standalone._refuse_nothing(config, Empty())  # type: ignore[arg-type]  # the rest of a silicon is not used
        return
    with pytest.raises(errors.Unavailable, match=said) as caught:
        await standalone._refuse_nothing(config, Empty())  # type: ignore[arg-type]  # as above
    assert ("--node-vfio bound" in str(caught.value.hint)) is (driver == "vfio-pci")
