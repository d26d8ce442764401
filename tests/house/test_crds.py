"""The CustomResourceDefinitions say what the types say, and nothing that an API server would not take or would drop."""

from __future__ import annotations

import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from fairlead.wire.kubernetes import gpudevice, meta
from tests import gpus
from tools import generate_crds


@pytest.mark.parametrize("name", sorted(generate_crds.files()))
def test_a_definition_is_what_the_types_make_it(name: str) -> None:
    committed = (generate_crds.FOLDER / name).read_text()
    assert committed == generate_crds.files()[name], "run `python tools/generate_crds.py`"


def test_no_definition_is_written_by_hand() -> None:
    assert {path.name for path in generate_crds.FOLDER.iterdir()} == set(generate_crds.files())


def test_the_page_deletes_every_definition(root: Path) -> None:
    page = (root / "docs/how-to/kubernetes.md").read_text()
    command = re.search(r"`kubectl delete crd ([^`]+)`", page)
    assert command is not None
    names = {yaml.safe_load(text)["metadata"]["name"] for text in generate_crds.files().values()}
    assert set(command[1].split()) == names


def _nodes(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    yield schema
    for child in (*schema.get("properties", {}).values(), schema.get("items"), schema.get("additionalProperties")):
        if child is not None:
            yield from _nodes(child)


@pytest.mark.parametrize("kind", generate_crds.KINDS, ids=lambda kind: str(kind.type.KIND))
def test_a_schema_is_structural(kind: generate_crds.Kind) -> None:
    for node in _nodes(generate_crds.schema(kind.type)):
        assert "type" in node
        assert not node.keys() & {"$ref", "anyOf", "oneOf", "default", "title", "nullable"}


@pytest.mark.parametrize("kind", generate_crds.KINDS, ids=lambda kind: str(kind.type.KIND))
def test_every_field_says_what_it_is(kind: generate_crds.Kind) -> None:
    properties = generate_crds.schema(kind.type)["properties"]
    bare = [
        f"{part}.{name}"
        for part in ("spec", "status")
        for name, node in properties[part]["properties"].items()
        if "description" not in node
    ]
    assert bare == []


@pytest.mark.parametrize("kind", generate_crds.KINDS, ids=lambda kind: str(kind.type.KIND))
def test_columns_and_selectable_fields_lead_to_fields(kind: generate_crds.Kind) -> None:
    properties = generate_crds.schema(kind.type)["properties"]
    for path in (*(column.path for column in kind.columns), *kind.selectable):
        part, name, *_ = re.sub(r"\[[^]]*\]", "", path).strip(".").split(".")
        assert part == "metadata" or name in properties[part]["properties"], path


def test_an_object_as_we_write_it_has_no_field_that_its_definition_drops() -> None:
    spec = gpus.spec(
        "n",
        0,
        pci_bus_id="0000:01:00.0",
        numa_node=0,
        mig_mode="Disabled",
    )
    status = gpudevice.GPUDeviceStatus(
        health="Lost",
        conditions=(meta.Condition(type="Healthy", status="False", reason="Lost", observed_generation=1),),
        holders=(gpudevice.Holder(namespace="n", pod="p", container="c", pod_uid="u"),),
    )
    item = gpudevice.GPUDevice(metadata=meta.ObjectMeta(name="gpu-1"), spec=spec, status=status)
    written = msgspec.json.decode(meta.encode(item))
    (version,) = yaml.safe_load(generate_crds.files()["gpudevices.yaml"])["spec"]["versions"]
    assert list(_dropped(written, version["schema"]["openAPIV3Schema"], "")) == []


def _dropped(value: Any, schema: dict[str, Any], path: str) -> Iterator[str]:
    """Yield the paths that a structural schema does not know: an API server prunes them without a word."""
    if path == ".metadata":
        return
    if isinstance(value, list):
        for element in value:
            yield from _dropped(element, schema["items"], f"{path}[]")
    elif isinstance(value, dict):
        for name, child in value.items():
            known = schema.get("properties", {}).get(name)
            if known is None:
                yield f"{path}.{name}"
            else:
                yield from _dropped(child, known, f"{path}.{name}")
