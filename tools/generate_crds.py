"""Write the CustomResourceDefinitions of our kinds from their Python types; nothing in the files is written by hand.

`python tools/generate_crds.py` rewrites `src/fairlead/chart/crds`; the house ring fails while a committed file differs
from what this makes. The schema comes from the struct's fields, descriptions from their docstrings, so that
`kubectl explain` says what the code says. A field without a default is required. None in a type means that the field
may be left out: our encoder never writes null.
Source: Kubernetes documentation, "Extend the Kubernetes API with CustomResourceDefinitions" (structural schemas,
selectable fields, additional printer columns).
"""

from __future__ import annotations

import ast
import inspect
import itertools
import textwrap
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import msgspec
import yaml

from fairlead.plan.tenancy import baseline
from fairlead.wire.fairlead import firmwarebaseline, tenancy
from fairlead.wire.kubernetes import gpudevice, gpulease, meta
from fairlead.wire.kubernetes.scheduling import queue

FOLDER = Path(__file__).parent.parent / "src" / "fairlead" / "chart" / "crds"
_MADE = "# Made by tools/generate_crds.py from {module}; edit the types, then run it.\n"


@dataclass(frozen=True, kw_only=True)
class Column:
    """One column of `kubectl get`."""

    name: str
    path: str
    type: str = "string"
    is_wide: bool = False
    """Shown by `-o wide` only."""


@dataclass(frozen=True, kw_only=True)
class Kind:
    """What a definition says beside the schema."""

    type: type[meta.Object]
    short_names: tuple[str, ...]
    columns: tuple[Column, ...]
    selectable: tuple[str, ...] = ()
    """Paths that field selectors may name."""
    is_spec_fixed: bool = False
    """Whether the server refuses every change of the spec."""
    rules: tuple[tuple[str, str], ...] = ()
    """What the whole object must meet: expressions, each with what is said where it does not hold."""


_TENANCY = (
    # The namespace's name is made of it: a DNS label, as `plan.tenancy.baseline.check` wants it.
    (
        f"size(self.metadata.name) <= {baseline.LONGEST} && "
        "self.metadata.name.matches('^[a-z0-9]([-a-z0-9]*[a-z0-9])?$')",
        f"the name must be a DNS label of at most {baseline.LONGEST} characters",
    ),
    (
        "!(self.metadata.name in ['default', 'system']) && !self.metadata.name.matches('^(kube|user|fairlead)-')",
        "the name is reserved",
    ),
)

