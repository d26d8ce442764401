"""Pods that a tenant may try, and what is said of each: for our own admission and for a cluster's policy alike."""

from __future__ import annotations

from typing import Any, Final

Pod = dict[str, Any]


def spec(**more: Any) -> Pod:
    """Return a pod with one plain container, and more of its spec."""
    return {"spec": {"containers": [{"name": "main", "image": "localhost/box:1"}], **more}}


def container(**more: Any) -> Pod:
    """Return a pod whose only container has these fields too."""
    return {"spec": {"containers": [{"name": "main", "image": "localhost/box:1", **more}]}}


def secured(**context: Any) -> Pod:
    """Return a pod whose only container has this security context."""
    return container(securityContext=context)


def beside(kind: str, **context: Any) -> Pod:
    """Return a pod that has another container, `first`, with this security context."""
    return spec(**{kind: [{"name": "first", "image": "localhost/box:1", "securityContext": context}]})


def path(text: str) -> Pod:
    """Return a pod with a hostPath volume."""
    return spec(volumes=[{"name": "v", "hostPath": {"path": text}}])


def annotated(key: str, value: str = "x") -> Pod:
    """Return a plain pod with an annotation."""
    return {"metadata": {"annotations": {key: value}}, **spec()}


_PATHS: Final = (
    ("/", "/"), ("/.", "/"), ("//", "/"), ("/dev", "/dev"), ("/dev/", "/dev"), ("//dev/./nvidia0", "/dev/nvidia0"),
    ("/dev/nvidia0", "/dev/nvidia0"), ("/dev/nvidia-caps/nvidia-cap1", "/dev/nvidia-caps/nvidia-cap1"),
    ("/dev/dri/renderD128", "/dev/dri/renderD128"), ("/dev/kfd", "/dev/kfd"), ("/dev/vfio/7", "/dev/vfio/7"),
    ("/dev/char/195:0", "/dev/char/195:0"), ("/dev/mem", "/dev/mem"), ("/dev/block", "/dev/block"),
    ("/proc", "/proc"), ("/proc/1/root/dev", "/proc/1/root/dev"), ("/sys/fs/cgroup", "/sys/fs/cgroup"),
    ("/sys/", "/sys"), ("/var", "/var"), ("/var/run", "/run"), ("/var/run/cdi", "/run/cdi"), ("/run/cdi", "/run/cdi"),
    ("/etc/cdi", "/etc/cdi"), ("/etc", "/etc"), ("/etc/cron.d", "/etc/cron.d"), ("/etc/fairlead", "/etc/fairlead"),
    ("/etc/containerd", "/etc/containerd"), ("/var//run/./fairlead", "/run/fairlead"),
    ("/var/run/containerd/containerd.sock", "/run/containerd/containerd.sock"),
    ("/run/docker.sock", "/run/docker.sock"), ("/var/run/docker.sock", "/run/docker.sock"), ("/run/crio", "/run/crio"),
    ("/run/k3s", "/run/k3s"), ("/run/podman/podman.sock", "/run/podman/podman.sock"),
    ("/run/user/1000/podman", "/run/user/1000/podman"), ("/usr", "/usr"), ("/usr/bin", "/usr/bin"),
    ("/usr/libexec/fairlead", "/usr/libexec/fairlead"), ("/var/lib/fairlead", "/var/lib/fairlead"),
    ("/var/lib/fairlead/silicon/root/dev", "/var/lib/fairlead/silicon/root/dev"),
    ("/var/lib/kubelet", "/var/lib/kubelet"),
    ("/var/lib/kubelet/device-plugins", "/var/lib/kubelet/device-plugins"), ("/var/log", "/var/log"),
    ("/var/log/pods/acme_one", "/var/log/pods/acme_one"), ("/var/spool/cron", "/var/spool/cron"),
    ("/sysroot/ostree", "/sysroot/ostree"), ("/run/nri/nri.sock", "/run/nri/nri.sock"), ("/run/cilium", "/run/cilium"),
    ("/var/lib/etcd", "/var/lib/etcd"), ("/var/lib/cloud", "/var/lib/cloud"), ("/usr/src", "/usr/src"),
    ("/var/run/cri-dockerd.sock", "/run/cri-dockerd.sock"), ("/nix/store", "/nix/store"),
)  # fmt: skip

