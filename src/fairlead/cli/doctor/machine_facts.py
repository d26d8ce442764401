"""Collects the facts of one machine: from the running service, or from the layers themselves where none answers.

A fact is never left out because something is broken: what could not be read is a fact of its own.
"""

from __future__ import annotations

import asyncio
import dataclasses
import math
import os
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import msgspec

from fairlead import errors, files
from fairlead.cli.core import connection, invocation
from fairlead.cli.core.client import Client
from fairlead.cli.doctor import certificate, mailserver, sandbox, secret, specs, sshdoor, tenancy
from fairlead.cli.doctor.held import claims, lease, leftovers
from fairlead.cli.doctor.planned import idling, reservations, workloads
from fairlead.cli.doctor.sharing import mps, passthrough
from fairlead.engine.port import Advice
from fairlead.kernel import socketpeer
from fairlead.model import cdikind
from fairlead.model.container import isolation
from fairlead.model.driver import DriverFiles
from fairlead.model.gpu import Inventory, Vendor
from fairlead.node.engines import judge, records
from fairlead.node.isolation import ownfolder
from fairlead.plan.gpu import door
from fairlead.plan.lease.row import State
from fairlead.plan.pod import device
from fairlead.serve.backend import passthrough as bound
from fairlead.serve.backend import vgpus
from fairlead.serve.backend.hardware import EngineView, GPUListing, GPUView
from fairlead.serve.history.view import HistoryView
from fairlead.serve.v1.events.view import EventList, EventView
from fairlead.serve.v1.nodes.view import NodeView
from fairlead.serve.v1.secrets.view import SecretList
from fairlead.serve.v1.status.view import Status
from fairlead.serve.v1.tenancies.view import TenancyList
from fairlead.settings import Settings
from fairlead.silicon.nvidia.files import driver
from fairlead.silicon.pci import devnode
from fairlead.silicon.sim.host import TREE
from fairlead.store.sqlite import database
from fairlead.wire.text import timestamp
from fairlead_cdi import directory, emit

_ANSWER_S: Final = 5.0
"""A service that takes longer to say how it is hangs."""
_START_S: Final = 60.0
_KUBELET_S: Final = 3.0
_PUBLISHED: Final = frozenset({"", State.HELD.value})
"""States in the ledger, empty without one, in which a GPU has an entry in the CDI spec."""
_NO_GPUS: Final = GPUListing(gpus=(), unreadable=(), drivers=(), is_simulated=False)


@dataclass(frozen=True, slots=True, kw_only=True)
class Kubelet:
    """What a question to the kubelet's PodResources socket brought."""

    socket: Path
    peer: socketpeer.Server | None = None
    """None: no process serves the socket."""
    problem: str = ""
    """Why there was no answer; empty: there was one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Rules:
    """What an audit of a service's containers found."""

    judged: int = 0
    differing: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """What is wrong, by container."""
    doubtful: Mapping[str, str] = dataclasses.field(default_factory=dict)
    """Why it could not be judged, by container."""


