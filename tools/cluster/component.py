"""What each program of a cluster is started with: certificates, configuration files, command lines.

Pure but for `write_files`; the reasons for flags that are not obvious stand beside them. Addresses are the machine's
own: pods and services may use the same ranges in every cluster, because no cluster sees another.
"""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from tools.cluster import certificate, image

SERVICE_RANGE: Final = "10.96.0.0/16"
FIRST_SERVICE: Final = "10.96.0.1"
POD_RANGE: Final = "10.244.0.0/16"
_BRIDGE_RANGE: Final = "10.244.0.0/24"
PORT: Final = 6443
_ETCD: Final = "http://127.0.0.1:2379"
PLANE: Final = ("etcd", "kube-apiserver", "kube-controller-manager", "kube-scheduler")
NODE: Final = ("containerd", "kubelet", "kube-proxy")
NAMES: Final = (*PLANE, *NODE)


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """What the files and command lines depend on."""

    folder: Path
    address: str
    node: str
    cgroup: str
    version: str

    @property
    def server(self) -> str:
        """URL of the API server, from the host and from the machine."""
        return f"https://{self.address}:{PORT}"

    @property
    def certificates(self) -> Path:
        return self.folder / "certificates"

    @property
    def configs(self) -> Path:
        return self.folder / "configs"

    @property
    def audit(self) -> Path:
        """What service accounts asked of the API server, and how it answered: one JSON object a line."""
        return self.folder / "logs" / "audit.json"

    def config(self, name: str) -> str:
        return str(self.configs / name)

    def certificate(self, name: str) -> str:
        return str(self.certificates / name)


def pairs(site: Site) -> tuple[certificate.Pair, ...]:
    """Return the certificates of a cluster; who each client is decides what it may do."""
    names = ("kubernetes", "kubernetes.default", "kubernetes.default.svc", "localhost")
    server = tuple(f"DNS:{name}" for name in names)
    addresses = tuple(f"IP:{address}" for address in (site.address, FIRST_SERVICE, "127.0.0.1"))
    return (
        certificate.Pair(name="kube-apiserver", user="kube-apiserver", addresses=server + addresses),
        certificate.Pair(name="kubelet-server", user=site.node, addresses=(f"DNS:{site.node}", f"IP:{site.address}")),
        certificate.Pair(name="apiserver-kubelet", user="kube-apiserver-kubelet-client", groups=("system:masters",)),
        certificate.Pair(name="front-proxy", user="front-proxy-client"),
        certificate.Pair(name="admin", user="kubernetes-admin", groups=("system:masters",)),
        certificate.Pair(name="kube-controller-manager", user="system:kube-controller-manager"),
        certificate.Pair(name="kube-scheduler", user="system:kube-scheduler"),
        certificate.Pair(name="kube-proxy", user="system:kube-proxy"),
        certificate.Pair(name="kubelet", user=f"system:node:{site.node}", groups=("system:nodes",)),
    )


def write_files(site: Site, disk: Path) -> None:
    """Write certificates and configuration files below the site's folder, and the CNI network to the node's disk."""
    certificate.make(site.certificates, pairs(site))
    site.configs.mkdir()
    for name in ("admin", "kube-controller-manager", "kube-scheduler", "kube-proxy", "kubelet"):
        content = certificate.kubeconfig(site.certificates, name, server=site.server)
        path = site.configs / f"{name}.kubeconfig"
        path.touch(mode=0o600)
        path.write_text(json.dumps(content, indent=1))
    _write(site.configs / "kubelet.yaml", _kubelet(site))
    _write(site.configs / "kube-proxy.yaml", _kube_proxy(site))
    _write(site.configs / "audit.yaml", _AUDIT)
    (site.configs / "containerd.toml").write_text(_CONTAINERD)
    networks = disk / "etc" / "cni" / "net.d"
    networks.mkdir(parents=True)
    _write(networks / "10-bridge.conflist", _NETWORK)


def _write(path: Path, content: Mapping[str, Any]) -> None:
    path.write_text(json.dumps(content, indent=1))  # YAML is a superset


