"""Finds who has functions open: the processes that have their nodes, and what the kernel says of VFIO's.

Who looks through the processes is handed in: that needs the host's /proc and is another room's. A process in no list
may have a VFIO node all the same (a kernel thread of a dead machine, a process of another pid namespace), so the node
of an IOMMU group, which takes one opener, is opened and closed: what that says is the truth, and settles doubts.
Source: linux drivers/vfio/group.c (vfio_group_fops_open); an open group without a container resets nothing.
"""

from __future__ import annotations

import errno
import os
import stat
from collections.abc import Callable, Collection, Mapping, Sequence
from typing import Literal, Protocol

from fairlead.model.driver import DeviceNode
from fairlead.model.vfio import Function, Holder

Number = tuple[Literal["c", "b"], int, int]


class User(Protocol):
    """A process that has devices open, as `kernel.openfiles.find_users` finds them."""

    @property
    def pid(self) -> int:
        """On the host."""
        ...

    @property
    def name(self) -> str:
        """As it calls itself."""
        ...

    @property
    def devices(self) -> tuple[Number, ...]:
        """Those that it has open or mapped."""
        ...

    @property
    def doubt(self) -> str:
        """What it has that cannot be told from a device; empty: nothing."""
        ...


FindUsers = Callable[[Collection[Number]], Sequence[User]]
"""Returns every process but this one that has one of the devices, or may have it."""


def find_holders(
    functions: Sequence[Function], find_users: FindUsers, *, is_ours: bool = False, opens: bool = False
) -> Mapping[str, tuple[Holder, ...]]:
    """Return who has which function open, by address; one without an entry is open nowhere.

    Args: is_ours: this process has the nodes of VFIO open itself, which proves that no other has them: then a process
          counts only where it is seen with one.   opens: whether to ask the kernel by opening groups, which for that
          moment keeps others out: only for what is about to be taken from its driver, or reset.
    """
    nodes = {one.address: _nodes(one) for one in functions}
    numbers = frozenset(_number(node) for listed in nodes.values() for node in listed)
    if not numbers:
        return {}
    users = find_users(numbers)
    found = {}
    for one in functions:
        if nodes[one.address] and (holders := _holders(one, nodes[one.address], users, is_ours=is_ours, opens=opens)):
            found[one.address] = tuple(holders)
    return found


def _holders(
    one: Function, nodes: Sequence[DeviceNode], users: Sequence[User], *, is_ours: bool, opens: bool
) -> list[Holder]:
    by_number = {_number(node): node.path for node in nodes}
    seen = [
        Holder(pid=user.pid, name=user.name, what=by_number[number])
        for user in users
        for number in by_number
        if number in user.devices
    ]
    if seen or (is_ours and one.is_bound_to_vfio):
        return seen
    is_taken = _is_taken(one) if opens else None
    if is_taken:
        return [Holder(pid=0, name="", what=nodes[0].path)]
    if is_taken is False:
        return []
    return [Holder(pid=user.pid, name=user.name, what=user.doubt, is_doubt=True) for user in users if user.doubt]


def _is_taken(one: Function) -> bool | None:
    """Return whether a process has a function's IOMMU group; None: the kernel does not say."""
    node = one.group_node
    if node is None or not one.is_bound_to_vfio:
        return None
    try:
        handle = os.open(node.host_path, os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        return True if error.errno == errno.EBUSY else None
    try:
        found = os.fstat(handle)
        is_it = stat.S_ISCHR(found.st_mode) and found.st_rdev == os.makedev(node.major, node.minor)
        return False if is_it else None
    finally:
        os.close(handle)


def _nodes(one: Function) -> tuple[DeviceNode, ...]:
    return (*one.nodes, *one.driver_nodes)


def _number(node: DeviceNode) -> Number:
    return "c", node.major, node.minor