@dataclass(frozen=True, slots=True, kw_only=True)
class EngineListing:
    """Whether the engine can list the containers of this machine."""

    broken: tuple[str, ...] = ()
    """Names of those that fail the engine's own listing of all."""
    problem: str = ""
    """Why there is no listing at all."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Seen:
    """What was looked at."""

    service: str
    """Address and version of the service that answered; empty: none did."""
    service_error: str
    is_root: bool
    kernel: str
    engine: EngineView
    advice: Advice
    """What can be done about the engine."""
    gpus: GPUListing
    silicon_error: str
    profile: str
    driver_problems: tuple[str, ...]
    nodes: tuple[NodeView, ...]
    node: str
    resource: str
    cdi: specs.Facts
    has_claims_door: bool = False
    """Whether GPUs are given away by claims, without a device plugin."""
    listing: EngineListing = EngineListing()
    age_s: float = math.inf
    """How long the service has run."""
    server: socketpeer.Server | None = None
    """Who serves the API's socket, whether it answers or not."""
    kubelet: Kubelet | None = None
    """None: no service runs that would have one."""
    disks: tuple[str, ...] = ()
    """What keeps state from being written, one line each."""
    database: str = ""
    """Why the database cannot be used."""
    history: HistoryView | None = None
    """How figures over time are kept; None: they are not, or no service runs."""
    open_folders: tuple[str, ...] = ()
    """What is wrong with the folders that only root may enter."""
    rules: Rules | None = None
    """None: no containers were judged, for want of a service or of root's rights."""
    mps: tuple[mps.Daemon, ...] = ()
    """GPUs that the agent has put under MPS."""
    passthrough: passthrough.Facts = dataclasses.field(default_factory=passthrough.Facts)
    """What passing GPUs through needs."""
    lease: lease.Facts = dataclasses.field(default_factory=lease.Facts)
    """The node's ledger."""
    claims: claims.Facts = dataclasses.field(default_factory=claims.Facts)
    """What ResourceClaims have."""
    secret: secret.Facts = dataclasses.field(default_factory=secret.Facts)
    """The key of its Secrets."""
    ssh: sshdoor.Facts = dataclasses.field(default_factory=sshdoor.Facts)
    mail: mailserver.Facts = dataclasses.field(default_factory=mailserver.Facts)
    """The door into containers for accounts."""
    certificate: certificate.Facts = dataclasses.field(default_factory=certificate.Facts)
    """When the API's ends."""
    reservations: reservations.Facts = dataclasses.field(default_factory=reservations.Facts)
    workloads: workloads.Facts = dataclasses.field(default_factory=workloads.Facts)
    idling: idling.Facts = dataclasses.field(default_factory=idling.Facts)
    leftovers: leftovers.Facts = dataclasses.field(default_factory=leftovers.Facts)
    """What is held for what is gone."""
    tenancy: tenancy.Facts = dataclasses.field(default_factory=tenancy.Facts)
    """What isolates tenancies."""
    configured: Mapping[tuple[str, str], judge.Verdict] = dataclasses.field(default_factory=dict)
    """Engines that `fairlead runtime configure` configured, by name and main file, and what they do of it."""
    sandbox: sandbox.Facts = dataclasses.field(default_factory=sandbox.Facts)
    """gVisor and Kata."""
    config_problem: str = ""
    """Why the agent's configuration is not in force; empty: it is, or nothing is known of it."""
    was_simulated: bool = False
    """Whether the last service here simulated its GPUs."""


def collect(call: invocation.Invocation) -> Seen:
    """Ask the service, or the layers themselves where none answers. Raises: Invalid: the settings are wrong."""
    config = call.settings()
    try:
        with connection.opened(call) as client:
            status = client.call("GET", "/v1/status", Status, timeout_s=_ANSWER_S)
            listing = client.call("GET", "/v1/gpus", GPUListing, timeout_s=_ANSWER_S)
            kept, refused, demanded = _count_secrets(client), _refused(client, status), _demanding(client)
            reserved = reservations.collect(client, no_show_min=config.reserve.no_show_min, timeout_s=_ANSWER_S)
            kept_up = workloads.collect(client, timeout_s=_ANSWER_S)
            idle = idling.collect(client, config.idle, status.history, timeout_s=_ANSWER_S)
    except (errors.Unavailable, errors.ProtocolError) as error:
        below = asyncio.run(_collect_below(config, errors.sentence(error)))
        door = sshdoor.collect(config, is_served=False)
        return dataclasses.replace(below, sandbox=_sandboxes(config, below.gpus), ssh=door)
    seen = asyncio.run(_collect_service(call, config, status, listing, kept))
    found = _sandboxes(config, listing, demanded)
    post = mailserver.collect(config, address=status.address)
    seen = dataclasses.replace(seen, config_problem=refused, sandbox=found, mail=post)
    return dataclasses.replace(seen, reservations=reserved, workloads=kept_up, idling=idle)


