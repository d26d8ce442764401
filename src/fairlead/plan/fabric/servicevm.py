"""Describes a Service VM: the virtual machine that has a node's NVSwitches, and in it the Fabric Manager. Pure.

It is a libvirt domain, or a pod whose machine Kata starts. Neither has a network card of ours: the host reaches the
agent beside the Manager by vsock. The switches' own driver and the Manager are the image's.
Source: libvirt's documentation "Domain XML format" (hostdev, vsock); NVIDIA Fabric Manager User Guide, shared NVSwitch
mode, and NVIDIA nvrc, which modes a guest of NVIDIA's starts by what it finds.
"""

from __future__ import annotations

import re
from typing import Any, Final
from xml.etree import ElementTree

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.model import cdikind
from fairlead.model.fabric import AGENT_PORT
from fairlead.wire.kubernetes import names

ANY_CID: Final = 4294967295
_LEAST_CID: Final = 3
_NAME: Final = re.compile(r"[a-z0-9](?:[a-z0-9.-]{0,61}[a-z0-9])?", re.ASCII)
_ADDRESS: Final = re.compile(
    r"(?P<domain>[0-9a-f]{4,8}):(?P<bus>[0-9a-f]{2}):(?P<slot>[0-1][0-9a-f])[.](?P<function>[0-7])", re.ASCII
)
_KEPT: Final = "fairlead-fabric"
"""Name of the Secret that has the file of `fabric.secret`."""
_MOUNTED: Final = "/run/secrets/fairlead"
_SAID_BY: Final = {
    "namespace": "fabric.vm_namespace says it; at most 63 characters",
    "node": "node.name says it, else the machine's host name; at most 253 characters",
    "RuntimeClass": "--runtime-class says it; at most 253 characters",
}


@frozen
class ServiceVM:
    """One Service VM."""

    name: str
    functions: tuple[str, ...]
    """PCI addresses of the switches, and of what is in their IOMMU groups."""
    switches: int
    """How many of them are switches, or functions that manage them."""
    memory_mib: int = 4096
    processors: int = 2


def check(vm: ServiceVM) -> None:
    """Refuse what no machine is made of. Raises: Invalid, NotFound: there is no switch to give it."""
    if not vm.switches:
        hint = "`fairlead vfio list` shows what is there; run this on the node"
        raise errors.NotFound("this machine has no NVSwitches", reason="FabricVMEmpty", hint=hint)
    if not _NAME.fullmatch(vm.name):
        message = f'"{vm.name}" is no name of a Service VM'
        raise errors.Invalid(
            message, reason="FabricVMInvalid", hint="lower-case letters, digits, '-' and '.', at most 63"
        )
    if not 512 <= vm.memory_mib <= 1 << 20 or not 1 <= vm.processors <= 256:
        message = f"a Service VM of {vm.memory_mib} MiB and {vm.processors} processors"
        raise errors.Invalid(message, reason="FabricVMInvalid", hint="512 MiB or more, and 1 to 256 processors")