_UNCONFINED: Final = {"type": "Unconfined"}
_OWN: Final = {"type": "Localhost", "localhostProfile": "mine.json"}
_GPU: Final = {"limits": {"nvidia.com/gpu": "1"}}


def is_of_clusters(pod: Pod) -> bool:
    """Return whether a pod has a volume that one machine does not offer, or a claim that nobody made there."""
    kinds = {kind for volume in pod["spec"].get("volumes", []) for kind in volume}
    return bool(kinds - {"name", "hostPath", "emptyDir", "secret", "configMap", "downwardAPI", "projected", "image"})


REFUSED: Final[tuple[tuple[Pod, str], ...]] = (
    *((path(text), f"hostPath {shown} leads to GPU devices") for text, shown in _PATHS),
    (secured(privileged=True), "container main is privileged"),
    (beside("initContainers", privileged=True), "container first is privileged"),
    (secured(capabilities={"add": ["SYS_ADMIN"]}), "container main (SYS_ADMIN) adds capabilities"),
    (secured(capabilities={"add": ["ALL"]}), "container main (ALL) adds capabilities"),
    (secured(capabilities={"add": ["CAP_SYS_ADMIN"]}), "container main (CAP_SYS_ADMIN) adds capabilities"),
    (secured(capabilities={"add": ["SYS_RAWIO", "BPF", "CHOWN"]}), "container main (SYS_RAWIO, BPF) adds capabilities"),
    (beside("initContainers", capabilities={"add": ["MKNOD"]}), "container first (MKNOD) adds capabilities"),
    ({"spec": {**secured(procMount="Unmasked")["spec"], "hostUsers": False}}, "container main (Unmasked) asks"),
    (secured(seccompProfile=_UNCONFINED), "container main (Unconfined) asks for another system call filter"),
    (beside("initContainers", seccompProfile=_UNCONFINED), "container first (Unconfined) asks for another system call"),
    (spec(securityContext={"seccompProfile": _UNCONFINED}), "the pod's seccompProfile Unconfined"),
    (secured(appArmorProfile=_UNCONFINED), "container main (Unconfined) asks for another AppArmor profile"),
    (spec(securityContext={"appArmorProfile": _UNCONFINED}), "the pod's appArmorProfile Unconfined"),
    (secured(seLinuxOptions={"type": "spc_t"}), "container main (spc_t) asks for an SELinux type"),
    (spec(securityContext={"seLinuxOptions": {"type": "spc_t"}}), "the pod's SELinux type spc_t"),
    (spec(securityContext={"sysctls": [{"name": "kernel.msgmax", "value": "1"}]}), "sysctl kernel.msgmax reaches"),
    (spec(volumes=[{"name": "v", "nfs": {"server": "nas", "path": "/"}}]), "volume of the NFS server nas"),
    (spec(volumes=[{"name": "v", "iscsi": {"targetPortal": "nas:3260", "iqn": "iqn.2001-04.com.example:a", "lun": 0}}]),
     "volume of the iSCSI target nas:3260"),
    (secured(seccompProfile=_OWN), "container main (Localhost) asks for another system call filter"),
    (spec(securityContext={"seccompProfile": _OWN}), "the pod's seccompProfile Localhost"),
    (secured(appArmorProfile=_OWN), "container main (Localhost) asks for another AppArmor profile"),
    (spec(securityContext={"appArmorProfile": _OWN}), "the pod's appArmorProfile Localhost"),
    *((spec(volumes=[{"name": "v", **kind}]), "volume v is of a kind that a tenant's pod may not have") for kind in (
        {"flexVolume": {"driver": "example.com/root"}}, {"gitRepo": {"repository": "https://git.example/x"}},
        {"fc": {"targetWWNs": ["50060e801049cfd1"], "lun": 0}}, {"cephfs": {"monitors": ["10.0.0.1:6789"]}},
        {"glusterfs": {"endpoints": "nodes", "path": "/"}}, {"rbd": {"monitors": ["10.0.0.1:6789"], "image": "x"}},
        {"portworxVolume": {"volumeID": "x"}},
    )),
    (spec(volumes=[{"name": "v", "csi": {"driver": "csi.example.com"}}]), "volume of the driver csi.example.com"),
    *((container(**{probe: {kind: {"port": 80, "host": "169.254.169.254"}}}),
       f"container main (169.254.169.254) names a host in {probe}.{kind}.host")
      for probe in ("livenessProbe", "readinessProbe", "startupProbe") for kind in ("httpGet", "tcpSocket")),
    *((container(lifecycle={hook: {"httpGet": {"port": 10250, "host": "127.0.0.1"}}}),
       f"container main (127.0.0.1) names a host in lifecycle.{hook}.httpGet.host")
      for hook in ("postStart", "preStop")),
    *((container(lifecycle={hook: {"tcpSocket": {"port": 10250, "host": "127.0.0.1"}}}),
       f"container main (127.0.0.1) names a host in lifecycle.{hook}.tcpSocket.host")
      for hook in ("postStart", "preStop")),
    (
        container(resources={"limits": {"nvidia.com/nvswitch": "4"}}),
        "container main (nvidia.com/nvswitch) asks for NVSwitches, which route every tenant's NVLink",
    ),
    # a node may name them otherwise (`node.vfio_switch_alias`), and no policy knows each node's settings
    *((container(resources={"limits": {name: "4"}}), f"container main ({name}) asks for NVSwitches") for name in (
        "nvidia.com/nvswitch-h100", "nvidia.com/GH100_H100_NVSWITCH", "nvidia.com/my.NVSwitch",
    )),
    (spec(priorityClassName="system-node-critical"), "priorityClassName system-node-critical puts the pod before"),
    (spec(priorityClassName="system-cluster-critical"), "priorityClassName system-cluster-critical puts the pod"),
    (spec(volumes=[{"name": "v", "csi": {"driver": "nfs.csi.k8s.io"}}]), "volume of the driver nfs.csi.k8s.io"),
    (spec(hostPID=True), "hostPID shows the processes"),
    (spec(hostIPC=True), "hostIPC shows the shared memory"),
    (spec(hostNetwork=True), "hostNetwork reaches the node's own services"),
    (spec(runtimeClassName="nvidia"), "runtimeClassName nvidia obeys NVIDIA_VISIBLE_DEVICES"),
    *((annotated(key), f"annotation {key} asks an engine for devices") for key in (
        "cdi.k8s.io/gpus", "nvidia.cdi.k8s.io/gpu", "devices.noderesource.dev/container.main", "devices.nri.io/pod",
        "io.kubernetes.cri-o.Devices", "org.systemd.property.DeviceAllow", "run.oci.handler",
        "io.katacontainers.config.hypervisor.path", "devices.crio.io", "cpu-load-balancing.crio.io",
        "io.kubernetes.cri-o.userns-mode", "io.kubernetes.cri.container-type", "io.containerd.runc.v2.group",
        "dev.gvisor.spec.mount.data.type", "io.podman.annotations.privileged",
    )),
)  # fmt: skip
"""Pods, and words of their refusal."""

