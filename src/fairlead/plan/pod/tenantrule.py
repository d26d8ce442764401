"""Lists what a tenant's pod may not ask for, and judges a pod by the list.

`RULES` is the only place where these rules stand. On a cluster they are CEL in the chart's policy `device-access`,
which `tools/render_admission.py` writes from this table; standalone `problems` evaluates the same table over the pod as
it was written. The cluster tests and the unit tests try the pods of `tests/tenantpods.py`. The label `TENANCY` makes a
namespace a tenant's.

The rules keep GPUs to the allocation and tenants off the node. They judge texts: where a link inside a hostPath volume
leads is not seen here; our own kubelet judges that by `leads_astray`, once the engine has mounted it. They are a net
under Pod Security, whose `baseline` refuses more. What images and runtime classes a tenant may use, annotations of its
namespace say; without them these rules do not limit them. Folders of nodes are refused unless an annotation lists them.
What Kubernetes may add later is refused until it is listed here: kinds of volumes, profiles, priority classes.
Source: Kubernetes Pod Security Standards, "Baseline"; k8s.io/api/core/v1 types.go.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead.model import cdikind

TENANCY: Final = "fairlead.dev/tenancy"
"""Label of a tenant's namespace; any value."""

ALLOWED_IMAGES: Final = "fairlead.dev/allowed-images"
"""Annotation of a tenant's namespace: images that its pods may have, by commas, as `_is_listed` reads them."""

ALLOWED_CLASSES: Final = "fairlead.dev/allowed-runtime-classes"
"""Annotation of a tenant's namespace: RuntimeClasses that its pods may name, by commas."""

ALLOWED_PATHS: Final = "fairlead.dev/allowed-host-paths"
"""Annotation of a tenant's namespace: folders of nodes that its pods may mount, by commas; each is that folder alone.

Without it there are none. `/` lists every folder that `PATHS` does not refuse.

A link that a tenant makes inside such a folder is a path that is not listed, so it is never followed on the node.
"""

CONTAINERS: Final = ("containers", "initContainers", "ephemeralContainers")
"""Lists of a pod's spec whose members every container rule judges."""

ALIASES: Final = {"/var/run": "/run"}
"""Folders that are a link on every node, and where it leads: both spellings are one path."""

PATHS: Final = (
    "/bin/", "/boot/", "/dev/", "/etc/", "/lib/", "/lib32/", "/lib64/", "/libx32/", "/nix/", "/opt/cni/",
    "/opt/fairlead/", "/opt/nvidia/", "/ostree/", "/proc/", "/root/", "/run/cdi/", "/run/cilium/", "/run/containerd/",
    "/run/cri-dockerd", "/run/crio", "/run/dbus/", "/run/docker", "/run/fairlead/", "/run/k0s/", "/run/k3s/",
    "/run/nri/", "/run/nvidia", "/run/podman/", "/run/systemd/", "/run/udev/", "/run/user/", "/sbin/", "/snap/",
    "/sys/", "/sysroot/", "/usr/bin/", "/usr/lib/", "/usr/lib32/", "/usr/lib64/", "/usr/libexec/", "/usr/local/",
    "/usr/sbin/", "/usr/src/", "/var/lib/cloud/", "/var/lib/cni/", "/var/lib/containerd/", "/var/lib/containers/",
    "/var/lib/crio/", "/var/lib/docker/", "/var/lib/etcd/", "/var/lib/fairlead/", "/var/lib/k0s/",
    "/var/lib/kubelet/", "/var/lib/rancher/", "/var/log/containers/", "/var/log/pods/", "/var/opt/", "/var/roothome/",
    "/var/snap/", "/var/spool/cron/", "/var/usrlocal/",
)  # fmt: skip
"""Beginnings of a node's paths that lead to devices, to what grants them, or to what runs as root there.

One that ends with `/` is that folder and what is in it. The kubelet reads its logs as root and follows links in them.
"""

CAPABILITIES: Final = (
    "AUDIT_WRITE", "CHOWN", "DAC_OVERRIDE", "FOWNER", "FSETID", "KILL", "NET_BIND_SERVICE", "SETFCAP", "SETGID",
    "SETPCAP", "SETUID", "SYS_CHROOT",
)  # fmt: skip
"""What every engine gives a container by itself."""

RUNTIME_CLASSES: Final = ("nvidia", "nvidia-cdi", "nvidia-legacy")
"""Classes of NVIDIA's own handlers, by the names its operator gives them: they obey the environment of any image."""

