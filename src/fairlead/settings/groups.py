"""Declares the settings, one row each, in groups; each room is handed only its group.

Those of scheduler and controllers stand in `settings.control`, those of API and console in `settings.serving`.
"""

from __future__ import annotations

import dataclasses
import functools
import typing
from collections.abc import Mapping
from dataclasses import field
from pathlib import Path
from typing import Any

from fairlead.frozen import frozen
from fairlead.settings.control import ControlSettings
from fairlead.settings.idling import IdleSettings
from fairlead.settings.reserving import ReserveSettings
from fairlead.settings.row import Row, row
from fairlead.settings.serving import (
    APISettings,
    ConsoleSettings,
    DatabaseSettings,
    HistorySettings,
    MailSettings,
    NotifySettings,
    OIDCSettings,
    SessionSettings,
    SSHSettings,
    WebhookSettings,
)


@frozen
class StateSettings:
    """Folders of the state that survives a restart."""

    folder: Path = row(Path("/var/lib/fairlead"), text="folder of the database, checkpoints and simulated silicon")
    run: Path = row(Path("/run/fairlead"), text="folder of sockets and the CDI specs of this boot")


@frozen
class SiliconSettings:
    """Selects the hardware that is scanned, and how often."""

    simulate: str = row("", text="profile of simulated silicon (name or file); empty: the hardware that is there")
    root: Path = row(Path("/"), text="root under which /dev, /proc and /sys are read")
    driver_root: Path = row(Path("/"), text="root of the NVIDIA driver's user-space files, below the silicon root")
    dev_root: Path | None = row(
        None, text="folder that has the driver's /dev, below the silicon root; default: the root"
    )
    discovery: str = row(
        "auto",
        text="how NVIDIA's GPUs are found: auto by what the machine is, nvml by the driver, tegra by the lists of an "
        "integrated GPU, wsl by the driver store of Windows",
        choices=("auto", "nvml", "tegra", "wsl"),
    )
    library_path: str = row("", text="more folders of driver libraries, joined by colons, below the driver root")
    config_path: str = row("", text="more folders of driver configuration, joined by colons, below the driver root")
    scrub_program: str = row(
        "",
        text="program that clears a GPU's memory between two tenants, called with the GPU's UUID; exit code 0: clean; "
        "empty: there is none",
    )
    rescan_s: float = row(30.0, unit="s", text="longest time until a changed inventory is noticed")
    call_timeout_s: float = row(10.0, unit="s", text="time after which a hanging driver call counts as a lost GPU")


@frozen
class EngineSettings:
    """The container engine of the standalone service."""

    podman: str = row("podman", text="podman program, a name on PATH or a path")
    runtime: str = row("", text="OCI runtime for podman; empty: podman's own, or runc where crun cannot run")
    pull: bool = row(True, text="pull images that are not on this machine")
    log_max_mib: int = row(
        64, text="size in MiB at which a container's log begins anew, its old lines lost; 0: it grows without limit"
    )
    network: str = row(
        "auto",
        text="network of containers: podman's default bridge, or none where it cannot work",
        choices=("auto", "bridge", "none", "host"),
    )
    user_namespaces: str = row(
        "auto",
        text="user namespaces of containers of tenancies and of `api.group`'s users, in which root is nobody on the "
        "host: where this machine can, always (containers that cannot have one are refused), or never",
        choices=("auto", "always", "never"),
    )