EPHEMERAL: Final[tuple[tuple[Pod, str], ...]] = (
    ({"privileged": True}, "container debug is privileged"),
    ({"capabilities": {"add": ["SYS_PTRACE"]}}, "container debug (SYS_PTRACE) adds capabilities"),
    ({"seccompProfile": _UNCONFINED}, "container debug (Unconfined) asks for another system call filter"),
)
"""Security contexts of an ephemeral container, and words of their refusal."""

TAKEN: Final[tuple[Pod, ...]] = (
    spec(volumes=[{"name": "a", "emptyDir": {}}, {"name": "b", "configMap": {"name": "c", "optional": True}}]),
    container(livenessProbe={"httpGet": {"port": 80, "httpHeaders": [{"name": "Host", "value": "x"}]}}),
    container(readinessProbe={"tcpSocket": {"port": 80}}),
    secured(capabilities={"add": ["NET_BIND_SERVICE"], "drop": ["ALL"]}),
    secured(privileged=False, procMount="Default", seccompProfile={"type": "RuntimeDefault"}),
    spec(volumes=[{"name": "v", "persistentVolumeClaim": {"claimName": "export"}}]),
    spec(volumes=[{"name": "v", "csi": {"driver": "secrets-store.csi.k8s.io", "readOnly": True}}]),
    spec(hostPID=False, hostIPC=False, hostNetwork=False),
    spec(securityContext={"sysctls": [{"name": "net.ipv4.tcp_syncookies", "value": "1"}]}),
    container(resources=_GPU),
    container(resources=_GPU, env=[{"name": "NVIDIA_DRIVER_CAPABILITIES", "value": "all"}]),
    annotated("example.com/cdi.k8s.io"),
    annotated("mycdi.k8s.iox/gpu"),
)
"""Pods that every rule admits."""

