"""Narrows a machine to the tenancies that an account is a member of.

As with `own`, handlers get these values instead of the machine's. What belongs to a tenancy that the account is not a
member of does not exist for it: it is answered with 404, never with 403. Where it is a member and its role does not
allow what is asked, it hears that. `default`, and no namespace at all, mean the one tenancy where there is only one.
"""

from __future__ import annotations

from collections.abc import AsyncIterator, Callable, Mapping
from dataclasses import dataclass, replace
from typing import NoReturn, TypeVar

import msgspec

from fairlead import errors
from fairlead.model.gpu import GPU, GPUHealth
from fairlead.plan.tenancy import baseline
from fairlead.serve.backend import hardware, port
from fairlead.serve.backend.tenancy import own
from fairlead.serve.closing import closing
from fairlead.store.port import EVERYTHING, Change, Listing, Selector, Store
from fairlead.wire.fairlead.tenancy import Tenancy
from fairlead.wire.kubernetes import core
from fairlead.wire.kubernetes.meta import Object
from fairlead.wire.text import timestamp

T = TypeVar("T", bound=Object)


@dataclass(frozen=True, slots=True, kw_only=True)
class Member:
    """A `place.Part`: the tenancies of an account, as one request may use them."""

    allowed: Mapping[str, Tenancy]
    """By namespace: those in which its role allows what is asked."""
    forbidden: Mapping[str, errors.Denied]
    """By namespace: the others that it is a member of, and the error that it gets there."""
    noted: Callable[[str], None] = lambda _namespace: None
    """Called where the request has its effect."""
    mounts: tuple[str, ...] = ()
    """See `place.Part.mounts`."""
    account: str = ""
    """See `place.Part.account`."""

    @property
    def most_devices(self) -> int:
        """See `place.Part.most_devices`: a tenancy's quota says it."""
        return 0

    @property
    def makes_namespace(self) -> bool:
        """See `place.Part.makes_namespace`: the tenancy's controller does."""
        return False

    @property
    def names_others(self) -> bool:
        """See `place.Part.names_others`: which tenancies there are is for administrators to know."""
        return False

    @property
    def sees_any(self) -> bool:
        """See `place.Part.sees_any`."""
        return bool(self.allowed or self.forbidden)

    def sees(self, namespace: str) -> bool:
        """See `place.Part.sees`."""
        return namespace in self.allowed or namespace in self.forbidden

    def sees_since(self, namespace: str) -> float | None:
        """See `place.Part.sees_since`: an earlier tenancy's namespace may have had the name."""
        item = self.allowed.get(namespace)
        if item is None:
            return None
        return timestamp.parse(item.metadata.creation_timestamp or "")

    def place(self, namespace: str | None) -> str:
        """See `place.Part.place`. Raises: NotFound; Denied; Invalid (`NamespaceAmbiguous`): there are several."""
        if namespace is None or namespace in own.ALIASES:
            return self._only()
        if self.sees(namespace):
            self.noted(namespace)
        if denied := self.forbidden.get(namespace):
            raise denied
        if namespace not in self.allowed:
            shown = namespace.replace("\0", "\\0")
            hint = "`fairlead tenancy list` shows those that you are a member of"
            raise errors.NotFound(f'there is no namespace "{shown}"', reason="NamespaceUnknown", hint=hint)
        return namespace

    def _only(self) -> str:
        if len(self.allowed) == 1:
            (only,) = self.allowed
            self.noted(only)
            return only
        if self.allowed:
            names = ", ".join(sorted(item.metadata.name for item in self.allowed.values()))
            message = f"several tenancies may be meant: {names}"
            raise errors.Invalid(message, reason="NamespaceAmbiguous", hint="name one: -T NAME")
        if self.forbidden:
            raise next(iter(self.forbidden.values()))
        message, hint = "you are a member of no tenancy", "its owner adds you: `fairlead user grant`"
        raise errors.Denied(message, reason="NoTenancy", hint=hint)

    def place_new(self, namespace: str | None) -> str:
        """See `place.Part.place_new`. Raises: as `place`, and what `baseline.refusal` says."""
        place = self.place(namespace)
        if problem := baseline.refusal(self.allowed[place]):
            raise problem
        return place

    def tenancy(self, item: Tenancy) -> Tenancy:
        """Return a tenancy that may be seen for what is asked. Raises: NotFound; Denied."""
        name = baseline.namespace_name(item)
        if not self.sees(name):
            raise _unknown(item.metadata.name)
        return self.allowed[self.place(name)]