@frozen
class NodeSettings:
    """One GPU node's agent."""

    name: str = row("", text="node name; empty: the host's name")
    resource: str = row("nvidia.com/gpu", text="extended resource under which whole NVIDIA GPUs are advertised")
    door: str = row(
        "plugin",
        text="how NVIDIA's GPUs are given away: by the device plugin, or by ResourceClaims (needs lease.ledger=on)",
        choices=("plugin", "claims"),
    )
    vfio: str = row(
        "off",
        text="pass GPUs without a driver through to virtual machines: those that are bound to vfio-pci, or bind all of "
        "NVIDIA's to it first, or bind them where the Node's label nvidia.com/gpu.workload.config is vm-passthrough "
        "(both need lease.ledger=on, without which nothing keeps tenants apart)",
        choices=("off", "bound", "bind", "label"),
    )
    vfio_names: str = row(
        "slots",
        text="resource and device names of GPUs that are passed through: nvidia.com/MODEL-x1 with ids by module or "
        "serial, nvidia.com/gpu with 0, 1 and so on, those of NVIDIA's plugin for Kata, or of its plugin for KubeVirt",
        choices=("slots", "index", "kata", "kubevirt"),
    )
    vfio_clean: str = row(
        "erased",
        text="what a GPU that is passed through must show between two tenants: that its hardware erased its memory "
        "after a bus reset (Hopper and later), or that it was reset in whatever way it has",
        choices=("erased", "reset"),
    )
    vfio_nodes: str = row(
        "groups",
        text="by which nodes virtual machines use GPUs that are passed through: /dev/vfio/GROUP, or iommufd's "
        "/dev/vfio/devices/vfioN",
        choices=("groups", "iommufd"),
    )
    fabric: str = row(
        "off",
        text="offer slots of several GPUs that are passed through, by the NVLink partitions of the Fabric Manager that "
        "fabric.agent or fabric.manager names, and switch those",
        choices=("off", "on"),
    )
    vfio_alias: str = row("", text="resource name behind the domain with node.vfio_names=kata; empty: pgpu")
    vfio_switch_alias: str = row(
        "",
        text="resource name of NVSwitches behind nvidia.com/, with nvswitch in it, where node.vfio_names is kata or "
        "kubevirt; empty: nvswitch",
    )
    claim_partitions: bool = row(
        False, text="offer claims the MIG devices that a GPU can be divided into, and make those that they get"
    )
    claim_shares: str = row(
        "", text="let several claims have one device: unlimited, memory (by the memory that they ask for), or a number"
    )
    claim_shares_by: str = row(
        "nothing",
        text="what holds programs to the memory of their claim's share of a GPU: nothing, or a control daemon of MPS",
        choices=("nothing", "mps"),
    )
    kubelet_folder: Path | None = row(
        None, text="folder of kubelet.sock; default: device-plugins in the run folder, for `agent` the kubelet's"
    )
    cdi_folder: Path = row(Path("/var/run/cdi"), text="folder that engines read generated CDI specs from")
    cdi_profile: str = row(
        "tenant",
        text="how much of the driver specs show: least exposure, or all that NVIDIA's toolkit shows",
        choices=("tenant", "full"),
    )
    cdi_variants: bool = row(False, text="also write a class of devices for each driver capability")
    cdi_hook: str = row("", text="path of fairlead-hook on the host, to be named by specs; empty: no hook")
    cdi_stamp: str = row(
        "file",
        text="where boot, driver and GPUs of a spec are noted: beside it, or in annotations (needs CDI 0.6.0)",
        choices=("file", "annotations", "none"),
    )
    host_mount: Path = row(
        Path("/"), text="where this process sees the node's root, if in a container; left out of paths in CDI specs"
    )
    char_links: bool = row(
        True, text="keep the links in /dev/char that systemd needs, where the host runs it and its /dev can be written"
    )
    device_list_strategy: str = row(
        "cdi-cri",
        text="how Allocate names devices, joined by commas: cdi-cri, cdi-annotations, envvar, volume-mounts",
    )
    device_id_strategy: str = row(
        "uuid", text="how Allocate's answer names a device to the engine", choices=("uuid", "index")
    )
    mig_strategy: str = row(
        "none",
        text="how MIG devices are offered: not, as whole GPUs where all are alike, or each profile by its own name",
        choices=("none", "single", "mixed"),
    )
    mig_config: str = row(
        "", text="MIG configuration to be in force where the Node's label nvidia.com/mig.config names none; empty: none"
    )
    mig_config_file: Path | None = row(
        None, text="file of MIG configurations, in mig-parted's format; default: those that suit the GPUs"
    )
    mig_drain: str = row(
        "never",
        text="whether pods that hold MIG devices are evicted where a MIG configuration ends these: label means on a "
        "node with the label fairlead.dev/mig.drain=true",
        choices=("never", "label", "always"),
    )
    pass_device_specs: bool = row(False, text="list the device nodes in Allocate's answer as well")
    pod_resources: Path | None = row(
        None, text="the kubelet's PodResources socket; default: pod-resources/kubelet.sock beside the kubelet folder"
    )
    engine: str = row(
        "",
        text="the kubelet's container engine, as `containerd://2.2.1`, where neither the Node object nor the "
        "engine's socket can say it",
    )
    metrics: str = row(
        "",
        text="host:port of the GPUs' metrics under DCGM's names; empty: port 9400, of every address for `agent`, of "
        "127.0.0.1 for `up`; none: not served",
    )
    metrics_counters: Path | None = row(
        None,
        text="dcgm-exporter's list of counters, a CSV file: which of DCGM's metrics are shown, with which types and "
        "help texts; default: all",
    )
    metrics_host_label: str = row(
        "hostname",
        choices=("hostname", "Hostname", "both"),
        text="label of the node's name in those metrics: `Hostname` is what released dcgm-exporters write",
    )
    reregister_s: float = row(1.0, unit="s", text="first wait before registration is tried again; doubles to 30 s")