SYSCTLS: Final = (
    "kernel.shm_rmid_forced", "net.ipv4.ip_local_port_range", "net.ipv4.ip_local_reserved_ports",
    "net.ipv4.ip_unprivileged_port_start", "net.ipv4.ping_group_range", "net.ipv4.tcp_fin_timeout",
    "net.ipv4.tcp_keepalive_intvl", "net.ipv4.tcp_keepalive_probes", "net.ipv4.tcp_keepalive_time",
    "net.ipv4.tcp_rmem", "net.ipv4.tcp_syncookies", "net.ipv4.tcp_wmem",
)  # fmt: skip
"""Those that stay inside the pod. Source: kubelet pkg/kubelet/sysctl/safe_sysctls.go."""

SELINUX_TYPES: Final = ("", "container_t", "container_init_t", "container_kvm_t", "container_engine_t")

ANNOTATIONS: Final = (
    r"^(([-a-z0-9]+[.])*cdi[.]k8s[.]io/"  # containerd and CRI-O: CDI devices
    r"|([-a-z0-9]+[.])*(noderesource[.]dev|nri[.]io)/"  # NRI's device injector
    r"|io[.]kubernetes[.]cri"  # CRI-O's and containerd's own: devices, capabilities, shared memory, user namespaces
    r"|([-a-z0-9]+[.])*(crio|cri-o|podman|containerd|docker|gvisor)[.](io|dev|com)"  # devices.crio.io, io.containerd.…
    r"|(io[.]containerd|io[.]podman|io[.]container|dev[.]gvisor|com[.]docker)[.]"
    r"|org[.]systemd[.]property[.]"  # runc and crun: DeviceAllow of the container's unit
    r"|run[.]oci[.]"  # crun's handlers and hooks
    r"|io[.]katacontainers[.]"  # a virtual machine's hypervisor and kernel
    r"|(container[.])?seccomp[.]security[.]alpha[.]kubernetes[.]io/"
    r"|container[.]apparmor[.]security[.]beta[.]kubernetes[.]io/)"
)
"""Keys by which engines take devices or rights, past every field: whole families of them, since engines add new ones.

Read alike by RE2 and by `re`.
"""

SWITCHES: Final = rf"(?i)^nvidia[.]com/.*{cdikind.SWITCH_WORD}"
"""Resources that are the Service VM's alone: each node's may have another name, and every such name has the word."""

VOLUMES: Final = (
    "configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "hostPath", "image", "iscsi", "nfs",
    "persistentVolumeClaim", "projected", "secret",
)  # fmt: skip
"""Kinds of volumes that a tenant's pod may have, as far as the rules of some of them let it."""

CSI_DRIVERS: Final = ("csi.cert-manager.io", "csi.spiffe.io", "secrets-store.csi.k8s.io")
"""Drivers of volumes inside a pod: those that take no server, no path and no credentials from it."""

PROFILES: Final = ("", "RuntimeDefault")

PRIORITY_CLASSES: Final[tuple[str, ...]] = ()
"""A class puts a pod before other tenants' pods, and may end theirs."""

_PROBES: Final = tuple(
    f"{place}.{kind}.host"
    for place in ("livenessProbe", "readinessProbe", "startupProbe", "lifecycle.postStart", "lifecycle.preStop")
    for kind in ("httpGet", "tcpSocket")
)
"""Where a container may name whom the kubelet connects to, from the node's own network."""


@dataclass(frozen=True, slots=True)
class IsSet:
    """Refuses a boolean that is true."""


@dataclass(frozen=True, slots=True)
class NotIn:
    """Refuses a text that is not among these."""

    allowed: tuple[str, ...]
    value: str = ""
    """The chart's value below `admission.deviceAccess` that holds the list; empty: the list is fixed."""


@dataclass(frozen=True, slots=True)
class In:
    """Refuses a text that is among these."""

    refused: tuple[str, ...]
    value: str = ""
    """As in `NotIn`."""


@dataclass(frozen=True, slots=True)
class LeadsTo:
    """Refuses a path that is, lies in, or lies above one of these."""

    guarded: tuple[str, ...]
    value: str = ""
    """As in `NotIn`."""


@dataclass(frozen=True, slots=True)
class Matches:
    """Refuses a text that matches."""

    pattern: str