def domain(vm: ServiceVM, *, disk: str, cid: int) -> str:
    """Return the domain's XML. Args: disk: path of its image, in qcow2.   cid: of vsock. Raises: Invalid."""
    check(vm)
    if not disk.startswith("/") or not disk.isprintable():
        raise errors.Invalid(f"{disk!r} is no absolute path of a disk", reason="FabricVMInvalid")
    if not _LEAST_CID <= cid < ANY_CID:
        raise errors.Invalid(f"{cid} is no context id of a machine", reason="FabricVMInvalid", hint="3 or more")
    root = ElementTree.Element("domain", type="kvm")
    _text(root, "name", vm.name)
    _text(root, "memory", str(vm.memory_mib), unit="MiB")
    _text(root, "vcpu", str(vm.processors))
    system = ElementTree.SubElement(root, "os", firmware="efi")  # the switches' memory regions need its windows
    _text(system, "type", "hvm", arch="x86_64", machine="q35")
    # Else the host's own order of firmware decides. Debian's begins with Secure Boot and Microsoft's keys, where
    # neither a kernel of one's own nor an unsigned driver starts; the next has no variables, and is made for AMD's SEV.
    ElementTree.SubElement(ElementTree.SubElement(system, "firmware"), "feature", enabled="no", name="secure-boot")
    ElementTree.SubElement(system, "loader", stateless="no")
    ElementTree.SubElement(ElementTree.SubElement(root, "features"), "acpi")
    ElementTree.SubElement(root, "cpu", mode="host-passthrough")
    _text(root, "on_poweroff", "destroy")
    _text(root, "on_reboot", "restart")
    _text(root, "on_crash", "restart")
    devices = ElementTree.SubElement(root, "devices")
    image = ElementTree.SubElement(devices, "disk", type="file", device="disk")
    ElementTree.SubElement(image, "driver", name="qemu", type="qcow2")
    ElementTree.SubElement(image, "source", file=disk)
    ElementTree.SubElement(image, "target", dev="vda", bus="virtio")
    ElementTree.SubElement(devices, "controller", type="pci", index="0", model="pcie-root")
    for number, address in enumerate(vm.functions, start=1):
        ElementTree.SubElement(devices, "controller", type="pci", index=str(number), model="pcie-root-port")
        # Not managed: Fairlead binds them, and libvirt would give them back to a driver at the domain's end.
        given = ElementTree.SubElement(devices, "hostdev", mode="subsystem", type="pci", managed="no")
        ElementTree.SubElement(given, "driver", name="vfio")
        ElementTree.SubElement(ElementTree.SubElement(given, "source"), "address", _parts(address))
        ElementTree.SubElement(
            given, "address", type="pci", domain="0x0000", bus=f"{number:#04x}", slot="0x00", function="0x0"
        )
    ElementTree.SubElement(ElementTree.SubElement(devices, "vsock", model="virtio"), "cid", auto="no", address=str(cid))
    ElementTree.SubElement(ElementTree.SubElement(devices, "console", type="pty"), "target", type="serial", port="0")
    ElementTree.indent(root)
    return ElementTree.tostring(root, encoding="unicode")


def _text(parent: ElementTree.Element, name: str, text: str, **attributes: str) -> None:
    ElementTree.SubElement(parent, name, attributes).text = text


def _parts(address: str) -> dict[str, str]:
    """Return an address as libvirt writes it. Raises: Invalid: it is none."""
    found = _ADDRESS.fullmatch(address)
    if found is None:
        raise errors.Invalid(f"{address!r} is no PCI address", reason="FabricVMInvalid")
    return {name: f"0x{value}" for name, value in found.groupdict().items()}


def pod(
    vm: ServiceVM,
    *,
    node: str,
    namespace: str,
    image: str,
    runtime_class: str,
    resource: str = cdikind.SWITCHES,
) -> dict[str, Any]:
    """Return the pod. Args: image: of the container, with fairlead and the Manager's library.   resource: of switches.

    Raises: Invalid. It goes to its node by the node's name, which may be longer than a label's value, and need not be
    that of the label `kubernetes.io/hostname`.
    """
    check(vm)
    for what, value, is_name, rule in (
        ("namespace", namespace, names.is_dns_label, names.DNS_RULE),
        ("node", node, names.is_object_name, names.SUBDOMAIN_RULE),
        ("RuntimeClass", runtime_class, names.is_object_name, names.SUBDOMAIN_RULE),
    ):
        if not is_name(value):
            message = f'"{errors.readable(value[:300])}" is no name of a {what}: {rule}'
            raise errors.Invalid(message, reason="FabricVMInvalid", hint=_SAID_BY[what])
    its_node = {"matchFields": [{"key": "metadata.name", "operator": "In", "values": [node]}]}
    if not image or not image.isprintable() or " " in image:
        raise errors.Invalid(f"{image!r} is no name of an image", reason="FabricVMInvalid")
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": vm.name, "namespace": namespace},
        "spec": {
            "runtimeClassName": runtime_class,
            "affinity": {
                "nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": {"nodeSelectorTerms": [its_node]}}
            },
            "tolerations": [{"operator": "Exists"}],
            "restartPolicy": "Always",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            "containers": [
                {
                    "name": "agent",
                    "image": image,
                    "command": ["fairlead", "fabric", "serve", "--listen", f"{ANY_CID}:{AGENT_PORT}"],
                    "env": [{"name": "FAIRLEAD_FABRIC_SECRET", "value": f"{_MOUNTED}/fabric.secret"}],
                    "resources": {
                        "limits": {
                            resource: str(vm.switches),
                            "cpu": str(vm.processors),
                            "memory": f"{vm.memory_mib}Mi",
                        }
                    },
                    "volumeMounts": [{"name": "secret", "mountPath": _MOUNTED, "readOnly": True}],
                }
            ],
            "volumes": [{"name": "secret", "secret": {"secretName": _KEPT, "defaultMode": 0o400}}],
        },
    }
