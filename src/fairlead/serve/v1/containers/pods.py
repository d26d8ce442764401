"""Lists pods and waits for their states, as the routes of containers ask."""

from __future__ import annotations

import contextlib
from collections.abc import Iterable
from typing import Final

from fairlead import errors
from fairlead.serve.api import etag, patience
from fairlead.serve.backend.containers import pods
from fairlead.serve.closing import closing
from fairlead.serve.v1.containers import view
from fairlead.serve.v1.containers.view import ContainerView
from fairlead.store.port import ChangeKind, Selector, Store
from fairlead.wire.kubernetes import core

_REACHED: Final = {"started": view.STARTED, "ended": view.ENDED, "gone": frozenset({"gone"})}
WAIT_STATES: Final = tuple(_REACHED)


async def list_pods(store: Store, *, namespace: str | None, labels: Iterable[str]) -> tuple[core.Pod, ...]:
    """Return pods by namespace (None: all) and `key=value` labels. Raises: Invalid: a label of another form."""
    return (await store.list(core.Pod, Selector(namespace=namespace, labels=read_labels(labels)))).items


def read_labels(labels: Iterable[str]) -> dict[str, str]:
    """Return `key=value` labels as a selector has them. Raises: Invalid (`SelectorInvalid`): one of another form."""
    wanted: dict[str, str] = {}
    for label in labels:
        key, equals, value = label.partition("=")
        if not key or not equals:
            message = f'label "{label}" is not of the form key=value'
            raise errors.Invalid(message, reason="SelectorInvalid", hint="for example label=team=red")
        wanted[key] = value
    return wanted


async def after(store: Store, pod: core.Pod, *, state: str, wait_s: float | None) -> ContainerView:
    """Return the view of a pod that was just changed: as it is (no `wait_s`), or as `wait_for` says."""
    if wait_s is None:
        return view.container_view(pod)
    return await wait_for(store, pod, state=state, timeout_s=wait_s)


async def wait_for(store: Store, pod: core.Pod, *, state: str, timeout_s: float | None) -> ContainerView:
    """Return the view as soon as the pod is `started`, `ended` or `gone`, or as it is after `timeout_s`.

    A pod removed meanwhile is returned in state `gone`, which counts as every state.
    Raises: Invalid: an unknown state.
    """
    if state not in _REACHED:
        message = f'cannot wait for state "{state}" (offered: {", ".join(WAIT_STATES)})'
        raise errors.Invalid(message, reason="WaitStateUnknown")
    latest = view.container_view(pod)
    etag.let_go()
    with contextlib.suppress(TimeoutError):
        async with patience.wait(timeout_s):
            async with closing(pods.follow(store, pod)) as changes:
                async for change in changes:
                    latest = view.container_view(change.object)
                    if change.kind is not ChangeKind.DELETED and latest.state in _REACHED[state]:
                        return latest
            return view.gone(latest)
    return latest