def _sandboxes(config: Settings, listing: GPUListing, demanded: Sequence[str] = ()) -> sandbox.Facts:
    """Ask what this machine's sandboxes are."""
    from fairlead.engine import machine as engines

    program = engines.find_runtime(config.engine, isolation.GVISOR_CLASS)
    drivers = [one.version for one in listing.drivers if one.vendor is Vendor.NVIDIA]
    return asyncio.run(
        sandbox.collect(
            program, driver=drivers[0] if drivers else "", is_simulated=listing.is_simulated, demanded=demanded
        )
    )


def _demanding(client: Client) -> tuple[str, ...]:
    """Return the tenancies that demand gVisor; none where the service keeps no tenancies."""
    try:
        found = client.call("GET", "/v1/tenancies", TenancyList, timeout_s=_ANSWER_S).items
    except errors.FairleadError:
        return ()
    return tuple(one.name for one in found if one.isolation == isolation.GVISOR)


def _refused(client: Client, status: Status) -> str:
    """Return why the configuration that was asked for is not in force, by what the agent told last."""
    params = {"object": f"node/{status.node}"}
    found = client.call("GET", "/v1/events", EventList, params=params, timeout_s=_ANSWER_S).items
    told = [one for one in found if one.reason in {"ConfigApplied", "ConfigRefused"} and _is_of_now(one, status)]
    return told[-1].message if told and told[-1].reason == "ConfigRefused" else ""


def _is_of_now(one: EventView, status: Status) -> bool:
    """Return whether the agent of this service said it: it reads its configuration while the service starts."""
    at = timestamp.unix_seconds(one.at or status.started_at)
    return at > timestamp.unix_seconds(status.started_at) - _START_S


def _count_secrets(client: Client) -> int | None:
    """Return how many the service keeps; None: it is older than its route."""
    try:
        return len(client.call("GET", "/v1/secrets", SecretList, timeout_s=_ANSWER_S).items)
    except errors.NotFound:
        return None


async def _collect_service(
    call: invocation.Invocation, config: Settings, status: Status, listing: GPUListing, kept: int | None
) -> Seen:
    folder = Path(status.state_folder)
    engine = await _engine_now(config, status)
    own_folder = Path(status.cdi_folder)
    root = folder / "silicon" / TREE if status.profile else config.silicon.root
    return Seen(
        service=f"fairlead {status.version} at {call.target().url}",
        service_error="",
        is_root=os.geteuid() == 0,
        kernel=os.uname().release,
        engine=engine,
        advice=_advice(config),
        listing=await _list_containers(config, engine),
        gpus=listing,
        silicon_error="",
        profile=status.profile if status.is_simulated else "",
        driver_problems=(*status.problems, *_bad_nodes(listing, root)),
        nodes=status.nodes,
        node=status.node,
        age_s=max(0.0, time.time() - timestamp.unix_seconds(status.started_at)),
        resource=status.resource,
        # `up --node-door claims` is not among the settings that are read here: a GPU that a claim holds tells it too.
        has_claims_door=config.node.door == "claims" or any(one.claim for gpu in listing.gpus for one in gpu.holders),
        cdi=_resolve(
            engine,
            own_folder,
            folders=_folders(config, engine, own_folder),
            wanted=offered(listing),
            withheld=sum(view.lease not in _PUBLISHED for view in listing.gpus),
            listed=_listed(config),
            silicon_root=root,
        ),
        server=socketpeer.find_server(Path(status.socket)),
        kubelet=await _ask_kubelet(_pod_resources(config, status)),
        disks=_full_disks(folder, own_folder),
        database=_damage(folder),
        history=status.history,
        open_folders=_open_folders(config, folder, Path(status.socket).parent),
        mps=mps.collect(folder),
        passthrough=passthrough.Facts() if status.is_simulated else passthrough.collect(config),
        claims=_claims(config, folder / config.lease_folder.name, Path(status.socket).parent),
        lease=lease.collect(
            folder / config.lease_folder.name,
            is_off=bool(listing.gpus) and not any(view.lease for view in listing.gpus),
        ),
        secret=secret.collect(folder, kept),
        ssh=sshdoor.collect(config, is_served=True),
        certificate=certificate.collect(config, folder) if status.address else certificate.Facts(),
        tenancy=await tenancy.collect(config),
        leftovers=await leftovers.collect(_of(config, folder, Path(status.socket).parent), is_served=True),
        configured=await _configured(folder),
        rules=await _audit(config, folder, own_folder) if os.geteuid() == 0 else None,
    )