@dataclass(frozen=True, slots=True)
class OfKind:
    """Refuses an object, by its name, that has none of these members, or one beside them."""

    allowed: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Unlisted:
    """Refuses a text that an annotation of the namespace does not list."""

    annotation: str
    is_closed: bool = False
    """Whether a missing annotation lists nothing, not everything. `/` lists all of a closed one."""
    is_image: bool = False
    """Whether an entry lists more than itself: `host/team/` what is below it, `host/team/app` its tags and digests."""


Check = IsSet | NotIn | In | LeadsTo | Matches | OfKind | Unlisted


@dataclass(frozen=True, slots=True, kw_only=True)
class Rule:
    """One thing that is refused."""

    name: str
    field: str
    """Path below the pod, or below each container; `[*]` is every member, a last `.*` every key."""
    refuses: Check
    message: str
    """What is wrong and the next step; `{found}`: the values, by container; `{allowed}`: the list of the check."""
    per_container: bool = False
    after_creation: bool = False
    """Whether the field can change while the pod lives, so that updates are judged as well."""


RULES: Final = (
    Rule(
        name="refused",
        field="spec.volumes[*].hostPath.path",
        refuses=LeadsTo(PATHS, "paths"),
        message="hostPath {found} leads to GPU devices or to what grants them; ask for GPUs in resources.limits, and "
        "for space in an emptyDir or a persistent volume claim",
    ),
    Rule(
        name="unlistedPath",
        field="spec.volumes[*].hostPath.path",
        refuses=Unlisted(ALLOWED_PATHS, is_closed=True),
        message="hostPath {found} is not among those of this namespace ({allowed}); write it as listed, or ask the "
        "administrator for it (annotation fairlead.dev/allowed-host-paths of the namespace)",
    ),
    Rule(
        name="otherVolume",
        field="spec.volumes[*]",
        refuses=OfKind(VOLUMES),
        message="volume {found} is of a kind that a tenant's pod may not have; allowed are {allowed}",
    ),
    Rule(
        name="server",
        field="spec.volumes[*].nfs.server",
        refuses=NotIn(()),
        message="volume of the NFS server {found}: a tenant's pods name no server; mount a persistent volume claim, or "
        "ask the administrator for an export",
    ),
    Rule(
        name="target",
        field="spec.volumes[*].iscsi.targetPortal",
        refuses=NotIn(()),
        message="volume of the iSCSI target {found}: a tenant's pods name no server; mount a persistent volume claim",
    ),
    Rule(
        name="driver",
        field="spec.volumes[*].csi.driver",
        refuses=NotIn(CSI_DRIVERS, "csiDrivers"),
        message="volume of the driver {found}, which may take a server or a path of the node from the pod; allowed are "
        "{allowed}; mount a persistent volume claim",
    ),
    Rule(
        name="privileged",
        field="securityContext.privileged",
        refuses=IsSet(),
        message="container {found} is privileged and would see every GPU of its node; ask for GPUs in resources.limits",
        per_container=True,
    ),
    Rule(
        name="capable",
        field="securityContext.capabilities.add[*]",
        refuses=NotIn(CAPABILITIES, "capabilities"),
        message="container {found} adds capabilities with which it could give itself devices; allowed are {allowed}",
        per_container=True,
    ),
    Rule(
        name="unmasked",
        field="securityContext.procMount",
        refuses=NotIn(("", "Default")),
        message="container {found} asks for an unmasked /proc; leave procMount out",
        per_container=True,
    ),
    Rule(
        name="unfiltered",
        field="securityContext.seccompProfile.type",
        refuses=NotIn(PROFILES),
        message="container {found} asks for another system call filter than the runtime's; leave seccompProfile "
        "out, or ask for RuntimeDefault",
        per_container=True,
    ),
    Rule(
        name="unfilteredPod",
        field="spec.securityContext.seccompProfile.type",
        refuses=NotIn(PROFILES),
        message="the pod's seccompProfile {found} is not the runtime's own; leave it out, or ask for RuntimeDefault",
    ),
    Rule(
        name="unconfined",
        field="securityContext.appArmorProfile.type",
        refuses=NotIn(PROFILES),
        message="container {found} asks for another AppArmor profile than the runtime's; leave appArmorProfile out, "
        "or ask for RuntimeDefault",
        per_container=True,
    ),
    Rule(
        name="unconfinedPod",
        field="spec.securityContext.appArmorProfile.type",
        refuses=NotIn(PROFILES),
        message="the pod's appArmorProfile {found} is not the runtime's own; leave it out, or ask for RuntimeDefault",
    ),
    Rule(
        name="relabelled",
        field="securityContext.seLinuxOptions.type",
        refuses=NotIn(SELINUX_TYPES),
        message="container {found} asks for an SELinux type that is not a container's; leave seLinuxOptions.type out",
        per_container=True,
    ),
    Rule(
        name="relabelledPod",
        field="spec.securityContext.seLinuxOptions.type",
        refuses=NotIn(SELINUX_TYPES),
        message="the pod's SELinux type {found} is not a container's; leave seLinuxOptions.type out",
    ),
    Rule(
        name="sysctls",
        field="spec.securityContext.sysctls[*].name",
        refuses=NotIn(SYSCTLS),
        message="sysctl {found} reaches beyond the pod; leave it out",
    ),
    *(
        Rule(
            name=f"host{number}",
            field=field,
            refuses=NotIn(("",)),
            message=f"container {{found}} names a host in {field}, which the kubelet would connect to from the node's "
            "own network; leave it out, and the pod's own address is asked",
            per_container=True,
        )
        for number, field in enumerate(_PROBES)
    ),
    Rule(
        name="priority",
        field="spec.priorityClassName",
        refuses=NotIn(PRIORITY_CLASSES, "priorityClasses"),
        message="priorityClassName {found} puts the pod before those of other tenants and may end theirs; leave it "
        "out, or ask the administrator to list it (admission.deviceAccess.priorityClasses)",
    ),
    Rule(
        name="hostPID",
        field="spec.hostPID",
        refuses=IsSet(),
        message="hostPID shows the processes of every tenant and of the node; leave it out",
    ),
    Rule(
        name="hostIPC",
        field="spec.hostIPC",
        refuses=IsSet(),
        message="hostIPC shows the shared memory of other tenants and of the node; leave it out",
    ),
    Rule(
        name="hostNetwork",
        field="spec.hostNetwork",
        refuses=IsSet(),
        message="hostNetwork reaches the node's own services and sockets; leave it out, and name ports by a Service",
    ),
    Rule(
        name="handlers",
        field="spec.runtimeClassName",
        refuses=In(RUNTIME_CLASSES, "runtimeClasses"),
        message="runtimeClassName {found} obeys NVIDIA_VISIBLE_DEVICES of any image, past the allocation; leave it out",
    ),
    Rule(
        name="unlistedClass",
        field="spec.runtimeClassName",
        refuses=Unlisted(ALLOWED_CLASSES),
        message="runtimeClassName {found} is not among those of this namespace ({allowed}); leave it out, or ask the "
        "administrator for it",
    ),
    Rule(
        name="unlistedImage",
        field="image",
        refuses=Unlisted(ALLOWED_IMAGES, is_image=True),
        message="container {found} has an image that is not among those of this namespace ({allowed}); write it as "
        "listed, or ask the administrator for it",
        per_container=True,
        after_creation=True,
    ),
    Rule(
        name="unlistedVolume",
        field="spec.volumes[*].image.reference",
        refuses=Unlisted(ALLOWED_IMAGES, is_image=True),
        message="image volume {found} is not among the images of this namespace ({allowed}); write it as listed, or "
        "ask the administrator for it",
    ),
    Rule(
        name="annotated",
        field="metadata.annotations.*",
        refuses=Matches(ANNOTATIONS),
        message="annotation {found} asks an engine for devices or rights past the allocation; leave it out, and ask "
        "for GPUs in resources.limits",
        after_creation=True,
    ),
    Rule(
        name="switches",
        field="resources.limits.*",
        refuses=Matches(SWITCHES),
        message="container {found} asks for NVSwitches, which route every tenant's NVLink; ask for GPUs",
        per_container=True,
    ),
)


