"""Lists the checks of a cluster that were not made, and why: what may not be read is neither well nor ill.

`CHECKS` is the table: what each check is about, and which facts it needs. A fact that is None was not read; `WANTING`
names the right for it.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from fairlead.cli.doctor.cluster.facts import Facts
from fairlead.cli.doctor.finding import Finding

WANTING: Final = {
    "lacking": "create selfsubjectaccessreviews.authorization.k8s.io",
    "definitions": "get customresourcedefinitions.apiextensions.k8s.io",
    "agents": "list daemonsets.apps",
    "agent_lacks": "create subjectaccessreviews.authorization.k8s.io",
    "deployments": "list deployments.apps",
    "nodes": "list nodes",
    "gpus": "list gpudevices.fairlead.dev",
    "baselines": "list firmwarebaselines.fairlead.dev",
    "pods": "list pods",
    "leases": "list leases.coordination.k8s.io",
    "runtime_classes": "list runtimeclasses.node.k8s.io",
    "policies": "list validatingadmissionpolicies and their bindings",
    "refusals": "list events",
}
"""Right that reads a fact, by the fact."""

CHECKS: Final = (
    ("rights", "what you may read", ("lacking",)),
    ("crd", "whether our kinds are installed and served", ("definitions",)),
    ("agent", "whether agents are there and ready", ("agents",)),
    ("agent", "whether every node with GPUs has an agent", ("agents", "gpus", "pods")),
    ("agent rights", "whether agents may report their GPUs to the cluster", ("agents", "agent_lacks")),
    ("policies", "whether names under fairlead.dev/ are kept for Fairlead", ("agents", "policies")),
    ("nodes", "whether kubelets offer the GPUs that are there", ("nodes", "gpus")),
    ("gpus", "whether GPUs are healthy and in one pod each", ("gpus",)),
    ("baselines", "whether firmware waits for a second person", ("baselines",)),
    ("scheduler", "who leads", ("leases",)),
    ("controller", "who leads", ("leases",)),
    ("scheduler", "whether its replicas are ready", ("deployments",)),
    ("controller", "whether its replicas are ready", ("deployments",)),
    ("runtime", "whether the runtime classes in use exist", ("agents", "runtime_classes", "refusals")),
    ("pods", "which pods wait, and why", ("pods", "nodes")),
)
"""Check, what it is about, and the facts that it needs."""


def find(seen: Facts) -> Iterator[Finding]:
    """Yield one finding for each check that was not made in full, with the rights that are missing."""
    for check, what, needs in CHECKS:
        missing = [name for name in needs if getattr(seen, name) is None]
        if not missing:
            continue
        if seen.unanswered and set(missing) <= {"lacking", "agent_lacks"}:
            why = f"the API server did not say: {seen.unanswered}"
        else:
            why = f"you may not {', '.join(WANTING[name] for name in missing)}"
        fix = _ASK if "agent_lacks" in missing and "agents" not in missing and not seen.unanswered else ""
        yield Finding(check=check, level="skip", what=f"not checked: {what}", why=why, fix=fix)


_ASK: Final = "an administrator runs `fairlead doctor`; only one who may create SubjectAccessReviews can see it"