async def _configured(folder: Path) -> Mapping[tuple[str, str], judge.Verdict]:
    return await judge.judge_all(records.ChangeRecords(folder / "engines"))


async def _engine_now(config: Settings, status: Status) -> EngineView:
    """Return the engine that the service found at its start, with what is wrong with it since."""
    found = status.engine or EngineView()
    if not _are_its_settings(config, status):
        return found
    now = await _engine(config)
    return msgspec.structs.replace(found, problem=now.problem, hint=now.hint) if now.problem else found


def _are_its_settings(config: Settings, status: Status) -> bool:
    """Say whether our settings are the service's: by the state folder, which has one owner."""
    return config.state.folder.absolute() == Path(status.state_folder)


def _pod_resources(config: Settings, status: Status) -> Path:
    """Return the service's socket."""
    if _are_its_settings(config, status):
        return config.pod_resources
    return Path(status.socket).parent / "pod-resources" / "kubelet.sock"


def offered(listing: GPUListing) -> list[str]:
    """Return the CDI names of the whole GPUs that containers may be given, as far as they are to be in a spec now.

    With a ledger a GPU has its entry while it is held, and no longer.
    """
    return [
        cdikind.qualified(cdikind.ALLOCATED[view.gpu.vendor.value], view.gpu.uuid)
        for view in listing.gpus
        if not view.gpu.mig_enabled
        and view.health in {"", "Healthy"}
        and view.lease in _PUBLISHED
        and not any(holder.claim for holder in view.holders)  # a claim's spec names its devices by the claim
        and view.gpu.vendor is not Vendor.INTEL
    ]


def _read_folders(config: Settings, engine: EngineView) -> tuple[str, ...]:
    from fairlead.engine import machine as engines

    return engines.list_cdi_folders(config.engine, engine.version)


def _folders(config: Settings, engine: EngineView, own_folder: Path) -> list[str]:
    """Return where the engine looks, as this process sees it: a service that hides its folder has its own view."""
    named = _read_folders(config, engine)
    parts = own_folder.parts
    if parts[1:2] == ("proc",) and parts[3:4] == ("root",):
        return [str(Path(*parts[:4], folder.lstrip("/"))) for folder in named]
    return list(named)


def _resolve(
    engine: EngineView,
    own_folder: Path,
    *,
    folders: Sequence[str],
    wanted: Sequence[str],
    withheld: int,
    listed: Sequence[str],
    silicon_root: Path,
) -> specs.Facts:
    found = specs.collect(
        engine=f"{engine.name} {engine.version}".strip(),
        ceiling=engine.cdi_ceiling,
        folders=folders,
        own_folder=own_folder,
        wanted=wanted,
        ours=[f"{folder}/{emit.file_name(kind)}" for kind in cdikind.ALLOCATED.values() for folder in folders],
        listed=listed,
        silicon_root=silicon_root,
    )
    return dataclasses.replace(found, withheld=withheld)


def _listed(config: Settings) -> tuple[str, ...]:
    """Return the devices that people may ask for by name; none where the service would not start with the setting."""
    try:
        return device.parse(config.api.devices)
    except errors.Invalid:
        return ()