def _unknown(name: str) -> errors.NotFound:
    return errors.NotFound(f'there is no tenancy "{name}"', reason="NotFound")


def backend(whole: port.Backend, member: Member) -> port.Backend:
    """Return what an account may do with a machine's backend."""
    narrowed = own.backend(whole, member)
    return replace(narrowed, hardware=MemberHardware(whole=whole.hardware, user=member), tenancies=whole.tenancies)


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberHardware(own.OwnHardware):
    """A `port.Hardware` that says nothing of other tenancies, and nothing of the machine's own troubles."""

    user: Member

    async def list_gpus(self) -> hardware.GPUListing:
        """See `port.Hardware.list_gpus`; serial numbers are the machine's, and who has no role sees models alone."""
        found = await own.OwnHardware.list_gpus(self)
        gpus = tuple(msgspec.structs.replace(one, gpu=self._bare(one.gpu)) for one in found.gpus)
        if self._has_role:
            return msgspec.structs.replace(found, gpus=gpus, passthrough=())  # its keys are serial numbers
        return msgspec.structs.replace(found, gpus=gpus, unreadable=(), vgpus=(), lenders=(), passthrough=())

    @property
    def _has_role(self) -> bool:
        return self.user.sees_any

    def _bare(self, gpu: GPU) -> GPU:
        if self._has_role:
            return replace(gpu, serial=None)
        return replace(gpu, serial=None, pci_bus_id="", device_nodes=(), nics=(), health=GPUHealth())

    async def describe(self) -> hardware.BackendStatus:
        """See `port.Hardware.describe`."""
        return msgspec.structs.replace(await self.whole.describe(), problems=())


@dataclass(frozen=True, slots=True, kw_only=True)
class MemberStore(own.ReadOnly):
    """A `store.port.Store` that is read within the namespaces of an account's tenancies, and never written.

    Nodes may be read by every account; no other kinds but those listed here.
    """

    whole: Store
    member: Member

    async def get(self, kind: type[T], name: str, namespace: str = "") -> T:
        """See `Store.get`."""
        if kind is core.Node:
            return await self.whole.get(kind, name)
        if kind is Tenancy:
            found = await self.whole.get(kind, name)
            assert isinstance(found, Tenancy)  # noqa: S101 the kind that was asked for
            self.member.tenancy(found)
            return found
        self._check(kind)
        return await self.whole.get(kind, name, self.member.place(namespace))

    async def list(self, kind: type[T], selector: Selector = EVERYTHING) -> Listing[T]:
        """See `Store.list`; no namespace means all of the account's."""
        self._check(kind)
        found = await self.whole.list(kind, self._narrowed(kind, selector))
        return replace(found, items=tuple(item for item in found.items if self._sees(item)))

    async def watch(
        self, kind: type[T], selector: Selector = EVERYTHING, *, since: str | None = None
    ) -> AsyncIterator[Change[T]]:
        """See `Store.watch`."""
        self._check(kind)
        async with closing(self.whole.watch(kind, self._narrowed(kind, selector), since=since)) as changes:
            async for change in changes:
                if self._sees(change.object):
                    yield change

    def _check(self, kind: type[T]) -> None:
        if kind not in own.NAMESPACED and kind is not core.Node and kind is not Tenancy:
            self.refuse(kind)

    def _narrowed(self, kind: type[T], selector: Selector) -> Selector:
        if kind is core.Node or kind is Tenancy or selector.namespace is None or selector.namespace == "":
            return selector
        return replace(selector, namespace=self.member.place(selector.namespace))

    def _sees(self, item: Object) -> bool:
        if isinstance(item, core.Node):
            return True
        if isinstance(item, Tenancy):
            return baseline.namespace_name(item) in self.member.allowed
        return item.metadata.namespace in self.member.allowed

    def refuse(self, kind: type[Object]) -> NoReturn:
        """See `own.ReadOnly.refuse`."""
        message = f"objects of kind {kind.KIND} are the administrator's"
        raise errors.Denied(message, reason="AdministratorOnly", hint="ask the machine's administrator")
