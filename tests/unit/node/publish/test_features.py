"""Labels by way of node feature discovery: the object and the file, and what stays on the Node itself."""

from __future__ import annotations

import asyncio
from pathlib import Path

import pytest

from fairlead import errors, settings
from fairlead.control.node import withdraw
from fairlead.node import storeparts
from fairlead.node.inventory import latest, nodeobject
from fairlead.node.mig import configurator
from fairlead.node.publish import features, objects
from fairlead.plan.gpu import label
from fairlead.store.embedded import memory
from fairlead.wire.kubernetes import core, meta
from fairlead.wire.kubernetes.node import nodefeature
from tests.unit.node.publish.test_publish import NODE, PRODUCT, snapshot


async def published(labelling: objects.Labelling, store: memory.MemoryStore) -> core.Node:
    """Publish two GPUs, and return the Node once it says how its MIG configuration is."""
    await store.create(core.Node(metadata=meta.ObjectMeta(name=NODE, labels={"mine": "1"})))
    mig = objects.MIGPublication(state=latest.Latest("success"))
    snapshots = latest.Latest(snapshot())
    known = nodeobject.NodeObject(NODE, store)
    publisher = objects.Publisher(known, store, snapshots=snapshots, mig=mig, labelling=labelling)
    async with asyncio.TaskGroup() as tasks, asyncio.timeout(10):
        running = [tasks.create_task(publisher.run()), tasks.create_task(known.run())]
        async for change in store.watch(core.Node):
            if configurator.STATE_LABEL in change.object.metadata.labels:
                break
        await asyncio.sleep(0.05)  # the other write may still be on its way
        for task in running:
            task.cancel()
    return await store.get(core.Node, NODE)


async def test_an_object_carries_the_labels_goes_with_its_node_and_is_taken_back() -> None:
    store = memory.MemoryStore()
    node = await published(objects.Labelling(features=features.FeatureObject(store, "gpu")), store)
    assert node.metadata.labels == {"mine": "1", configurator.STATE_LABEL: "success"}
    (found,) = (await store.list(nodefeature.NodeFeature)).items
    assert found.metadata.labels == {nodefeature.NODE_LABEL: NODE}
    assert found.metadata.owner_references[0].uid == node.metadata.uid
    assert (found.spec.labels[PRODUCT], found.spec.labels["nvidia.com/gpu.count"]) == ("Tesla-T4", "2")
    await withdraw.withdraw(store)
    assert not (await store.list(nodefeature.NodeFeature)).items


async def test_a_file_has_a_line_for_each_label(tmp_path: Path) -> None:
    path = tmp_path / "gfd"
    node = await published(objects.Labelling(features=features.FeatureFile(path)), memory.MemoryStore())
    assert PRODUCT not in node.metadata.labels
    lines = path.read_text().splitlines()
    assert "nvidia.com/gpu.product=Tesla-T4" in lines
    assert lines == sorted(lines)


async def test_a_folder_that_is_not_there_is_named(tmp_path: Path) -> None:
    with pytest.raises(errors.Unavailable, match="is not there"):
        await features.FeatureFile(tmp_path / "none" / "gfd").write({}, core.Node(metadata=meta.ObjectMeta(name=NODE)))


async def test_by_default_the_node_has_all_labels_with_aliases_and_a_timestamp() -> None:
    store = memory.MemoryStore()
    labels = (await published(storeparts.labelling(settings.Settings(), store), store)).metadata.labels
    assert labels["gpu-count"] == "2"
    assert labels["gpu-memory"] == labels["nvidia.com/gpu.memory"]
    assert int(labels["nvidia.com/gfd.timestamp"]) > 1_700_000_000


def test_the_settings_choose() -> None:
    chosen = settings.load(
        flags={"labels.way": "file", "labels.no_timestamp": "true", "labels.aliases": "false"}, env={}, file=None
    )
    found = storeparts.labelling(chosen, memory.MemoryStore())
    assert isinstance(found.features, features.FeatureFile)
    assert (found.started, found.has_aliases) == (None, False)


def test_a_node_without_nvidias_gpus_gets_neither() -> None:
    assert label.plan_extras({"fairlead.dev/simulated": "true"}, started=1, has_aliases=True) == {}
