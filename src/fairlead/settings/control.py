"""Declares the settings of the controllers, the scheduler among them, one row each."""

from __future__ import annotations

from typing import Final

from fairlead.frozen import frozen
from fairlead.settings.row import row

POLICIES: Final = (
    *("packed", "spread", "fairlead", "fgd"),
    *("random", "binpack", "dotprod", "clustering", "packing", "bestfit"),
)
"""Policies of placement; a test holds them to the scheduler's."""


@frozen
class ControlSettings:
    """The controllers."""

    scheduler_name: str = row("fairlead", text="pods with this schedulerName are placed by us")
    policy: str = row(
        "packed",
        text="where pods with GPUs go: packed keeps whole nodes free, spread uses the emptiest, fairlead and fgd keep "
        "GPUs of use to what else is asked for",
        choices=POLICIES,
    )
    pod_policies: str = row(
        "",
        text="pods that are placed by another policy: KEY=VALUE:POLICY joined by commas, the first that fits; KEY is a "
        "label, or priorityClassName. It takes precedence over the policy of the pod's queue",
    )
    tenancy_subnets: str = row(
        "10.213.0.0/16", text="network of IPv4 of which each tenancy of this machine gets a /24 that nothing else has"
    )
    tenancy_resync_s: float = row(
        10.0, unit="s", text="how often a tenancy's packet filter is read, and written anew where it is not in force"
    )
    tenancy_pods: int = row(
        500, text="containers at a time of a tenancy whose own quota does not count `pods`; 0: as many as it asks for"
    )
    tenancy_volumes: int = row(
        100, text="named volumes of a tenancy whose own quota does not count them; 0: as many as it asks for"
    )
    tenancies: bool = row(
        False, text="over a cluster, keep tenancies: the controller then makes namespaces, policies, quotas and limits"
    )
    tenancy_enforcer: str = row(
        "auto",
        text="over a cluster, what enforces network policies on its nodes: auto takes the nodes' word and knows "
        "Cilium, Calico, Antrea and OVN-Kubernetes; the others are an administrator's word. Where nothing does, no "
        "tenancy is ready",
        choices=("auto", "networkpolicy", "cilium"),
    )
    tenancy_networks: str = row(
        "",
        text="over a cluster, its networks of pods, services and machines that Node objects do not name, CIDRs joined "
        "by commas: tenancies are denied them",
    )
    start_objectives: str = row(
        "",
        text="how long the start of a container may take, by its devices, as in 0=10s,1=60s,8=20m: the largest number "
        "that is not above its own counts. A longer one is an event that names the longest phase; empty: none",
    )
    finished_pods: int = row(1000, text="ended pods kept for ps and trace; older ones are removed")
    default_spread: bool = row(
        False,
        text="over a cluster, rather spread pods of one Service or ReplicaSet over nodes and zones where they say "
        "nothing of it, as kube-scheduler does; it outweighs the packing of GPUs, and each decision looks at all nodes",
    )
    topology_levels: str = row(
        "",
        text="labels of nodes that say where they are in the network, the widest first, joined by commas: groups "
        "require or prefer to run in one block or rack by their annotations",
    )
    shard_label: str = row(
        "",
        text="over a cluster, label that divides nodes and pods among several schedulers; empty: one has them all",
    )
    shard: str = row(
        "",
        text="value of control.shard_label whose nodes and pods are this scheduler's; empty: those without the label",
    )
    request_rate: int = row(
        2000,
        text="over a cluster, what the scheduler and the controller each ask of its API server at most",
        unit="requests/s",
    )
    feature_gates: str = row(
        "",
        text="over a cluster, feature gates of Dynamic Resource Allocation that are not as Kubernetes 1.37 has them: "
        "NAME=true or NAME=false joined by commas",
    )
    claimed_devices: str = row(
        "first",
        text="which devices of the chosen node a claim gets: first takes the drivers' order, as kube-scheduler does; "
        "best has them hang together (PCIe, NUMA) and leaves whole GPUs and large partitions free",
        choices=("first", "best"),
    )
    extender: str = row(
        "",
        text="127.0.0.1:PORT where the scheduler answers a kube-scheduler as its extender and binds nothing of its own",
    )
    preemption: bool = row(
        True,
        text="end pods for others that fit nowhere: of lower priority, or of queues beyond their share",
    )
    head_wait_s: float = row(
        600, text="how long smaller pods overtake a queue's first before room is held for it; 0: none is held", unit="s"
    )
    gang_part_s: float = row(
        60,
        text="time after which a group is released that is bound only in part, as by a scheduler that was killed",
        unit="s",
    )
    usage_half_life_s: float = row(
        0, text="half-life of a queue's past use when the next queue is chosen; 0: present use only", unit="s"
    )
    defragment: str = row(
        "off",
        text="over a cluster, move running pods to other nodes so that larger ones fit: waiting does it for pods that "
        "fit nowhere, largest also so that one more pod of the largest size that runs would fit",
        choices=("off", "waiting", "largest"),
    )
    defragment_every_s: float = row(60, text="how often control.defragment looks for moves", unit="s")
    defragment_moves: int = row(5, text="the most pods that are moved at a time")
    defragment_min_runtime_s: float = row(600, text="pods that started less than this long ago are not moved", unit="s")
    leader_elect: bool = row(True, text="over a cluster, act only while holding the lease of this kind of process")