def _kubelet(site: Site) -> Mapping[str, Any]:
    return {
        "apiVersion": "kubelet.config.k8s.io/v1beta1",
        "kind": "KubeletConfiguration",
        "authentication": {
            "anonymous": {"enabled": False},
            "webhook": {"enabled": True},
            "x509": {"clientCAFile": site.certificate("ca.crt")},
        },
        "authorization": {"mode": "Webhook"},
        "tlsCertFile": site.certificate("kubelet-server.crt"),
        "tlsPrivateKeyFile": site.certificate("kubelet-server.key"),
        "containerRuntimeEndpoint": "unix:///run/containerd/containerd.sock",
        "cgroupDriver": "cgroupfs",
        "cgroupRoot": f"/{site.cgroup}",
        "failCgroupV1": False,
        "enforceNodeAllocatable": ["pods"],
        "failSwapOn": False,
        "resolvConf": "",
        "imageGCHighThresholdPercent": 100,
        "evictionHard": {"memory.available": "50Mi", "nodefs.available": "1%", "imagefs.available": "1%"},
        # 10 s by default: a test that waits for allocatable would wait that long
        "nodeStatusUpdateFrequency": "1s",
        "podsPerCore": 0,
        "maxPods": 250,
    }


def _kube_proxy(site: Site) -> Mapping[str, Any]:
    return {
        "apiVersion": "kubeproxy.config.k8s.io/v1alpha1",
        "kind": "KubeProxyConfiguration",
        "mode": "iptables",
        "clusterCIDR": POD_RANGE,
        "hostnameOverride": site.node,
        "clientConnection": {"kubeconfig": site.config("kube-proxy.kubeconfig")},
        # zeros leave the whole kernel's limits as they are
        "conntrack": {"maxPerCore": 0, "min": 0, "tcpEstablishedTimeout": "0s", "tcpCloseWaitTimeout": "0s"},
    }


# What Kubernetes' own controllers ask fills the log, and is of no interest here.
_AUDIT: Final[Mapping[str, Any]] = {
    "apiVersion": "audit.k8s.io/v1",
    "kind": "Policy",
    "omitStages": ["RequestReceived", "ResponseStarted"],
    "omitManagedFields": True,
    "rules": [
        {"level": "None", "userGroups": ["system:serviceaccounts:kube-system"]},
        {"level": "Metadata", "userGroups": ["system:serviceaccounts"]},
        {"level": "None"},
    ],
}

# restrict_oom_score_adj: without CAP_SYS_RESOURCE nobody may lower a score below their own.
_CONTAINERD: Final = f"""\
version = 3

[plugins."io.containerd.cri.v1.runtime"]
restrict_oom_score_adj = true
enable_cdi = true
cdi_spec_dirs = ["/etc/cdi", "/var/run/cdi"]
cni.bin_dirs = ["/usr/lib/cni", "/opt/cni/bin"]
cni.conf_dir = "/etc/cni/net.d"

[plugins."io.containerd.cri.v1.images".pinned_images]
sandbox = "{image.PAUSE}"
"""

_NETWORK: Final[Mapping[str, Any]] = {
    "cniVersion": "0.4.0",
    "name": "pods",
    "plugins": [
        {
            "type": "bridge",
            "bridge": "cni0",
            "isGateway": True,
            "hairpinMode": True,
            "ipam": {
                "type": "host-local",
                "ranges": [[{"subnet": _BRIDGE_RANGE}]],
                "routes": [{"dst": "0.0.0.0/0"}],
            },
        },
        {"type": "portmap", "capabilities": {"portMappings": True}},
    ],
}


def command(name: str, site: Site) -> tuple[str, ...]:
    """Return the command line of one component."""
    return (name, *_FLAGS[name](site))


def _etcd(site: Site) -> tuple[str, ...]:
    return (
        f"--data-dir={site.folder / 'etcd'}",
        f"--listen-client-urls={_ETCD}",
        f"--advertise-client-urls={_ETCD}",
        "--listen-peer-urls=http://127.0.0.1:2380",
        "--unsafe-no-fsync",  # a test cluster's data need not survive a power cut
        "--log-level=warn",
    )