@frozen
class PluginSettings:
    """Options of NVIDIA's device plugin, under Fairlead's names."""

    config_file: Path | None = row(
        None, text="configuration file of NVIDIA's device plugin (version: v1), followed while the agent runs"
    )
    config_folder: Path | None = row(
        None, text="folder of such files, of which the node's label nvidia.com/device-plugin.config names one"
    )
    config_default: str = row("", text="name of the file in that folder where the node has no label")
    config_fallbacks: str = row(
        "named,single",
        text="if neither label nor default is set, joined by commas: named (a file called default), single (the only "
        "file), empty (no configuration)",
    )
    mps_root: Path | None = row(
        None,
        text="folder of the MPS daemons' pipes, logs and shared memory, which containers mount parts of; default: mps "
        "in the state folder",
    )
    sharing_policy: str = row(
        "distributed",
        text="which GPU gives the next replica: the one with fewest in use, or with most",
        choices=("distributed", "packed"),
    )
    gdrcopy: bool = row(False, text="give containers the GDRCopy device beside their GPUs, where it is there")
    gds: bool = row(False, text="give containers the devices of GPUDirect Storage beside their GPUs, where they exist")
    mofed: bool = row(False, text="give containers the InfiniBand devices beside their GPUs, where they exist")
    imex_channels: str = row(
        "", text="IMEX channels that containers get beside their GPUs, joined by commas; empty: none"
    )
    imex_required: bool = row(False, text="refuse containers while a channel of plugin.imex_channels does not exist")


@frozen
class LabelSettings:
    """The labels that say what GPUs a node has."""

    way: str = row(
        "node",
        text="how labels reach the Node: set by the agent, or for node feature discovery to set, as a NodeFeature "
        "object or a file in its features.d",
        choices=("node", "node-feature", "file"),
    )
    file: Path = row(
        Path("/etc/kubernetes/node-feature-discovery/features.d/gfd"), text="file of labels.way=file; folder must exist"
    )
    no_timestamp: bool = row(False, text="leave out nvidia.com/gfd.timestamp, the Unix seconds of the agent's start")
    aliases: bool = row(True, text="set gpu-count, gpu-memory and gpu-generation, as tutorials name them, as well")
    gvisor: str = row(
        "",
        text="path of gVisor's runsc, below the silicon root: the label fairlead.dev/gvisor says whether it knows the "
        "driver, looked at when the agent starts; empty: no such label",
    )