def _bad_nodes(listing: GPUListing, root: Path) -> tuple[str, ...]:
    """Return which NVIDIA GPUs have no device node of their own, or one with another's numbers."""
    found = []
    major = dict(driver.list_majors(root)).get("nvidia")
    for gpu in (view.gpu for view in listing.gpus if view.gpu.vendor is Vendor.NVIDIA):
        path = f"/dev/nvidia{gpu.minor}"
        if gpu.device_nodes and path not in gpu.device_nodes:
            continue  # Tegra's and those of Windows have other nodes
        node = devnode.read_node(root, root / path.lstrip("/"))
        make = f"nvidia-modprobe -c {gpu.minor}"
        if node is None:
            found.append(f"device node {path} of GPU {gpu.index} is missing: {make}")
        elif major is not None and (node.major, node.minor) != (major, gpu.minor):
            numbers = f"c {node.major}:{node.minor}, not c {major}:{gpu.minor}"
            found.append(f"device node {path} of GPU {gpu.index} is {numbers}: rm {path}; {make}")
    return tuple(found)


async def _ask_kubelet(socket: Path) -> Kubelet:
    # The kubelet's protocol is imported where there is a kubelet to ask.
    from fairlead.node.deviceplugin import podresources

    peer = await asyncio.to_thread(socketpeer.find_server, socket)
    if peer is None:
        return Kubelet(socket=socket, problem=f"no process serves {socket}")
    try:
        async with asyncio.timeout(_KUBELET_S):
            await podresources.list_holdings(socket)
    except TimeoutError:
        return Kubelet(socket=socket, peer=peer, problem=f"it has not answered for {_KUBELET_S:g} s at {socket}")
    except errors.FairleadError as error:
        return Kubelet(socket=socket, peer=peer, problem=error.message)
    return Kubelet(socket=socket, peer=peer)


def _full_disks(*folders: Path) -> tuple[str, ...]:
    found = []
    for folder in folders:
        try:
            if folder.exists():
                files.check_room(folder)
        except errors.Unavailable as error:
            found.append(errors.sentence(error))
    return tuple(dict.fromkeys(found))


def _damage(folder: Path) -> str:
    try:
        database.check(folder / "state.db")
    except errors.FairleadError as error:
        return errors.sentence(error)
    return ""


def _open_folders(config: Settings, folder: Path, run: Path) -> tuple[str, ...]:
    theirs = _of(config, folder, run)
    wanted = {**ownfolder.of_state(theirs), **ownfolder.of_run(theirs)}
    return tuple(text for one, mode in wanted.items() if (text := ownfolder.problem(one, mode)))


def _of(config: Settings, folder: Path, run: Path) -> Settings:
    """Return settings as the service has them that has these folders."""
    return dataclasses.replace(config, state=dataclasses.replace(config.state, folder=folder, run=run))


async def _audit(config: Settings, folder: Path, cdi_folder: Path) -> Rules:
    """Hold the rules of this service's containers to what they were given."""
    # Runtimes, rules and BPF are imported where there are containers to look into.
    from fairlead.cli.core import localcontainer
    from fairlead.wire.kubernetes import names

    chosen = dataclasses.replace(config, state=dataclasses.replace(config.state, folder=folder))
    # Devices that were asked for by name are in the machine's own folders.
    known = await localcontainer.sources(chosen, list(dict.fromkeys((*directory.DEFAULT_DIRECTORIES, str(cdi_folder)))))
    targets = [
        one
        for one in await localcontainer.find(chosen, (), ())
        if known.written.home and one.subject.labels.get(names.HOME) == known.written.home
    ]
    reports = await localcontainer.audit_targets(targets, known)
    return Rules(
        judged=sum(not report.doubt for _, report in reports),
        differing={
            name: "; ".join(f"{one.subject}: {one.message}" for one in report.findings if not one.is_told_only)
            for name, report in reports
            if not report.doubt and not report.is_clean
        },
        doubtful={name: report.doubt for name, report in reports if report.doubt},
    )


