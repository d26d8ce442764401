"""Searches the objects that the caller may see, and leads to the page of the one that is named.

Each kind is asked of the API as its own page asks it, so that a search finds nothing that no page would show. What the
caller's role has no right to is not asked for: a refusal would be a line of the audit log.
"""

from __future__ import annotations

import asyncio
import urllib.parse
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Any, Final, NamedTuple

import litestar
import msgspec
from litestar import response

from fairlead import errors
from fairlead.serve.accounts.roles import Action
from fairlead.serve.backend.hardware import GPUListing
from fairlead.serve.console import visit as visits
from fairlead.serve.console.draw import claimfacts, find, gpumap
from fairlead.serve.console.visit import Visit, Visitor
from fairlead.serve.v1.accounts.view import AccountList
from fairlead.serve.v1.claims.view import ClaimList
from fairlead.serve.v1.nodes.view import NodeList
from fairlead.serve.v1.queues.view import QueueList
from fairlead.serve.v1.reservations.view import ReservationList
from fairlead.serve.v1.secrets.view import SecretList
from fairlead.serve.v1.tenancies.view import TenancyList
from fairlead.serve.v1.volumes.view import VolumeList

_Spaces = Mapping[str, str]
"""What people call namespaces."""


class _Container(msgspec.Struct, frozen=True):
    """What a search reads of a container; a thousand are read in a few milliseconds."""

    name: str
    namespace: str
    image: str = ""
    state: str = ""
    node: str = ""
    labels: dict[str, str] = {}


class _Containers(msgspec.Struct, frozen=True):
    items: tuple[_Container, ...]


class _Name(msgspec.Struct, frozen=True):
    name: str
    namespace: str = ""


class _Object(msgspec.Struct, frozen=True):
    kind: str
    metadata: _Name


class _Objects(msgspec.Struct, frozen=True):
    items: tuple[_Object, ...]


def _containers(found: _Containers, spaces: _Spaces) -> Iterator[find.Hit]:
    for one in found.items:
        yield find.Hit(
            name=one.name,
            address=gpumap.container_address(one.namespace, one.name),
            about=f"{one.state}, {one.image}" if one.image else one.state,
            space=_space(one.namespace, spaces),
            more=" ".join((one.node, *(f"{name}={value}" for name, value in one.labels.items()))),
        )


def _workloads(found: _Objects, spaces: _Spaces) -> Iterator[find.Hit]:
    """Yield workloads; the list of the containers that they made is the page that they have."""
    for one in found.items:
        about = one.metadata
        yield find.Hit(
            name=about.name,
            address=find.address("/console/containers", q=about.name, namespace=about.namespace),
            about=f"{one.kind}: its containers",
            space=_space(about.namespace, spaces),
        )


def _gpus(found: GPUListing, _spaces: _Spaces) -> Iterator[find.Hit]:
    for one in found.gpus:
        gpu = one.gpu
        yield find.Hit(
            name=f"GPU {gpu.index}",
            address=f"/console/gpus/{urllib.parse.quote(gpu.uuid, safe='')}",
            about=", ".join(filter(None, (gpu.name, one.node, one.health))),
            more=" ".join(each.profile for each in gpu.mig_devices),
            aliases=(gpu.uuid, gpu.pci_bus_id, *(each.uuid for each in gpu.mig_devices)),
        )


def _claims(found: ClaimList, spaces: _Spaces) -> Iterator[find.Hit]:
    for one in found.items:
        yield find.Hit(
            name=one.name,
            address=claimfacts.address(one.namespace, one.name),
            about=one.state,
            space=_space(one.namespace, spaces),
            more=" ".join((*one.devices, *one.used_by, *(each.device_class for each in one.requests))),
        )


def _reservations(found: ReservationList, spaces: _Spaces) -> Iterator[find.Hit]:
    for one in found.items:
        about = f"{one.state}, {one.gpus} GPU{'' if one.gpus == 1 else 's'}"
        space = _space(one.namespace, spaces)
        yield find.Hit(name=one.name, address=_row("reservations", one.namespace, one.name), about=about, space=space)


def _volumes(found: VolumeList, spaces: _Spaces) -> Iterator[find.Hit]:
    for one in found.items:
        space = _space(one.namespace, spaces)
        yield find.Hit(name=one.name, address=_row("volumes", one.namespace, one.name), about=one.state, space=space)


def _secrets(found: SecretList, spaces: _Spaces) -> Iterator[find.Hit]:
    for one in found.items:
        about = f"{len(one.sizes)} value{'' if len(one.sizes) == 1 else 's'}"
        space = _space(one.namespace, spaces)
        yield find.Hit(name=one.name, address=_row("secrets", one.namespace, one.name), about=about, space=space)


