"""Lists the faults of simulated silicon: what `fairlead simulate fault` can break, and how each is undone."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Final

from fairlead import errors
from fairlead.model.gpu import SPARED, UNKNOWN_XID, XIDS
from fairlead.silicon.sim import machine, partition, profile

_FELL_OFF_THE_BUS: Final = 79
_RESET, _REBOOT = 1, 2
_MOST_PIDS: Final = 1 << 22
"""Source: linux include/linux/threads.h, PID_MAX_LIMIT."""
_LAST_ACTION: Final = 255
_LAST_XID: Final = 999
_LAST_INSTANCE: Final = 255
_HOTTEST_C: Final = 200
_MOST_W: Final = 10_000.0
_SLOWEST_S: Final = 86_400.0
_MOST_EVENTS: Final = 1_000
_LONGEST_TEXT: Final = 31
"""Of a version. Source: nvml.h, NVML_DEVICE_VBIOS_VERSION_BUFFER_SIZE, less the NUL."""
_LONGEST_INFOROM: Final = 15
"""Source: nvml.h, NVML_DEVICE_INFOROM_VERSION_BUFFER_SIZE, less the NUL."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Fault:
    """One way to break a GPU (or the machine) on command."""

    act: Callable[[machine.Machine, machine.GPUState, str], str]
    text: str
    value: str
    """How help and errors describe the value; empty: none is taken."""
    default: str = ""


def inject(host: machine.Machine, fault: str, *, gpu: int | None, value: str | None) -> str:
    """Apply one fault; see the Faults port.

    Raises:  Invalid: unknown fault, GPU or value; the message lists what is offered.
    """
    found = FAULTS.get(fault)
    if found is None:
        offered = ", ".join(FAULTS)
        raise errors.Invalid(f'no fault "{fault}" (offered: {offered})', reason="FaultUnknown")
    if gpu is None or not 0 <= gpu < len(host.gpus):
        message = f"fault {fault} needs a gpu (offered: 0 to {len(host.gpus) - 1}), not {gpu}"
        raise errors.Invalid(message, reason="FaultInvalid")
    with host.lock:
        try:
            return f"gpu {gpu}: {found.act(host, host.gpus[gpu], value or found.default)}"
        except ValueError as error:
            message = f'fault {fault} takes {found.value or "no value"}, not "{value or ""}"'
            raise errors.Invalid(message, reason="FaultInvalid") from error


def _whole(text: str, least: int, most: int) -> int:
    """Raises: ValueError: not a whole number in the range, of which NVML's own types are wider."""
    number = int(text)
    if not least <= number <= most:
        raise ValueError(number)
    return number


def _real(text: str, most: float) -> float:
    """Raises: ValueError: not a number from 0; `nan` and `inf` are none."""
    number = float(text)
    if not (math.isfinite(number) and 0 <= number <= most):
        raise ValueError(number)
    return number


def _xid(host: machine.Machine, gpu: machine.GPUState, value: str) -> str:
    code, _, where = value.partition("@")
    instance, _, compute = where.partition("/")
    event = machine.Event(
        gpu=gpu.board.index,
        type=machine.EVENT_XID,
        data=_whole(code, 1, _LAST_XID),
        gpu_instance=_whole(instance, 0, _LAST_INSTANCE) if instance else machine.WHOLE_GPU,
        compute_instance=_whole(compute, 0, _LAST_INSTANCE) if compute else machine.WHOLE_GPU,
    )
    # as drivers do that report an action: it stands until the GPU is reset
    action, _ = XIDS.get(event.data, UNKNOWN_XID)
    if not where and action not in SPARED:
        gpu.recovery_action = _REBOOT if event.data == _FELL_OFF_THE_BUS else max(gpu.recovery_action, _RESET)
    host.post(event)
    return f"xid {event.data}" + (f" in instance {where}" if where else "")


def _lost(host: machine.Machine, gpu: machine.GPUState, _value: str) -> str:
    _xid(host, gpu, str(_FELL_OFF_THE_BUS))
    gpu.is_lost = True
    host.wake()
    return "lost: it answers no call until it is recovered"


def _recover(host: machine.Machine, gpu: machine.GPUState, _value: str) -> str:
    gpu.recover()
    host.post(machine.Event(gpu=gpu.board.index, type=machine.EVENT_RECOVERY, data=gpu.recovery_action))
    host.wake()
    return "recovered: every fault is lifted, MIG instances are kept"


def _temperature(_host: machine.Machine, gpu: machine.GPUState, value: str) -> str:
    gpu.temperature_c = _whole(value, 0, _HOTTEST_C)
    return f"temperature {gpu.temperature_c} C"


def _power(_host: machine.Machine, gpu: machine.GPUState, value: str) -> str:
    gpu.power_mw = round(_real(value, _MOST_W) * 1000)
    return f"power {gpu.power_mw / 1000:g} W"