LIMITS: Final = {
    "fairlead.dev/allowed-images": "localhost/box, registry.example:5000/team/ ,localhost/exact:1, host",
    "fairlead.dev/allowed-runtime-classes": "gvisor, kata",
    "fairlead.dev/allowed-host-paths": "/data/team, /srv/models, /var/log/mine, /devices, /home/nvidia, /library, "
    "/run/mine, /var/running",
}
"""Annotations of a namespace whose pods may have these images, classes and folders of nodes alone."""


def imaged(reference: str) -> Pod:
    """Return a pod whose only container has this image."""
    return {"spec": {"containers": [{"name": "main", "image": reference}]}}


def image_volume(reference: str) -> Pod:
    """Return a pod with a volume that is an image."""
    return spec(volumes=[{"name": "v", "image": {"reference": reference}}])


_IMAGE: Final = "has an image that is not among those of this namespace"
UNLISTED: Final[tuple[tuple[Pod, str], ...]] = (
    *((imaged(text), f"container main ({text}) {_IMAGE}") for text in (
        "localhost/boxes:1", "localhost/box/deeper:1", "localhost/exact:2", "registry.example:5000/teams/x",
        "registry.example:5000/team", "docker.io/localhost/box:1", "host:5000/evil", "localhost/box:5000/evil",
    )),
    (spec(initContainers=[{"name": "first", "image": "evil/x:1"}]), f"container first (evil/x:1) {_IMAGE}"),
    (spec(runtimeClassName="runc"), "runtimeClassName runc is not among those of this namespace (gvisor, kata)"),
    (image_volume("evil/x:1"), "image volume evil/x:1 is not among the images of this namespace"),
)  # fmt: skip
"""Pods that a namespace with `LIMITS` refuses, and words of the refusal; others take them."""

UNLISTED_PATHS: Final[tuple[tuple[Pod, str], ...]] = tuple(
    (path(text), f"hostPath {shown} is not among those of this namespace (/data/team, /srv/models,")
    for text, shown in (
        ("/data", "/data"),
        ("/data/team/link", "/data/team/link"),
        ("/data/teams", "/data/teams"),
        ("/home", "/home"),
        ("/srv", "/srv"),
    )
)
"""Folders that it refuses, and every namespace without a list too."""

LISTED: Final[tuple[Pod, ...]] = (
    imaged("localhost/box"),
    imaged("localhost/box:1"),
    imaged(f"localhost/box:1@sha256:{'0' * 64}"),
    imaged(f"localhost/box@sha256:{'0' * 64}"),
    imaged("localhost/exact:1"),
    imaged("registry.example:5000/team/deep/x:2"),
    imaged("host:5000"),
    image_volume("registry.example:5000/team/model:7"),
    path("/data/team"),
    path("/srv/models"),
    path("/var/log/mine"),
    path("/devices"),
    path("/home/nvidia"),
    path("/library"),
    path("/run/mine"),
    path("/var/running"),
)
"""Pods that it takes."""
