"""`fairlead fabric vm`: prints a Service VM for the NVSwitches of this node, as a libvirt domain or a pod of Kata's."""

from __future__ import annotations

import platform
from typing import Final

import click

from fairlead.cli.core import options, output, plaintext
from fairlead.model.vfio import SWITCHES, Snapshot
from fairlead.plan.fabric import servicevm
from fairlead.plan.vfio import slot, switchoffer
from fairlead.settings import Settings
from fairlead.silicon.vfio import discovery


@click.command("vm")
@click.option("--libvirt", "is_libvirt", is_flag=True, help="print the XML of a libvirt domain")
@click.option("--kata", "is_kata", is_flag=True, help="print the manifest of a pod whose machine Kata starts")
@click.option("--disk", metavar="PATH", help="image of the domain's disk, in qcow2, with driver, Manager and fairlead")
@click.option("--image", metavar="IMAGE", help="image of the pod's container, with fairlead and libnvfm.so.1")
@click.option("--name", default="fairlead-fabric", show_default=True, help="of the domain or pod")
@click.option("--cid", default=3, show_default=True, help="the domain's context id of vsock")
@click.option("--runtime-class", default="kata-qemu-nvidia-gpu", show_default=True, help="of the pod")
@click.option("--memory-mib", default=4096, show_default=True, help="memory of the machine")
@options.settings_options("fabric", "node", "silicon", hidden=True)
@click.pass_context
def vm(  # noqa: PLR0913 - an option each
    ctx: click.Context,
    config: Settings,
    /,
    *,
    is_libvirt: bool,
    is_kata: bool,
    disk: str | None,
    image: str | None,
    name: str,
    cid: int,
    runtime_class: str,
    memory_mib: int,
) -> None:
    """Print a Service VM for this node's NVSwitches, at their real addresses.

    Nothing is started. The switches must be bound to VFIO first: `fairlead vfio bind`.
    """
    if is_libvirt is is_kata:
        raise click.UsageError("give one of --libvirt and --kata")
    _refuse_others(ctx, "libvirt" if is_libvirt else "kata")
    found = discovery.scan(config.silicon.root)
    made = describe(found, name=name, memory_mib=memory_mib)
    for line in unready(found):
        plaintext.echo(f"warning: {line}", err=True)
    if is_libvirt:
        if disk is None:
            raise click.UsageError("--libvirt needs --disk, the image that the domain boots")
        plaintext.echo(servicevm.domain(made, disk=disk, cid=cid))
        return
    if image is None:
        raise click.UsageError("--kata needs --image, the container's image")
    namespace = config.fabric.vm_namespace
    if not namespace:
        raise click.UsageError("fabric.vm_namespace names no namespace, so no pod is offered the switches: set it")
    switchoffer.check_owner(vm_namespace=namespace, vm_image=config.fabric.vm_image)
    node = config.node.name or platform.node()
    resource = slot.switch_resource(config.node)
    manifest = servicevm.pod(
        made, node=node, namespace=namespace, image=image, runtime_class=runtime_class, resource=resource
    )
    output.show_value(manifest, form="yaml")


_OTHERS: Final = {"libvirt": ("image", "runtime_class"), "kata": ("disk", "cid")}
"""By form the options that are of the other one."""


def _refuse_others(ctx: click.Context, form: str) -> None:
    for name in _OTHERS[form]:
        if ctx.get_parameter_source(name) is click.core.ParameterSource.COMMANDLINE:
            raise click.UsageError(f"--{name.replace('_', '-')} says nothing of a machine by --{form}: leave it out")


def describe(found: Snapshot, *, name: str, memory_mib: int) -> servicevm.ServiceVM:
    """Return the Service VM of a machine: its switches, and what else is in their IOMMU groups."""
    switches = [one for one in found.functions if one.kind in SWITCHES]
    beside = (member.address for one in switches for member in one.members if not member.is_bridge)
    addresses = dict.fromkeys([*(one.address for one in switches), *beside])
    return servicevm.ServiceVM(
        name=name,
        functions=tuple(sorted(addresses)),
        switches=len(switches),
        memory_mib=memory_mib,
    )


def unready(found: Snapshot) -> list[str]:
    """Return what keeps the machine from starting as things are."""
    unbound = [one.address for one in found.functions if one.kind in SWITCHES and not one.is_bound_to_vfio]
    lines = [f"{', '.join(unbound)} not bound to VFIO: fairlead vfio bind {' '.join(unbound)}"] if unbound else []
    in_the_way = {
        f"{member.address} ({member.driver}) is in the switches' IOMMU group: bind it to VFIO too"
        for one in found.functions
        if one.kind in SWITCHES
        for member in one.members
        if member.is_in_the_way
    }
    return [*lines, *sorted(in_the_way)]