def _utilization(_host: machine.Machine, gpu: machine.GPUState, value: str) -> str:
    gpu.utilization_percent = _whole(value, 0, 100)
    return f"utilization {gpu.utilization_percent} %"


def _ecc(host: machine.Machine, gpu: machine.GPUState, value: str) -> str:
    count = _whole(value, 1, _MOST_EVENTS)
    gpu.ecc_uncorrected += count
    gpu.recovery_action = max(gpu.recovery_action, _RESET)
    for _ in range(count):
        host.post(machine.Event(gpu=gpu.board.index, type=machine.EVENT_DOUBLE_BIT, data=0))
    return f"{count} uncorrectable ecc errors, {gpu.ecc_uncorrected} since the driver was loaded"


def _remap(_host: machine.Machine, gpu: machine.GPUState, value: str) -> str:
    if value not in {"pending", "failed", "none"}:
        raise ValueError(value)
    gpu.remap_pending, gpu.remap_failed = value == "pending", value == "failed"
    return f"row remapping: {value}"


def _recovery_action(host: machine.Machine, gpu: machine.GPUState, value: str) -> str:
    gpu.recovery_action = _whole(value, 0, _LAST_ACTION)
    host.post(machine.Event(gpu=gpu.board.index, type=machine.EVENT_RECOVERY, data=gpu.recovery_action))
    return f"recovery action {gpu.recovery_action}"


def _slow(host: machine.Machine, gpu: machine.GPUState, value: str) -> str:
    seconds = gpu.slow_s = _real(value, _SLOWEST_S)
    host.wake()
    return f"every call takes {seconds:g} s" if seconds else "calls are fast again"


def _event_errors(host: machine.Machine, _gpu: machine.GPUState, value: str) -> str:
    host.wait_errors = _whole(value, 0, _MOST_EVENTS)
    host.wake()
    return f"the next {host.wait_errors} event waits of this machine fail"


def _mig_mode(host: machine.Machine, gpu: machine.GPUState, value: str) -> str:
    if not gpu.board.part.mig:
        raise errors.Invalid(f"{gpu.board.part.name} cannot be partitioned", reason="MIGNotSupported")
    if value not in {"on", "off"}:
        raise ValueError(value)
    if value == "off" and gpu.partition.instances:
        raise errors.Invalid("mig instances exist: mig-destroy all first", reason="MIGInUse")
    gpu.mig_enabled, gpu.mig_pending = value == "on", None
    host.layout_changed(gpu)
    return f"mig {value}"


def _mig_create(host: machine.Machine, gpu: machine.GPUState, value: str) -> str:
    name, _, start = value.partition("@")
    rows = {row.name: row for row in gpu.board.part.mig}
    if not gpu.mig_enabled or name not in rows:
        state = f"offered: {', '.join(rows)}" if gpu.mig_enabled else "mig is off: mig-mode on first"
        raise errors.Invalid(
            f'mig profile "{name}" not offered by {gpu.board.part.name} ({state})', reason="MIGInvalid"
        )
    try:
        item = gpu.partition.create(rows[name], int(start) if start else None)
    except partition.NoRoomError as error:
        free = [str(s) for s in gpu.partition.list_free_starts(rows[name])]
        message = f"no room for {value} (free starts: {', '.join(free) or 'none'})"
        raise errors.Insufficient(message, reason="MIGNoPlacement") from error
    whole = next(key for key, slices in partition.CI_PROFILES.items() if slices == item.row.slices)
    made = item.create_compute(whole)
    host.layout_changed(gpu)
    uuid = profile.mig_uuid(gpu.board.uuid, item.id, made.id)
    return f"{name} at {item.start}:{item.row.size}, instance {item.id}, {uuid}"


def _mig_destroy(host: machine.Machine, gpu: machine.GPUState, value: str) -> str:
    chosen = list(gpu.partition.instances) if value == "all" else [int(value)]
    for number in chosen:
        if number not in gpu.partition.instances:
            offered = ", ".join(map(str, gpu.partition.instances)) or "none"
            raise errors.Invalid(f"no gpu instance {number} (there are: {offered})", reason="MIGInvalid")
        gpu.partition.instances[number].computes.clear()
        gpu.partition.destroy(number)
        gpu.processes = {place for place in gpu.processes if place[0] != number}
    host.layout_changed(gpu)
    return f"destroyed {len(chosen)} gpu instances"


def _process(host: machine.Machine, gpu: machine.GPUState, value: str) -> str:
    if value == "none":
        gpu.processes.clear()
        gpu.programs.clear()
        return "no process runs on it any more"
    if value.startswith("pid="):
        return _program(gpu, value)
    instance, _, compute = value.partition("/")
    place = (-1, -1) if value == "gpu" else (int(instance), _whole(compute or "0", 0, _LAST_INSTANCE))
    if place != (-1, -1) and (place[0] not in gpu.partition.instances):
        offered = ", ".join(map(str, gpu.partition.instances)) or "none"
        raise errors.Invalid(f"no gpu instance {place[0]} (there are: {offered})", reason="MIGInvalid")
    gpu.processes.add(place)
    host.wake()
    return f"a process runs on {'the GPU' if value == 'gpu' else f'instance {value}'}"


