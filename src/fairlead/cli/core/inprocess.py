"""The API over a cluster, inside this process: the same application as on one machine, over an API server's store.

Verbs talk to a service through one client. For a cluster the service is made for the length of one command: the
application on a private unix socket (a folder of mode 0700 that is gone afterwards), with an event loop and a thread of
its own. It has no rights but those of the kubeconfig's user.
"""

from __future__ import annotations

import asyncio
import contextlib
import tempfile
import time
from collections.abc import AsyncIterator, Iterator
from concurrent import futures
from pathlib import Path
from typing import Final

from fairlead import __version__, settings, telemetry
from fairlead.cli.core import client as api
from fairlead.cli.core import cluster as core
from fairlead.cli.core import httptransport
from fairlead.serve import server as api_door
from fairlead.serve.backend import cluster
from fairlead.serve.v1 import app, dependencies
from fairlead.store.kubernetes import client as http
from fairlead.store.kubernetes import credentials, store, subresource
from fairlead.store.kubernetes import server as api_server

LIMITS: Final = http.Limits(patience_s=core.PATIENCE_S)


Ready = futures.Future[tuple[asyncio.AbstractEventLoop, asyncio.Event]]


@contextlib.contextmanager
def opened(config: settings.Settings, access: credentials.Access, *, refusal: str = "") -> Iterator[api.Client]:
    """Give a client of the cluster.

    Args:    refusal: why nothing may be changed there; empty: whatever the user's rights allow.
    Raises:  Unavailable: certificates or tokens of the kubeconfig cannot be used.
    """
    # This process is a command, not a service: what fails is raised to its user, once.
    telemetry.configure("error", "console")
    ready: Ready = futures.Future()
    with tempfile.TemporaryDirectory(prefix="fairlead-") as folder, futures.ThreadPoolExecutor(1, "cluster") as pool:
        path = Path(folder) / "api.sock"
        serving = pool.submit(asyncio.run, _run(config, access, path, ready))
        serving.add_done_callback(lambda _: ready.cancel())
        with contextlib.suppress(futures.CancelledError):
            ready.result()
        if ready.cancelled():
            serving.result()
        loop, stop = ready.result()
        try:
            carrier = httptransport.HTTPTransport(str(path))
            with api.Client(carrier, namespace=access.namespace, cluster=access.cluster.server) as client:
                client.refusal = refusal
                yield client
        finally:
            loop.call_soon_threadsafe(stop.set)
            serving.result()


async def _run(config: settings.Settings, access: credentials.Access, path: Path, ready: Ready) -> None:
    stop, listening = asyncio.Event(), asyncio.Event()
    async with services_over(config, access, socket=path) as door, asyncio.TaskGroup() as tasks:
        task = tasks.create_task(api_door.serve_unix(app.create_app(door), path, ready=listening))
        await listening.wait()
        ready.set_result((asyncio.get_running_loop(), stop))
        await stop.wait()
        task.cancel()


@contextlib.asynccontextmanager
async def services_over(
    config: settings.Settings, access: credentials.Access, *, socket: Path
) -> AsyncIterator[dependencies.Services]:
    """Give what the API stands on, over a cluster."""
    async with store.KubernetesStore(access, limits=LIMITS) as objects:
        backend = cluster.backend(
            store=objects,
            server=api_server.Server(objects.client, address=access.cluster.server),
            pods=subresource.KubernetesPods(objects.client, objects),
        )
        yield dependencies.Services(
            store=objects,
            backend=backend,
            info=dependencies.ServiceInfo(
                version=__version__,
                node="",
                started_at=time.time(),
                scheduler_name="",
                resource=config.node.resource,
                socket=socket,
                state_folder=Path(),
                cdi_folder=Path(),
            ),
        )