async def _collect_below(config: Settings, service_error: str) -> Seen:
    engine, silicon_error = await _engine(config), ""
    inventory, drivers = Inventory(), tuple[DriverFiles, ...]()
    try:
        inventory, drivers = await _silicon(config)
    except errors.FairleadError as error:
        silicon_error = errors.sentence(error)
    simulated, listing = config.state.folder / "silicon" / TREE, _listing(inventory, drivers)
    problems = tuple(text for one in drivers for text in one.problems)
    root = simulated if config.silicon.simulate else config.silicon.root
    return Seen(
        service="",
        service_error=service_error,
        is_root=os.geteuid() == 0,
        kernel=os.uname().release,
        engine=engine,
        advice=_advice(config),
        listing=await _list_containers(config, engine),
        gpus=listing,
        silicon_error=silicon_error,
        profile=config.silicon.simulate,
        driver_problems=(*problems, *_bad_nodes(listing, root)),
        nodes=(),
        node="",
        resource=config.node.resource,
        cdi=_resolve(
            engine,
            config.node.cdi_folder,
            folders=_read_folders(config, engine),
            wanted=(),
            withheld=0,
            listed=_listed(config),
            silicon_root=root,
        ),
        server=socketpeer.find_server(config.api_socket),
        disks=_full_disks(config.state.folder, config.node.cdi_folder),
        database=_damage(config.state.folder),
        open_folders=_open_folders(config, config.state.folder, config.state.run),
        mps=mps.collect(config.state.folder),
        passthrough=passthrough.collect(config),
        lease=lease.collect(config.lease_folder, is_off=config.lease.ledger == "off"),
        claims=_claims(config, config.lease_folder, config.kubelet_folder.parent),
        tenancy=await tenancy.collect(config),
        leftovers=await leftovers.collect(config, is_served=False),
        configured=await _configured(config.state.folder),
        was_simulated=simulated.exists(),
    )


def _claims(config: Settings, ledger_folder: Path, kubelet_root: Path) -> claims.Facts:
    is_wanted = config.node.door == door.CLAIMS
    return claims.collect(ledger_folder, kubelet_root, config.node.cdi_folder, is_wanted=is_wanted)


def _listing(inventory: Inventory, drivers: Sequence[DriverFiles]) -> GPUListing:
    return msgspec.structs.replace(
        _NO_GPUS,
        gpus=tuple(GPUView(gpu=gpu, node="", holders=()) for gpu in inventory.gpus),
        unreadable=inventory.unreadable,
        is_simulated=inventory.is_simulated,
        vgpus=vgpus.list_vgpus(drivers, inventory.gpus, (), (), node=""),
        lenders=vgpus.list_lenders(drivers),
        passthrough=bound.list_passthrough(drivers, node=""),
    )


async def _engine(config: Settings) -> EngineView:
    # Engines and hardware are imported where they are asked: a doctor of another machine's service pays for none.
    from fairlead.engine import machine as engines

    try:
        info: Any = await engines.open_engine(config.engine).info()
    except errors.FairleadError as error:
        return EngineView(problem=error.message, hint=error.hint)
    return msgspec.convert(info, EngineView, from_attributes=True)


def _advice(config: Settings) -> Advice:
    from fairlead.engine import machine as engines

    return engines.advice(config.engine)


async def _list_containers(config: Settings, engine: EngineView) -> EngineListing:
    """Have root's engine list everything; another user's is not the one that runs containers here."""
    from fairlead.engine import machine as engines

    if engine.problem or os.geteuid() != 0:
        return EngineListing()
    try:
        return EngineListing(broken=await engines.open_engine(config.engine).find_broken())
    except errors.FairleadError as error:
        return EngineListing(problem=errors.sentence(error))


async def _silicon(config: Settings) -> tuple[Inventory, tuple[DriverFiles, ...]]:
    from fairlead.silicon import machine

    silicon = await asyncio.to_thread(machine.open_silicon, config.silicon, config.state.folder / "silicon")
    try:
        inventory = await silicon.scan()
        return inventory, await silicon.scan_driver()
    finally:
        await silicon.close()
