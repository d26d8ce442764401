"""`fairlead fabric machine`: runs this node's Service VM with every NVSwitch, beside the agent and not in it."""

from __future__ import annotations

import asyncio
import os

import click

from fairlead import errors, telemetry
from fairlead.cli.core import options, stopping
from fairlead.cli.layer.fabric import vm
from fairlead.kernel import heldlock
from fairlead.model.fabric import AGENT_PORT
from fairlead.model.vfio import SWITCHES, Snapshot
from fairlead.node.vm import image, service
from fairlead.plan.vfio import switchoffer
from fairlead.settings import Settings
from fairlead.silicon.fabric import agentclient
from fairlead.silicon.vfio import discovery


@click.command("machine")
@options.settings_options("fabric", "state", "log", "silicon", "lease", hidden=True)
def machine(config: Settings, /) -> None:
    """Run this node's Service VM until SIGTERM, and start it again whenever it is over.

    It boots the image of fabric.vm_image, gets every NVSwitch, and is told fabric.secret on a port of its own. NVLink
    of every tenant ends with it: run it as a service of its own, not in the agent.
    """
    telemetry.configure(config.log.level, config.log.format)
    made = compose(config)
    config.state.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    me = heldlock.Owner(pid=os.getpid())
    with heldlock.held(config.state.folder / "fabric-machine.lock", "this node's Service VM", me):
        asyncio.run(_until_stopped(made))


def compose(config: Settings) -> service.ServiceMachine:
    """Return what runs the machine. Raises: Invalid: a setting; Unavailable: the secret cannot be used."""
    chosen = config.fabric
    if not chosen.vm_image:
        message = "fabric.vm_image names no image for the Service VM"
        raise errors.Invalid(
            message, reason="SettingInvalid", hint="`fairlead vfio image-digest FOLDER` prints its name"
        )
    switchoffer.check_owner(vm_namespace=chosen.vm_namespace, vm_image=chosen.vm_image)
    image.check_reference(chosen.vm_image)
    for name, value in (("vm_start_s", chosen.vm_start_s), ("vm_silence_s", chosen.vm_silence_s)):
        if not 1 <= value <= 86400:
            message = f"fabric.{name} is {value:g}: 1 to 86400 seconds"
            raise errors.Invalid(message, reason="SettingInvalid")
    agentclient.read_secret(config.fabric_secret)
    return service.ServiceMachine(
        service.Options(
            image=chosen.vm_image,
            emulator=config.lease.verifier_emulator,
            firmware=config.lease.verifier_firmware,
            memory_mib=chosen.vm_memory_mib,
            processors=chosen.vm_processors,
            start_s=chosen.vm_start_s,
            silence_s=chosen.vm_silence_s,
            port=AGENT_PORT,
        ),
        secret=lambda: agentclient.read_secret(config.fabric_secret),
        switches=lambda: switches_of(discovery.scan(config.silicon.root)),
    )


def switches_of(found: Snapshot) -> service.Switches:
    """Return what the machine gets of this one: the switches and what is in their IOMMU groups."""
    described = vm.describe(found, name="fairlead-fabric", memory_mib=1024)
    if not described.switches:
        return service.Switches(addresses=(), problem="this machine has no NVSwitches")
    own = [one for one in found.functions if one.kind in SWITCHES]
    return service.Switches(
        addresses=described.functions,
        problem="; ".join(vm.unready(found)),
        with_iommufd=not all(one.group_node for one in own),
    )


async def _until_stopped(made: service.ServiceMachine) -> None:
    await made.run(stopping.stop_event())