def problems(pod: Mapping[str, object], annotations: Mapping[str, str] | None = None) -> tuple[str, ...]:
    """Return what a tenant's pod asks for and may not, in the order of the rules.

    Args: pod: as it was written, in JSON's values. What is not of the type that its field has is refused as well.
          annotations: of its namespace.
    """
    given = annotations or {}
    return tuple(
        rule.message.replace("{found}", found).replace("{allowed}", _allowed(rule.refuses, given))
        for rule in RULES
        if (found := ", ".join(_found(rule, pod, given)))
    )


def leads_astray(path: str, guarded: tuple[str, ...]) -> str:
    """Return why a tenant's volume may not be what this path leads to, links and all; empty: it may.

    Args: path: canonical.   guarded: folders of this node that are guarded beside `PATHS`, by their canonical paths.
    """
    (rule,) = (one for one in RULES if isinstance(one.refuses, LeadsTo))
    every = (*PATHS, *(f"{one.rstrip('/')}/" for one in guarded))
    return rule.message.replace("{found}", path) if _leads_to(canonical(path), every) else ""


def _found(rule: Rule, pod: Mapping[str, object], annotations: Mapping[str, str]) -> Iterator[str]:
    """Yield what a rule refuses: values, or containers with their values."""
    if not rule.per_container:
        yield from _refused(rule, pod, annotations)
        return
    for kind in CONTAINERS:
        for item in _values(pod, f"spec.{kind}[*]"):
            values = ", ".join(_refused(rule, item, annotations))
            name = str(item.get("name", "")) if isinstance(item, Mapping) else str(item)
            if values:
                yield name if isinstance(rule.refuses, IsSet) else f"{name} ({values})"