@frozen
class HealthSettings:
    """Selects the faults after which a GPU is no longer offered, and what reports them."""

    xids: str = row(
        "",
        text="what XIDs ask for in place of the vendor's catalog, joined by commas: 94=reset,63=ignore "
        "(ignore, application, reset, reboot)",
    )
    ignored_xids: str = row("", text="XIDs that change nothing, joined by commas; all: no XID does")
    heeded_xids: str = row(
        "", text="XIDs that take their GPU out, joined by commas, whatever else says otherwise; all: every one"
    )
    hot_c: int = row(95, unit="C", text="temperature that is a fault where it lasts, of GPUs that give no limit")
    persist_s: float = row(10.0, unit="s", text="how long a suspicion, such as heat, lasts before it is a fault")
    hold_s: float = row(
        10.0, unit="s", text="how long a GPU must be well before it is offered again; doubles with each relapse"
    )
    node_condition: bool = row(True, text="report ill GPUs as a condition of the Node, fairlead.dev/GPUHealthy")
    node_taint: str = row(
        "",
        text="effect of a taint on the Node while any of its GPUs is ill, fairlead.dev/gpu-unhealthy with the reason; "
        "empty: none",
        choices=("", "PreferNoSchedule", "NoSchedule", "NoExecute"),
    )
    device_taint: str = row(
        "",
        text="effect of a DeviceTaintRule for each ill GPU that NVIDIA's DRA driver publishes on this node; empty: "
        "none",
        choices=("", "None", "NoSchedule", "NoExecute"),
    )


@frozen
class LeaseSettings:
    """Possession: the node's ledger of who has which GPU, and what happens to a GPU between two tenants."""

    ledger: str = row(
        "on",
        text="whether every GPU passes through the node's ledger: given away in one transaction, shown in CDI specs "
        "only while it is held, free again when its pod is gone and no process has it open; off: a pod removed by "
        "force may share its GPU with the next one",
        choices=("off", "on"),
    )
    neighbours: str = row(
        "refuse",
        text="programs on a GPU that Fairlead did not start (a person's own, another engine's container): refuse keeps "
        "the GPU from tenants while one calculates on it or has it open, refuse-all also while one draws or watches, "
        "share shows them and gives the GPU away beside them, ignore does not look for them",
        choices=("refuse", "refuse-all", "share", "ignore"),
    )
    reuse: str = row(
        "look",
        text="what a GPU goes through before the next tenant gets it, each with all before it: look (nobody has it, "
        "its readings are good), verify (board, firmware, link and ECC counts against an approved baseline), reset, "
        "scrub (its memory is overwritten)",
        choices=("look", "verify", "reset", "scrub"),
    )
    approvals: str = row("2", text="persons who must approve a firmware baseline; 2: nobody alone", choices=("1", "2"))
    verify_s: float = row(300.0, unit="s", text="longest time for one verification; it counts as failed then")
    verifier_image: str = row(
        "",
        text="FOLDER@sha256:HEX, a virtual machine's image in which GPUs that are passed through are read between two "
        "tenants and held against an approved baseline, since no driver is here; empty: they are reset, and nothing is "
        "read of them",
    )
    verifier_emulator: str = row(
        "/usr/bin/qemu-system-x86_64", text="path of the QEMU that runs that machine, and that of fabric.vm_image"
    )
    verifier_firmware: str = row(
        "",
        text="path of the firmware of that machine and that of fabric.vm_image, such as OVMF, which makes room for "
        "large memory regions; empty: SeaBIOS",
    )
    verifier_memory_mib: int = row(16384, unit="MiB", text="memory of that machine")
    verifier_processors: int = row(4, text="processors of that machine")
    keep_days: int = row(
        90, unit="days", text="how long GPULease objects are kept after their end, for audit and accounting"
    )


