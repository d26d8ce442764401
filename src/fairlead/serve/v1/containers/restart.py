"""Runs a container once more: its object is removed, and one like it is stored."""

from __future__ import annotations

import litestar
import msgspec
from litestar import status_codes

from fairlead.serve.admission import budget
from fairlead.serve.api.failure import documented
from fairlead.serve.backend.containers.pods import find_pod
from fairlead.serve.backend.port import require
from fairlead.serve.v1.containers import view
from fairlead.serve.v1.containers.parameters import Grace, Name, Namespace
from fairlead.serve.v1.containers.view import ContainerView
from fairlead.serve.v1.dependencies import Dependencies
from fairlead.wire.kubernetes import core, meta, names


@litestar.post(
    "/v1/containers/{name:str}/:restart",
    summary="Stop a container and start it again",
    responses=documented(400, 403, 404, 409),
    status_code=status_codes.HTTP_200_OK,
    tags=["container"],
)
async def restart_container(
    services: Dependencies, name: Name, namespace: Namespace = "default", grace: Grace = None
) -> ContainerView:
    """Return the new container once the old one is gone; it begins from its image and asks for devices again.

    One that would be refused now is left as it is: a volume, a class or a quota may have changed since it was started.
    On a cluster a pod that a controller keeps is refused, and a service killed in that moment does not bring it back.
    """
    lifecycle = require(services.backend.manifests)
    old = await find_pod(services.store, name, namespace)
    await budget.check(services.admission, old.metadata.namespace)
    again = like(old, is_users=services.whole is not None)
    asked = services.backend.places.again(old).submission(again)
    return view.container_view(await lifecycle.replace(old, asked, grace_s=grace))


def like(pod: core.Pod, *, is_users: bool = False) -> core.Pod:
    """Return a pod that asks for what another one asked for, not yet placed.

    Its priority class gives its number again; a user's pod gets the default class again.
    """
    name = "" if is_users else pod.spec.priority_class_name
    number = None if is_users or name else pod.spec.priority
    about = meta.ObjectMeta(
        name=pod.metadata.name,
        namespace=pod.metadata.namespace,
        labels=pod.metadata.labels,
        annotations={key: value for key, value in pod.metadata.annotations.items() if not names.is_own(key)},
    )
    fresh = {"node_name": "", "ephemeral_containers": (), "priority": number, "priority_class_name": name}
    return core.Pod(metadata=about, spec=msgspec.structs.replace(pod.spec, **fresh))


ROUTES = (restart_container,)