def _program(gpu: machine.GPUState, value: str) -> str:
    """Put a process of this host on the GPU. Args: value: `pid=4242[,memory=20480][,graphics]`, memory in MiB."""
    pid, memory, draws = 0, 0, False
    for word in value.split(","):
        key, _, text = word.partition("=")
        if key == "pid":
            pid = _whole(text, 1, _MOST_PIDS)
        elif key == "memory":
            memory = _whole(text, 0, gpu.board.part.memory_mib)
        elif word == "graphics":
            draws = True
        else:
            offered = "pid=PID[,memory=MIB][,graphics]"
            raise errors.Invalid(f'"{word}" says nothing of a process', reason="FaultInvalid", hint=offered)
    gpu.programs[pid] = memory, draws
    return f"process {pid} {'draws' if draws else 'runs'} on the GPU with {memory} MiB, as the driver tells"


def _text(name: str, longest: int = _LONGEST_TEXT) -> Callable[[machine.Machine, machine.GPUState, str], str]:
    """Return the fault that sets what firmware says of itself; no value: as it was made."""

    def act(_host: machine.Machine, gpu: machine.GPUState, value: str) -> str:
        if not value.isprintable() or len(value) > longest:
            raise ValueError(value)
        setattr(gpu, name, value)
        return f"{name} {value}" if value else f"{name} as it was made"

    return act


def _link_width(_host: machine.Machine, gpu: machine.GPUState, value: str) -> str:
    if int(value) not in {1, 2, 4, 8, 16}:
        raise ValueError(value)
    gpu.link_width = int(value)
    return f"{gpu.link_width} PCIe lanes in use"


def _scrub(host: machine.Machine, gpu: machine.GPUState, value: str) -> str:
    if value not in {"ok", "failed", "hang"}:
        raise ValueError(value)
    gpu.scrub = "" if value == "ok" else value
    host.wake()
    return f"memory scrubs: {value}"


FAULTS: Final[Mapping[str, Fault]] = {
    "xid": Fault(act=_xid, text="report an XID error", value="XID[@GPU_INSTANCE[/COMPUTE_INSTANCE]]", default="48"),
    "lost": Fault(act=_lost, text="fall off the bus", value=""),
    "recover": Fault(act=_recover, text="lift every fault of the GPU", value=""),
    "ecc": Fault(
        act=_ecc, text="count uncorrectable ECC errors", value=f"a number from 1 to {_MOST_EVENTS}", default="1"
    ),
    "remap": Fault(act=_remap, text="row remapping state", value="pending, failed or none", default="pending"),
    "temperature": Fault(act=_temperature, text="set the temperature", value=f"degrees Celsius, 0 to {_HOTTEST_C}"),
    "power": Fault(act=_power, text="set the power draw", value=f"watts, 0 to {_MOST_W:g}"),
    "utilization": Fault(act=_utilization, text="set the load", value="0 to 100 percent"),
    "recovery-action": Fault(
        act=_recovery_action, text="ask for a recovery action", value=f"NVML's number, 0 to {_LAST_ACTION}", default="1"
    ),
    "slow": Fault(
        act=_slow,
        text="delay every call about the GPU",
        value=f"seconds up to {_SLOWEST_S:g}, 0 to lift",
        default="3600",
    ),
    "event-errors": Fault(
        act=_event_errors, text="make event waits fail", value=f"a number of waits up to {_MOST_EVENTS}", default="1"
    ),
    "process": Fault(
        act=_process,
        text="run a process that belongs to no container",
        value="gpu, GPU_INSTANCE[/COMPUTE_INSTANCE], pid=PID[,memory=MIB][,graphics] or none",
        default="gpu",
    ),
    "vbios": Fault(act=_text("vbios"), text="rewrite the VBIOS", value="its version; without a value: as it was made"),
    "inforom": Fault(
        act=_text("inforom", _LONGEST_INFOROM),
        text="rewrite the InfoROM",
        value="its version; without a value: as it was made",
    ),
    "serial": Fault(
        act=_text("serial"), text="swap the board", value="its serial number; without a value: as it was made"
    ),
    "link-width": Fault(act=_link_width, text="lose PCIe lanes", value="lanes in use: 1, 2, 4, 8 or 16", default="8"),
    "scrub": Fault(act=_scrub, text="make memory scrubs fail", value="ok, failed or hang", default="failed"),
    "mig-mode": Fault(act=_mig_mode, text="switch MIG", value="on or off", default="on"),
    "mig-create": Fault(act=_mig_create, text="create a MIG device", value="PROFILE[@START]"),
    "mig-destroy": Fault(act=_mig_destroy, text="destroy MIG devices", value="GPU_INSTANCE or all", default="all"),
}
"""Every fault by the name a person types."""