def _apiserver(site: Site) -> tuple[str, ...]:
    return (
        f"--etcd-servers={_ETCD}",
        f"--advertise-address={site.address}",
        f"--secure-port={PORT}",
        f"--tls-cert-file={site.certificate('kube-apiserver.crt')}",
        f"--tls-private-key-file={site.certificate('kube-apiserver.key')}",
        f"--client-ca-file={site.certificate('ca.crt')}",
        f"--kubelet-certificate-authority={site.certificate('ca.crt')}",
        f"--kubelet-client-certificate={site.certificate('apiserver-kubelet.crt')}",
        f"--kubelet-client-key={site.certificate('apiserver-kubelet.key')}",
        "--kubelet-preferred-address-types=InternalIP",  # else `kubectl logs` looks up the node's name
        f"--requestheader-client-ca-file={site.certificate('ca.crt')}",
        "--requestheader-allowed-names=front-proxy-client",
        "--requestheader-extra-headers-prefix=X-Remote-Extra-",
        "--requestheader-group-headers=X-Remote-Group",
        "--requestheader-username-headers=X-Remote-User",
        f"--proxy-client-cert-file={site.certificate('front-proxy.crt')}",
        f"--proxy-client-key-file={site.certificate('front-proxy.key')}",
        "--service-account-issuer=https://kubernetes.default.svc",
        f"--service-account-key-file={site.certificate('service-account.pub')}",
        f"--service-account-signing-key-file={site.certificate('service-account.key')}",
        f"--service-cluster-ip-range={SERVICE_RANGE}",
        "--authorization-mode=Node,RBAC",
        "--enable-admission-plugins=NodeRestriction",
        "--allow-privileged=true",
        f"--audit-policy-file={site.config('audit.yaml')}",
        f"--audit-log-path={site.audit}",  # each line is there before the request is answered
        "--runtime-config=resource.k8s.io/v1beta2=true",  # DeviceTaintRules
        *_gates(site),
    )


def _gates(site: Site) -> tuple[str, ...]:
    """Return what lets kube-scheduler heed DeviceTaintRules, from the release on that serves them."""
    return () if site.version in {"1.34", "1.35"} else ("--feature-gates=DRADeviceTaintRules=true",)


def _identity(site: Site, name: str) -> tuple[str, ...]:
    path = site.config(f"{name}.kubeconfig")
    return (
        f"--kubeconfig={path}",
        f"--authentication-kubeconfig={path}",
        f"--authorization-kubeconfig={path}",
        "--leader-elect=false",
        "--bind-address=127.0.0.1",
    )


def _controller_manager(site: Site) -> tuple[str, ...]:
    return (
        *_identity(site, "kube-controller-manager"),
        f"--service-account-private-key-file={site.certificate('service-account.key')}",
        f"--root-ca-file={site.certificate('ca.crt')}",
        f"--cluster-signing-cert-file={site.certificate('ca.crt')}",
        f"--cluster-signing-key-file={site.certificate('ca.key')}",
        "--use-service-account-credentials=true",
        # at the default 20 a second, making its controllers' accounts takes 4 s before the first one runs
        "--kube-api-qps=200",
        "--kube-api-burst=400",
        "--allocate-node-cidrs=true",
        f"--cluster-cidr={POD_RANGE}",
        *_gates(site),
    )


def _scheduler(site: Site) -> tuple[str, ...]:
    return (*_identity(site, "kube-scheduler"), *_gates(site))


def _containerd(site: Site) -> tuple[str, ...]:
    return (f"--config={site.config('containerd.toml')}",)


def _kubelet_flags(site: Site) -> tuple[str, ...]:
    return (
        f"--config={site.config('kubelet.yaml')}",
        f"--kubeconfig={site.config('kubelet.kubeconfig')}",
        f"--node-ip={site.address}",
    )


def _proxy_flags(site: Site) -> tuple[str, ...]:
    return (f"--config={site.config('kube-proxy.yaml')}",)


_FLAGS: Final = {
    "etcd": _etcd,
    "kube-apiserver": _apiserver,
    "kube-controller-manager": _controller_manager,
    "kube-scheduler": _scheduler,
    "containerd": _containerd,
    "kubelet": _kubelet_flags,
    "kube-proxy": _proxy_flags,
}