KINDS = (
    Kind(
        type=gpudevice.GPUDevice,
        short_names=("gpu", "gpus"),
        selectable=(".spec.nodeName", ".status.health"),
        columns=(
            Column(name="Node", path=".spec.nodeName"),
            Column(name="Index", path=".spec.index", type="integer"),
            Column(name="Product", path=".spec.product"),
            Column(name="Memory", path=".spec.memory"),
            Column(name="Health", path=".status.health"),
            Column(name="Holder", path=".status.heldBy"),
            Column(name="Reason", path=".status.reason"),
            Column(name="Quarantine", path=".spec.quarantine", is_wide=True),
            Column(name="UUID", path=".spec.uuid", is_wide=True),
            Column(name="PCI", path=".spec.pciBusID", is_wide=True),
            Column(name="NUMA", path=".spec.numaNode", type="integer", is_wide=True),
            Column(name="MIG", path=".spec.migMode", is_wide=True),
            Column(name="Driver", path=".spec.driverVersion", is_wide=True),
            Column(name="Simulated", path=".spec.simulated", type="boolean", is_wide=True),
            Column(name="Age", path=".metadata.creationTimestamp", type="date"),
        ),
    ),
    Kind(
        type=gpulease.GPULease,
        short_names=("gl",),
        selectable=(".spec.nodeName", ".spec.gpu", ".status.state"),
        is_spec_fixed=True,
        columns=(
            Column(name="Node", path=".spec.nodeName"),
            Column(name="State", path=".status.state"),
            Column(name="Holder", path=".status.heldBy"),
            Column(name="Held", path=".spec.heldAt", type="date"),
            Column(name="Ended", path=".status.endedAt", type="date"),
            Column(name="Reason", path=".status.reason"),
            Column(name="GPU", path=".spec.gpu", is_wide=True),
            Column(name="Epoch", path=".spec.epoch", type="integer", is_wide=True),
            Column(name="Verified", path=".status.verifiedAt", type="date", is_wide=True),
            Column(name="Report", path=".status.report", is_wide=True),
        ),
    ),
    Kind(
        type=firmwarebaseline.FirmwareBaseline,
        short_names=("fwb",),
        selectable=(".spec.nodeName", ".status.state"),
        is_spec_fixed=True,
        columns=(
            Column(name="Node", path=".spec.nodeName"),
            Column(name="Board", path=".spec.board"),
            Column(name="State", path=".status.state"),
            Column(name="Approved-By", path=".status.approvedBy"),
            Column(name="Proposed-By", path=".status.proposedBy"),
            Column(name="Not-Approved", path=".status.unapprovedVersions"),
            Column(name="VBIOS", path=".status.vbios", is_wide=True),
            Column(name="InfoROM", path=".status.inforom", is_wide=True),
            Column(name="Lanes", path=".status.linkWidth", type="integer", is_wide=True),
            Column(name="Approved", path=".status.approvedAt", type="date", is_wide=True),
        ),
    ),
    Kind(
        type=tenancy.Tenancy,
        short_names=("ten",),
        selectable=(".status.phase", ".status.namespace"),
        rules=_TENANCY,
        columns=(
            Column(name="Phase", path=".status.phase"),
            Column(name="Namespace", path=".status.namespace"),
            Column(name="Isolated", path='.status.conditions[?(@.type=="NetworkIsolated")].status'),
            Column(name="Reason", path='.status.conditions[?(@.type=="Ready")].reason'),
            Column(name="Internet", path=".spec.network.internet", is_wide=True),
            Column(name="Enforced", path=".status.network.enforcedBy", is_wide=True),
            Column(name="Message", path='.status.conditions[?(@.type=="Ready")].message', is_wide=True),
            Column(name="Age", path=".metadata.creationTimestamp", type="date"),
        ),
    ),
    Kind(
        type=queue.Queue,
        short_names=(),
        selectable=(".spec.parent",),
        columns=(
            Column(name="Parent", path=".spec.parent"),
            Column(name="Weight", path=".spec.weight", type="integer"),
            Column(name="Running", path=".status.runningPods", type="integer"),
            Column(name="Pending", path=".status.pendingPods", type="integer"),
            Column(name="Age", path=".metadata.creationTimestamp", type="date"),
        ),
    ),
)


def files() -> dict[str, str]:
    """Return every file by its name."""
    return {f"{kind.type.PLURAL}.yaml": _file(kind) for kind in KINDS}


def _file(kind: Kind) -> str:
    text = yaml.safe_dump(definition(kind), sort_keys=False, width=120, allow_unicode=True)
    return _MADE.format(module=kind.type.__module__) + text


def definition(kind: Kind) -> dict[str, Any]:
    """Return one CustomResourceDefinition."""
    item = kind.type
    group, version = item.API_VERSION.split("/")
    names = {
        "plural": item.PLURAL,
        "singular": item.KIND.lower(),
        "kind": item.KIND,
        "listKind": f"{item.KIND}List",
        # The API server drops an empty list, and kubectl would report each apply as a change.
        **({"shortNames": list(kind.short_names)} if kind.short_names else {}),
        "categories": ["fairlead"],
    }
    served = {
        "name": version,
        "served": True,
        "storage": True,
        "subresources": {"status": {}},
        "additionalPrinterColumns": [_column(column) for column in kind.columns],
        "selectableFields": [{"jsonPath": path} for path in kind.selectable],
        "schema": {"openAPIV3Schema": schema(item, is_spec_fixed=kind.is_spec_fixed, rules=kind.rules)},
    }
    return {
        "apiVersion": "apiextensions.k8s.io/v1",
        "kind": "CustomResourceDefinition",
        "metadata": {"name": f"{item.PLURAL}.{group}"},
        "spec": {
            "group": group,
            "scope": "Namespaced" if item.NAMESPACED else "Cluster",
            "names": names,
            "versions": [served],
        },
    }