def _refused(rule: Rule, item: object, annotations: Mapping[str, str]) -> Iterator[str]:
    for value in _values(item, rule.field):
        shown = canonical(value) if isinstance(rule.refuses, LeadsTo) and isinstance(value, str) else value
        check = rule.refuses
        if _is_unlisted(check, shown, annotations) if isinstance(check, Unlisted) else _is_refused(check, shown):
            yield str(shown.get("name", "")) if isinstance(shown, Mapping) else str(shown)


def _values(item: object, path: str) -> Iterator[object]:
    """Yield the values at a path; one that has a member too few for the path is yielded itself, to be refused."""
    step, _, rest = path.partition(".")
    if step == "*":
        yield from item if isinstance(item, Mapping) else (item,)
        return
    name, is_each = step.removesuffix("[*]"), step.endswith("[*]")
    if not isinstance(item, Mapping):
        yield item
        return
    found = item.get(name)
    if found is None:
        return
    for value in found if is_each and isinstance(found, list | tuple) else (found,):
        if rest:
            yield from _values(value, rest)
        else:
            yield value


def _is_unlisted(check: Unlisted, value: object, annotations: Mapping[str, str]) -> bool:
    listed = annotations.get(check.annotation, "" if check.is_closed else None)
    if listed is None or (check.is_closed and "/" in _entries(listed)):
        return False
    return not (isinstance(value, str) and any(_is_listed(value, one, check.is_image) for one in _entries(listed)))


def _is_refused(check: Check, value: object) -> bool:
    match check, value:
        case IsSet(), bool():
            return value
        case NotIn(words) | In(words), str():
            return (value in words) is isinstance(check, In)
        case LeadsTo(guarded), str():
            return _leads_to(value, guarded)
        case Matches(pattern), str():
            return re.match(pattern, value) is not None
        case OfKind(allowed), Mapping():
            kinds = {name for name, given in value.items() if name != "name" and given is not None}
            return not kinds or not kinds <= set(allowed)
        case _:
            return True


def _entries(listed: str) -> Iterator[str]:
    return (one for part in listed.split(",") if (one := part.strip()))


def _is_listed(value: str, entry: str, is_image: bool) -> bool:
    if value == entry or not is_image:
        return value == entry
    if entry.endswith("/"):
        return value.startswith(entry)
    rest = value.removeprefix(entry)
    # `host` does not list `host:5000/image`: what follows is a port, not a tag.
    return value.startswith((f"{entry}:", f"{entry}@")) and "/" not in rest


def _allowed(check: Check, annotations: Mapping[str, str]) -> str:
    if isinstance(check, Unlisted):
        return annotations.get(check.annotation, "")
    return ", ".join(check.allowed) if isinstance(check, NotIn | OfKind) else ""


def canonical(path: str) -> str:
    """Return the one spelling of a path: without empty and `.` parts, by the folder's own name instead of a link's."""
    plain = "/" + "/".join(part for part in path.split("/") if part not in {"", "."})
    for link, target in ALIASES.items():
        if plain == link or plain.startswith(f"{link}/"):
            return target + plain.removeprefix(link)
    return plain


def _leads_to(path: str, guarded: tuple[str, ...]) -> bool:
    above = path if path == "/" else f"{path}/"
    return ".." in path.split("/") or any(f"{path}/".startswith(one) or one.startswith(above) for one in guarded)
