"""Lists the rights that components need of an API server, and finds those that they lack.

One table a component, held by a test to the roles of the chart. An agent asks for itself what it may, with one request
that lists everything; authorizers that decide by themselves (webhooks) need not be in that list, so what is missing
there is asked for one by one before it is called lacking. `doctor` asks for an agent's account instead.

Source: authorization.k8s.io/v1 types.go, SelfSubjectRulesReview ("should NOT Be used to drive authorization
decisions … incomplete"), SubjectAccessReview.
"""

from __future__ import annotations

import asyncio
from dataclasses import dataclass
from typing import Final, Protocol

from fairlead import errors, telemetry
from fairlead.wire.kubernetes import api
from fairlead.wire.kubernetes.scheduling import podgroup

CHECK_S: Final = 300.0
RECHECK_S: Final = 10.0
"""While some are lacking; also after the API server did not answer."""
_GPUS: Final = "fairlead.dev"
_DEVICES: Final = "resource.k8s.io"


@dataclass(frozen=True, slots=True, kw_only=True)
class Right:
    """One verb on one resource."""

    verb: str
    resource: str
    group: str = ""
    part: str = ""

    @property
    def text(self) -> str:
        """Return it as a person says it."""
        return f"{self.verb} {self.full}"

    @property
    def full(self) -> str:
        """Return the resource as roles name it, `pods/status`."""
        return f"{self.resource}/{self.part}" if self.part else self.resource


def _verbs(verbs: str, resource: str, *, group: str = "", part: str = "") -> tuple[Right, ...]:
    return tuple(Right(verb=verb, resource=resource, group=group, part=part) for verb in verbs.split())


AGENT: Final = (
    *_verbs("get list watch patch", "nodes"),
    *_verbs("update", "nodes", part="status"),
    *_verbs("get list watch", "pods"),
    *_verbs("update", "pods", part="status"),
    *_verbs("get create", "events"),
    *_verbs("get list watch create patch delete", "gpudevices", group=_GPUS),
    *_verbs("update", "gpudevices", group=_GPUS, part="status"),
)
"""Rights with which an agent reports to the cluster; to serve a kubelet it needs none of them."""
LEASING: Final = (
    *_verbs("get list create delete", "gpuleases", group=_GPUS),
    *_verbs("update", "gpuleases", group=_GPUS, part="status"),
    *_verbs("get list create delete", "firmwarebaselines", group=_GPUS),
    *_verbs("update", "firmwarebaselines", group=_GPUS, part="status"),
)
"""With which an agent publishes possessions and firmware baselines, where `lease.ledger` is on."""
TAINTING: Final = _verbs("update", "nodes")
"""With which an agent taints its node, where `health.node_taint` asks for that."""
TAINTING_DEVICES: Final = (
    *_verbs("list create delete", "devicetaintrules", group=_DEVICES),
    *_verbs("list", "resourceslices", group=_DEVICES),
)
"""With which an agent taints the devices of a DRA driver, where `health.device_taint` asks for that."""
CLAIMS: Final = (
    *_verbs("list watch create patch delete", "resourceslices", group=_DEVICES),
    *_verbs("get list", "resourceclaims", group=_DEVICES),
)
"""With which an agent publishes GPUs for claims and prepares them."""
DRAINING: Final = _verbs("create", "pods", part="eviction")
"""With which an agent evicts pods, where `node.mig_drain` lets it."""
SCHEDULER: Final = (
    *_verbs("list watch", "nodes"),
    *_verbs("list watch", "namespaces"),
    *_verbs("get list watch", "pods"),
    *_verbs("create", "pods", part="binding"),
    *_verbs("patch update", "pods", part="status"),
    *_verbs("create", "events"),
    *_verbs("create", "pods", part="eviction"),
    *_verbs("list watch patch", "persistentvolumeclaims"),
    *_verbs("list watch patch", "persistentvolumes"),
    *_verbs("list watch", "csinodes", group="storage.k8s.io"),
    *_verbs("list watch", "storageclasses", group="storage.k8s.io"),
    *_verbs("list watch", "runtimeclasses", group="node.k8s.io"),
    *_verbs("get list watch create patch update delete", "resourceclaims", group=_DEVICES),
    *_verbs("patch update", "resourceclaims", group=_DEVICES, part="status"),
    *_verbs("patch update", "resourceclaims", group=_DEVICES, part="binding"),
    *_verbs("list watch", "resourceslices", group=_DEVICES),
    *_verbs("list watch", "deviceclasses", group=_DEVICES),
    *_verbs("list watch", "devicetaintrules", group=_DEVICES),
    *_verbs("list watch", "services"),
    *_verbs("list watch", "replicationcontrollers"),
    *_verbs("list watch", "replicasets", group="apps"),
    *_verbs("list watch", "statefulsets", group="apps"),
    *_verbs("list watch", "poddisruptionbudgets", group="policy"),
    *_verbs("get list watch", "queues", group=_GPUS),
    *_verbs("list watch", "gpudevices", group=_GPUS),
    *_verbs("update", "queues", group=_GPUS, part="status"),
    *(
        right
        for kind in podgroup.KINDS
        if kind is not podgroup.AlphaPodGroup
        for right in _verbs("list watch", kind.PLURAL, group=kind.API_VERSION.partition("/")[0])
    ),
)
CONTROLLER: Final = (
    *_verbs("list watch", "nodes"),
    *_verbs("get list watch delete", "gpudevices", group=_GPUS),
    *_verbs("update", "gpudevices", group=_GPUS, part="status"),
    *_verbs("get list watch delete", "gpuleases", group=_GPUS),
    *_verbs("update", "gpuleases", group=_GPUS, part="status"),
)
"""Scheduler and controller also need their own Lease; a lack of that right shows when they take it."""
_CILIUM: Final = "cilium.io"
TENANCIES: Final = (
    *_verbs("get list watch update", "tenancies", group=_GPUS),
    *_verbs("update", "tenancies", group=_GPUS, part="status"),
    *_verbs("get create patch delete", "namespaces"),
    *_verbs("list delete", "pods"),
    *_verbs("create patch delete", "resourcequotas"),
    *_verbs("create patch delete", "limitranges"),
    *_verbs("create patch", "serviceaccounts"),
    *_verbs("get create patch delete", "persistentvolumeclaims"),
    *_verbs("get create patch delete", "persistentvolumes"),
    *_verbs("list create patch", "networkpolicies", group="networking.k8s.io"),
    *_verbs("list create patch", "ciliumnetworkpolicies", group=_CILIUM),
    *_verbs("list create patch delete", "ciliumclusterwidenetworkpolicies", group=_CILIUM),
    *_verbs("get", "customresourcedefinitions", group="apiextensions.k8s.io"),
)
"""With which the controller keeps tenancies, where `control.tenancies` is on."""
API: Final = (
    *_verbs("get list watch create update delete", "tenancies", group=_GPUS),
    *_verbs("get", "namespaces"),
    *_verbs("get list watch", "nodes"),
    *_verbs("list", "runtimeclasses", group="node.k8s.io"),
    *_verbs("list", "deviceclasses", group="resource.k8s.io"),
    *_verbs("list", "resourceslices", group="resource.k8s.io"),
    *_verbs("get list watch create delete", "pods"),
    *_verbs("get", "pods", part="log"),
    *_verbs("create", "pods", part="eviction"),
    *(right for part in ("exec", "attach", "portforward") for right in _verbs("get create", "pods", part=part)),
    *_verbs("get list watch", "events"),
    *_verbs("get list watch create delete", "persistentvolumeclaims"),
    *_verbs("get list create patch delete", "resourcequotas"),
    *_verbs("create patch delete", "secrets"),
    *_verbs("get list watch create update delete", "queues", group=_GPUS),
    *_verbs("get list watch", "gpudevices", group=_GPUS),
    *_verbs("get list watch", "gpuleases", group=_GPUS),
)
"""With which the API serves accounts; a policy of the chart confines what it writes to namespaces of tenancies."""