@frozen
class FabricSettings:
    """The Fabric Manager, which divides NVLink into partitions."""

    manager: str = row(
        "127.0.0.1:6666",
        text="where the Fabric Manager listens: HOST:PORT, the path of a unix socket, or CID:PORT of vsock",
    )
    library: str = row("libnvfm.so.1", text="NVIDIA's library of the Fabric Manager, a name or a path")
    agent: str = row(
        "",
        text="where `fairlead fabric serve` listens in the Service VM: the path of a unix socket, CID:PORT of vsock, "
        "or nvswitch:PORT, vsock of whichever machine has this node's NVSwitches open; empty: the Manager is "
        "reached by its library",
    )
    secret: Path | None = row(
        None, text="file of the secret that this side and `fairlead fabric serve` share; default: in the state folder"
    )
    timeout_s: float = row(10.0, unit="s", text="longest time for one call of the Fabric Manager")
    version: str = row(
        "",
        text="version of the Fabric Manager, such as 580.95.05, where `fairlead fabric serve` beside it does not say "
        "it; empty: that of the NVIDIA driver loaded there, which a Manager must equal",
    )
    vm_image: str = row(
        "",
        text="FOLDER@sha256:HEX, the image of the Service VM that `fairlead fabric machine` runs on this node, and the "
        "agent then reaches as nvswitch:6667; empty: another program starts the Service VM",
    )
    vm_memory_mib: int = row(4096, unit="MiB", text="memory of that machine")
    vm_processors: int = row(2, text="processors of that machine")
    vm_start_s: float = row(300.0, unit="s", text="longest time until that machine's agent says that it lives")
    vm_silence_s: float = row(
        120.0,
        unit="s",
        text="how long that machine may say nothing before it is ended and started again, with which NVLink of every "
        "tenant ends",
    )
    vm_namespace: str = row(
        "",
        text="namespace whose pods may have this node's NVSwitches (nvidia.com/nvswitch, or node.vfio_switch_alias), "
        "all of them at once, as a Service VM of Kata's has; needs node.vfio; empty: no pod is offered one",
    )
    guest_driver: str = row(
        "",
        text="version of the NVIDIA driver in the virtual machines of tenants on this node (of the image that Kata "
        "boots); a Manager of another version has slots of several GPUs refused; empty: it is not compared",
    )


@frozen
class MeteringSettings:
    """What GPUs cost, for `fairlead usage`: a cluster's administrator sets it where the verb runs."""

    prices: str = row(
        "", text="prices of an hour of a GPU, the first that fits counts, as `H100=2.50,A100=1.20,*=0.50`; empty: none"
    )
    currency: str = row("USD", text="currency of the prices, three letters of ISO 4217")


@frozen
class KubeletSettings:
    """The embedded kubelet."""

    resync_s: float = row(5.0, unit="s", text="longest time until a container changed behind our back is noticed")
    backoff_s: float = row(10.0, unit="s", text="first wait before a crashed container restarts; doubles to 300 s")
    endpoint_grace_s: float = row(
        300.0, unit="s", text="how long a vanished plugin's resource stays in the Node's capacity, with 0 allocatable"
    )
    plugin_timeout_s: float = row(
        30.0, unit="s", text="longest time for one call of a device plugin; its pods then fail with PluginTimeout"
    )
    driver_timeout_s: float = row(
        45.0, unit="s", text="longest time for one call of a DRA driver; its pods then wait, and it is called again"
    )
    driver_grace_s: float = row(
        30.0, unit="s", text="how long a vanished DRA driver's ResourceSlices stay on this node"
    )
    max_pods: int = row(110, text="pods this node runs at once")


@frozen
class ClusterSettings:
    """Selects the Kubernetes cluster of the agent, the scheduler and the controller, and their credentials."""

    kubeconfig: Path | None = row(
        None, text="kubeconfig file; default: KUBECONFIG, ~/.kube/config, else the pod's account"
    )
    context: str = row("", text="context of the kubeconfig; empty: its current one")
    namespace: str = row("fairlead", text="namespace of Fairlead's own objects: leases, configuration")
    identity: str = row("", text="name of this process in elections; empty: host name and a random end")
    monitor: str = row("", text="host:port of /healthz, /readyz and /metrics; empty: none")


@frozen
class LogSettings:
    """Logs of every process, on standard error."""

    level: str = row("info", text="least severe level shown", choices=("debug", "info", "warning", "error"))
    format: str = row(
        "auto",
        text="console on a terminal, JSON otherwise; plain: console without colours, as NO_COLOR and TERM=dumb have it",
        choices=("auto", "console", "plain", "json"),
    )


@frozen
class DebugSettings:
    """Fault injection for tests; leave alone elsewhere."""

    crash_at: str = row("", text="name of the crash point at which the process kills itself (SIGKILL)")