def _column(column: Column) -> dict[str, Any]:
    wide = {"priority": 1} if column.is_wide else {}
    return {"name": column.name, "type": column.type, "jsonPath": column.path, **wide}


def schema(
    item: type[meta.Object], *, is_spec_fixed: bool = False, rules: tuple[tuple[str, str], ...] = ()
) -> dict[str, Any]:
    """Return the structural schema of a whole object; the server itself knows what metadata is."""
    known = {"apiVersion": {"type": "string"}, "kind": {"type": "string"}, "metadata": {"type": "object"}}
    made = _struct(msgspec.inspect.type_info(item))
    if is_spec_fixed:
        rule = {"rule": "self == oldSelf", "message": f"the spec of a {item.KIND} never changes"}
        made["properties"]["spec"]["x-kubernetes-validations"] = [rule]
    checked = {"x-kubernetes-validations": [{"rule": rule, "message": text} for rule, text in rules]} if rules else {}
    return {
        **made,
        **checked,
        "properties": {**known, **{k: v for k, v in made["properties"].items() if k != "metadata"}},
    }


def _struct(info: Any) -> dict[str, Any]:
    texts = _docstrings(info.cls)
    required = [field.encode_name for field in info.fields if field.required]
    properties = {field.encode_name: _described(_schema(field.type), texts.get(field.name)) for field in info.fields}
    made = _described({"type": "object"}, inspect.getdoc(info.cls))
    return {**made, **({"required": required} if required else {}), "properties": properties}


def _described(made: dict[str, Any], text: str | None) -> dict[str, Any]:
    if not text:
        return made
    plain = " ".join(text.replace("`", "").split())
    return {"description": plain, **{name: value for name, value in made.items() if name != "description"}}


_SCALARS: Mapping[type, dict[str, Any]] = {
    msgspec.inspect.StrType: {"type": "string"},
    msgspec.inspect.BoolType: {"type": "boolean"},
    msgspec.inspect.IntType: {"type": "integer", "format": "int64"},
    msgspec.inspect.FloatType: {"type": "number"},
}


def _schema(info: Any) -> dict[str, Any]:
    if type(info) in _SCALARS:
        least = {} if getattr(info, "ge", None) is None else {"minimum": info.ge}
        return {**_SCALARS[type(info)], **least}
    match info:
        case msgspec.inspect.Metadata():
            return {**_schema(info.type), **(info.extra_json_schema or {})}
        case msgspec.inspect.UnionType():
            (one,) = (part for part in info.types if not isinstance(part, msgspec.inspect.NoneType))
            return _schema(one)
        case msgspec.inspect.VarTupleType() | msgspec.inspect.ListType():
            return {"type": "array", "items": _schema(info.item_type)}
        case msgspec.inspect.DictType():
            return {"type": "object", "additionalProperties": _schema(info.value_type)}
        case msgspec.inspect.StructType():
            return _struct(info)
    raise TypeError(f"no schema for {info}")


def _docstrings(struct: type) -> dict[str, str]:
    """Return the docstrings of a struct's fields, inherited ones too."""
    found: dict[str, str] = {}
    for one in reversed(struct.__mro__):
        if not issubclass(one, meta.Wire):
            continue
        tree = ast.parse(textwrap.dedent(inspect.getsource(one)))
        body = [statement for node in tree.body if isinstance(node, ast.ClassDef) for statement in node.body]
        for statement, after in itertools.pairwise(body):
            match statement, after:
                case ast.AnnAssign(target=ast.Name(id=name)), ast.Expr(value=ast.Constant(value=str(text))):
                    found[name] = text
    return found


if __name__ == "__main__":
    FOLDER.mkdir(parents=True, exist_ok=True)
    for file_name, content in files().items():
        (FOLDER / file_name).write_text(content)
        print(FOLDER / file_name)