def _tenancies(found: TenancyList, _spaces: _Spaces) -> Iterator[find.Hit]:
    for one in found.items:
        address = f"/console/tenancies/{urllib.parse.quote(one.name, safe='')}"
        yield find.Hit(name=one.name, address=address, about=one.display_name or one.phase, more=one.namespace)


def _queues(found: QueueList, _spaces: _Spaces) -> Iterator[find.Hit]:
    for one in found.items:
        about = f"{one.status.running_pods} run, {one.status.pending_pods} wait"
        address = f"/console/queues/{urllib.parse.quote(one.name, safe='')}"
        yield find.Hit(name=one.name, address=address, about=about, more=one.spec.parent)


def _accounts(found: AccountList, _spaces: _Spaces) -> Iterator[find.Hit]:
    for one in found.items:
        roles = (f"{of.role} in {of.tenancy}" for of in one.memberships)
        about = "administrator" if one.is_administrator else ", ".join(roles) or "in no tenancy"
        yield find.Hit(name=one.name, address=_row("accounts", one.name), about=about)


def _nodes(found: NodeList, _spaces: _Spaces) -> Iterator[find.Hit]:
    for one in found.items:
        yield find.Hit(name=one.name, address="/console/machine", about=one.state)


def _space(namespace: str, spaces: _Spaces) -> str:
    return spaces.get(namespace, "" if namespace == "default" else namespace)


def _row(page: str, *names: str) -> str:
    """Return the address of a row on a page."""
    return f"/console/{page}#{urllib.parse.quote('-'.join((page, *names)), safe='')}"


class _Source(NamedTuple):
    """One kind of object: who may read it, where it is asked for, and what of it is found."""

    title: str
    action: Action
    path: str
    kind: type[Any]
    hits: Callable[[Any, _Spaces], Iterable[find.Hit]]


_SOURCES: Final = (
    _Source("Containers", Action.CONTAINER_READ, "/v1/containers", _Containers, _containers),
    *(
        _Source("Workloads", Action.CONTAINER_READ, f"/v1/objects/{kind}", _Objects, _workloads)
        for kind in ("deployments", "statefulsets", "jobs", "cronjobs")
    ),
    _Source("GPUs", Action.SERVICE_READ, "/v1/gpus", GPUListing, _gpus),
    _Source("Claims", Action.CONTAINER_READ, "/v1/claims", ClaimList, _claims),
    _Source("Reservations", Action.CONTAINER_READ, "/v1/reservations", ReservationList, _reservations),
    _Source("Volumes", Action.VOLUME_READ, "/v1/volumes", VolumeList, _volumes),
    _Source("Secrets", Action.SECRET_READ, "/v1/secrets", SecretList, _secrets),
    _Source("Tenancies", Action.TENANCY_READ, "/v1/tenancies", TenancyList, _tenancies),
    _Source("Queues", Action.MACHINE_READ, "/v1/queues", QueueList, _queues),
    _Source("Accounts", Action.ACCOUNT_WRITE, "/v1/users", AccountList, _accounts),
    _Source("Nodes", Action.MACHINE_READ, "/v1/nodes", NodeList, _nodes),
)


@litestar.get("/console/search", include_in_schema=False)
async def search(visit: Visitor) -> litestar.Response[bytes] | response.Redirect:
    """Search; a name that one object has leads straight to it."""
    query = visit.query.get("q", "").strip()
    groups = await _groups(visit, query) if find.words_of(query) else ()
    if (one := find.only(groups, query)) is not None:
        return response.Redirect(one.address, status_code=303)
    kinds = dict.fromkeys(source.title for source in _SOURCES if visit.may(source.action))
    return visit.page(
        "search",
        asked=query[: find.LONGEST],
        is_cut=len(query) > find.LONGEST,
        groups=[one for one in groups if one.hits],
        kinds=[title if title.isupper() or title == "GPUs" else title.lower() for title in kinds],
    )


ROUTES: Final = (search,)


async def _groups(visit: Visit, query: str) -> tuple[find.Group, ...]:
    sources = [one for one in _SOURCES if visit.may(one.action)]
    answers = await asyncio.gather(*(visits.tried(_asked(visit, one, query)) for one in sources))
    spaces = next((_names(found) for found in answers if isinstance(found, TenancyList)), {})
    hits: dict[str, list[find.Hit]] = {}
    for source, found in zip(sources, answers, strict=True):
        if not isinstance(found, errors.FairleadError):  # a kind that this service does not keep
            hits.setdefault(source.title, []).extend(source.hits(found, spaces))
    return tuple(find.group(title, found, query) for title, found in hits.items())


async def _asked(visit: Visit, source: _Source, query: str) -> Any:
    """Return what the API has of a kind; of containers, which are many, only those that match."""
    more = {"all": True, "match": " ".join(find.words_of(query))} if source.kind is _Containers else {}
    return await visit.api.get(source.kind, source.path, **more)


def _names(found: TenancyList) -> _Spaces:
    return {one.namespace: one.name for one in found.items}