class Server(Protocol):
    """An API server that says who may do what."""

    async def list_rules(self, namespace: str = "default") -> tuple[api.Rule, ...]:
        """Return what the client surely may do in a namespace. Raises: Denied, Unavailable."""
        ...

    async def may(
        self, verb: str, resource: str, *, group: str = "", part: str = "", namespace: str = "", user: str = ""
    ) -> bool:
        """Return whether the client, or a user, may do this in every namespace. Raises: Denied, Unavailable."""
        ...


async def find_lacking(server: Server, needed: tuple[Right, ...], *, user: str = "") -> tuple[Right, ...]:
    """Return the rights that the client, or a user, does not have. Raises: Denied, Unavailable, ProtocolError."""
    rules = () if user else await server.list_rules()
    doubtful = [one for one in needed if not any(rule.allows(one.verb, one.full, one.group) for rule in rules)]
    answers = await asyncio.gather(
        *(server.may(one.verb, one.resource, group=one.group, part=one.part, user=user) for one in doubtful)
    )
    return tuple(right for right, may in zip(doubtful, answers, strict=True) if not may)


class Watched:
    """Whether this process has the rights it needs, asked again now and then."""

    def __init__(self, server: Server, needed: tuple[Right, ...]) -> None:
        """Take whom to ask and for what; nothing is asked before `run`."""
        self._server, self._needed = server, needed
        self._lacking: tuple[Right, ...] = ()

    def problem(self) -> str:
        """Return which rights are lacking, "" where none is, or no answer has come yet."""
        if not self._lacking:
            return ""
        return f"the service account may not {', '.join(one.text for one in self._lacking)}"

    async def run(self) -> None:
        """Ask for ever. An API server that is away takes nothing back that it has said."""
        while True:
            try:
                lacking = await find_lacking(self._server, self._needed)
            except errors.FairleadError as error:
                telemetry.log.debug("rights not read", reason=error.reason, error=errors.sentence(error))
                await asyncio.sleep(RECHECK_S)
                continue
            if lacking != self._lacking:
                self._lacking = lacking
                if lacking:
                    telemetry.log.warning("rights are lacking", reason="RightsLacking", error=self.problem())
                else:
                    telemetry.log.info("rights are there")
            await asyncio.sleep(RECHECK_S if lacking else CHECK_S)