@frozen
class Settings:
    """All groups."""

    state: StateSettings = field(default_factory=StateSettings)
    api: APISettings = field(default_factory=APISettings)
    console: ConsoleSettings = field(default_factory=ConsoleSettings)
    session: SessionSettings = field(default_factory=SessionSettings)
    ssh: SSHSettings = field(default_factory=SSHSettings)
    history: HistorySettings = field(default_factory=HistorySettings)
    database: DatabaseSettings = field(default_factory=DatabaseSettings)
    oidc: OIDCSettings = field(default_factory=OIDCSettings)
    webhooks: WebhookSettings = field(default_factory=WebhookSettings)
    mail: MailSettings = field(default_factory=MailSettings)
    notify: NotifySettings = field(default_factory=NotifySettings)
    silicon: SiliconSettings = field(default_factory=SiliconSettings)
    engine: EngineSettings = field(default_factory=EngineSettings)
    node: NodeSettings = field(default_factory=NodeSettings)
    plugin: PluginSettings = field(default_factory=PluginSettings)
    labels: LabelSettings = field(default_factory=LabelSettings)
    health: HealthSettings = field(default_factory=HealthSettings)
    lease: LeaseSettings = field(default_factory=LeaseSettings)
    fabric: FabricSettings = field(default_factory=FabricSettings)
    metering: MeteringSettings = field(default_factory=MeteringSettings)
    kubelet: KubeletSettings = field(default_factory=KubeletSettings)
    control: ControlSettings = field(default_factory=ControlSettings)
    reserve: ReserveSettings = field(default_factory=ReserveSettings)
    idle: IdleSettings = field(default_factory=IdleSettings)
    cluster: ClusterSettings = field(default_factory=ClusterSettings)
    log: LogSettings = field(default_factory=LogSettings)
    debug: DebugSettings = field(default_factory=DebugSettings)
    given: frozenset[str] = field(default=frozenset(), compare=False)
    """Keys that a flag or a variable set: a configuration file that is followed does not change these."""

    @property
    def api_socket(self) -> Path:
        """The API's unix socket."""
        return self.api.socket or self.state.run / "api.sock"

    @property
    def fault_socket(self) -> Path:
        """The unix socket on which an agent takes faults for its simulated silicon."""
        return self.state.folder / "silicon" / "faults.sock"

    @property
    def claims_folder(self) -> Path:
        """The folder of named volumes, which only root may enter."""
        return self.state.folder / "volumes"

    @property
    def registries_folder(self) -> Path:
        """The folder of tenancies' registry credentials."""
        return self.state.folder / "registries"

    @property
    def lease_folder(self) -> Path:
        """The folder of the node's ledger and of the reports on its GPUs."""
        return self.state.folder / "lease"

    @property
    def fabric_secret(self) -> Path:
        """The file of the secret that the fabric's agent and its clients share."""
        return self.fabric.secret or self.state.folder / "fabric.secret"

    @property
    def kubelet_folder(self) -> Path:
        """The folder of kubelet.sock and of the plugins' sockets."""
        return self.node.kubelet_folder or self.state.run / "device-plugins"

    @property
    def plugin_registry(self) -> Path:
        """The folder of the sockets by which plugins, DRA drivers among them, register with the kubelet."""
        return self.kubelet_folder.parent / "plugins_registry"

    @property
    def mps_root(self) -> Path:
        """The folder of the MPS daemons."""
        return self.plugin.mps_root or self.state.folder / "mps"

    @property
    def pod_resources(self) -> Path:
        """The socket on which the kubelet says who holds which devices."""
        return self.node.pod_resources or self.kubelet_folder.parent / "pod-resources" / "kubelet.sock"


@functools.cache
def groups() -> Mapping[str, Any]:
    """Return the groups' classes by name; kept, since reading annotations compiles each of them."""
    return {name: kind for name, kind in typing.get_type_hints(Settings).items() if dataclasses.is_dataclass(kind)}


@functools.cache
def rows() -> tuple[Row, ...]:
    """Return every setting, in the order of this module."""
    hints = {group: typing.get_type_hints(kind) for group, kind in groups().items()}
    return tuple(
        _row(group, item, hints[group]) for group, kind in groups().items() for item in dataclasses.fields(kind)
    )


def _row(group: str, item: dataclasses.Field[Any], hints: Mapping[str, Any]) -> Row:
    meta = item.metadata
    return Row(
        group=group,
        name=item.name,
        type=hints[item.name],
        default=item.default,
        text=meta["text"],
        unit=meta["unit"],
        choices=meta["choices"],
    )
