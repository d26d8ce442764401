"""`fairlead cdi generate` and `cdi watch`: write this machine's specs, once or continuously.

Both take the same options and look with the same `node.cdi.source`; `watch` keeps one file a kind in a folder, as the
agent does, and is for machines without it. Options named as NVIDIA's toolkit names them mean what they mean there.
What only some calls need is imported by those: a user who wants one spec as JSON waits for nothing else.
"""

from __future__ import annotations

import contextlib
import dataclasses
import os
from collections.abc import AsyncIterator, Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from fairlead import errors
from fairlead.cli.core import invocation, plaintext, simulated
from fairlead.inject import policy
from fairlead.model.gpu import Inventory
from fairlead.node.cdi import specfile
from fairlead.plan.cdi import capability, driverprofile, generate, hookargs
from fairlead.plan.cdi import source as mode
from fairlead.settings import Settings
from fairlead.silicon import running
from fairlead.silicon.nvidia.files import driver, modefiles
from fairlead.wire.cdi import stamp, translate
from fairlead_cdi import emit, yamltext
from fairlead_cdi import spec as spec_types

if TYPE_CHECKING:
    from fairlead.model.driver import DriverFiles
    from fairlead.node.cdi import source as cdisource
    from fairlead.silicon import port
    from fairlead.silicon.sim import host as simhost

_FLAGS: Final = {
    "simulate": "silicon.simulate",
    "root": "silicon.root",
    "driver_root": "silicon.driver_root",
    "dev_root": "silicon.dev_root",
    "libraries": "silicon.library_path",
    "configs": "silicon.config_path",
    "profile": "node.cdi_profile",
    "variants": "node.cdi_variants",
    "hook": "node.cdi_hook",
    "stamping": "node.cdi_stamp",
}
"""Options that set a row of the settings for this call."""
_FEATURES: Final[Mapping[str, Mapping[str, bool]]] = {
    "enable-explicit-driver-libraries": {"shows_explicit": True},
    "disable-ipc-discoverer": {"shows_sockets": False},
    "no-additional-gids-for-device-nodes": {"adds_groups": False},
    "additional-gids-for-device-nodes": {"adds_groups": True},
}
"""Feature flag → what it changes in the profile."""
_PATH: Final = click.Path(path_type=Path)
_TEXTS: Final[Mapping[str, str]] = {
    "--mode": "what to describe, repeatable: " + ", ".join((mode.AUTO, *mode.MODES)),
    "--device-name-strategy": "how devices are named, repeatable: " + ", ".join(generate.STRATEGIES),
    "--capability": "part of the driver to show, repeatable: " + ", ".join(capability.KNOWN),
    "--feature-flag": "repeatable: " + ", ".join(_FEATURES),
    "--disable-hook": f"step our hook leaves out, repeatable: {', '.join(hookargs.STEPS)}, or all",
}


def _many(name: str, parameter: str, choices: Sequence[str]) -> Callable[[Any], Any]:
    return click.option(
        name, parameter, multiple=True, metavar="NAME", type=click.Choice(list(choices)), help=_TEXTS[name]
    )


def _text(name: str, parameter: str, text: str, **more: Any) -> Callable[[Any], Any]:
    return click.option(name, parameter, metavar=more.pop("metavar", "TEXT"), help=text, **more)


_SHARED: Final[tuple[Callable[[Any], Any], ...]] = (
    _many("--mode", "modes", (mode.AUTO, *mode.MODES)),
    click.option("--profile", type=click.Choice(list(driverprofile.PROFILES)), help="least exposure, or everything"),
    _many("--capability", "capabilities", capability.KNOWN),
    click.option("--variants/--no-variants", default=None, help="also write a class of devices a capability"),
    _many("--device-name-strategy", "strategies", tuple(generate.STRATEGIES)),
    _text("--device-id", "devices", "only this device, by any of its names, repeatable; none: the driver without a GPU",
          multiple=True),
    click.option("--no-all-device", "no_all", is_flag=True, help="leave the device `all` out"),
    _text("--vendor", "vendor", "vendor of the kind, instead of the usual one"),
    _text("--class", "cls", "class of the kind, instead of the usual one"),
    _text("--hook", "hook", "path of fairlead-hook, to be named by the specs", metavar="PATH"),
    _text("--ldconfig-path", "ldconfig", "the host's ldconfig, for the hook", metavar="PATH", default=""),
    _many("--disable-hook", "without", (*hookargs.STEPS, "all")),
    _many("--feature-flag", "features", tuple(_FEATURES)),
    click.option("--stamp", "stamping", type=click.Choice(stamp.PLACES), help="where boot, driver and GPUs are noted"),
    _text("--simulate", "simulate", "simulated silicon instead of this machine's", metavar="PROFILE"),
    click.option("--root", type=_PATH, help="root under which /dev, /proc and /sys are read"),
    click.option("--driver-root", type=_PATH, help="root of the driver's user space, below the root"),
    click.option("--dev-root", type=_PATH, help="folder that has the driver's /dev, below the root"),
    _text("--library-search-path", "libraries", "folder of driver libraries, repeatable", multiple=True, metavar="DIR"),
    _text("--config-search-path", "configs", "folder of configuration, repeatable", multiple=True, metavar="DIR"),
    click.option("--csv.file", "csv_files", multiple=True, type=_PATH, help="list of mode csv, repeatable"),
    _text("--csv.ignore-pattern", "csv_ignored", "paths of those lists to leave out", multiple=True, metavar="GLOB"),
    click.option("--runtime-config", "runtime_config", type=_PATH, default=Path(policy.DEFAULT_PATH),
                 show_default=True, help="policy of the runtime shim, whose cache is renewed"),
)  # fmt: skip


def _shared(function: Callable[..., Any]) -> Callable[..., Any]:
    for option in reversed(_SHARED):
        function = option(function)
    return function


@click.command("generate")
@click.option("--output", "target", type=_PATH, help="file, or folder for one file a kind")
@click.option("--format", "form", type=click.Choice(("json", "yaml")), help="default: by the file's suffix, else yaml")
@_shared
@click.pass_context
def generate_verb(ctx: click.Context, /, **options: Any) -> None:
    """Write the CDI specs of this machine; without devices nothing is written."""
    config = _settings(ctx, options)
    found = _collect(config, options)
    for problem in found.made.problems:
        plaintext.echo(f"warning: {problem}", err=True)
    specs = found.made.specs
    if not specs:
        plaintext.echo("no devices found: nothing is written", err=True)
        if hint := simulated.hint(invocation.current(ctx), "--simulate"):
            plaintext.echo(f"  hint: {hint}", err=True)
        return
    target, form = options["target"], options["form"]
    if target is None:
        plaintext.write(b"".join(_encode(spec, form or "yaml") for spec in specs))
        return
    boot_id = running.read_running(config.silicon.root).boot_id
    for path, spec in _targets(target, specs, form):
        mark = specfile.stamp_for(spec.kind, _recipe(config, options), found.stamps, boot_id=boot_id)
        shown = stamp.annotate(spec, mark) if config.node.cdi_stamp == "annotations" else spec
        specfile.write_bytes(path, _encode(shown, form or path.suffix[1:]), mark, stamping=config.node.cdi_stamp)
        plaintext.echo(f"{path}: {len(spec.devices)} devices, CDI {spec_types.minimum_version(shown)}", err=True)
    folder = target if target.is_dir() else target.parent
    _warn_of_conflicts(folder, config.node.cdi_folder)
    _renew_shim(options["runtime_config"], folder)


@click.command("watch")
@click.option("--output", "target", type=_PATH, help="folder of the specs; default: node.cdi_folder of the settings")
@click.option(
    "--interval",
    "interval_s",
    type=click.FloatRange(min=0.05),
    default=1.0,
    show_default=True,
    metavar="SECONDS",
    help="time between two looks at the files that send no events",
)
@_shared
@click.pass_context
def watch_verb(ctx: click.Context, /, **options: Any) -> None:
    """Keep the CDI specs of this machine true until stopped: MIG, driver, modules, hot-plug."""
    import asyncio

    from fairlead import telemetry

    config = _settings(ctx, options)
    telemetry.configure(config.log.level, config.log.format)
    asyncio.run(_watch(config, options))


async def _watch(config: Settings, options: Mapping[str, Any]) -> None:
    import asyncio

    from fairlead.cli.core import stopping
    from fairlead.kernel import heldlock
    from fairlead.node.cdi import specfiles, watch

    stop = stopping.stop_event()
    folder = options["target"] or config.node.cdi_folder
    async with _source(config, options) as source:
        specs = specfiles.SpecFiles(
            folder,
            recipe=source.recipe,
            kinds=mode.kinds(source.modes, source.recipe),
            boot_id=running.read_running(config.silicon.root).boot_id,
            stamping=config.node.cdi_stamp,
        )

        watcher = watch.Watcher(source, specs, interval_s=options["interval_s"])
        with heldlock.held(folder / heldlock.CDI, f"CDI folder {folder}", heldlock.Owner(pid=os.getpid())):
            async with asyncio.TaskGroup() as tasks:
                running_tasks = [
                    tasks.create_task(watcher.run(), name="cdi watch"),
                    tasks.create_task(_follow_shim(options["runtime_config"]), name="runtime shim"),
                ]
                await stop.wait()
                for task in running_tasks:
                    task.cancel()


async def _follow_shim(config: Path) -> None:
    """Renew the runtime shim's files whenever any specs in its folders change."""
    import asyncio

    from fairlead import telemetry
    from fairlead.cli.layer.cdi import speccache
    from fairlead_cdi import cache

    shown = speccache.folders(config)
    if not shown:
        return
    async with contextlib.aclosing(cache.Cache(shown).watch()) as changes:
        async for _ in changes:
            try:
                await asyncio.to_thread(speccache.renew, config)
            except errors.FairleadError as error:
                telemetry.log.warning("runtime shim not renewed", reason=error.reason, error=errors.sentence(error))


def _settings(ctx: click.Context, options: Mapping[str, Any]) -> Settings:
    given = {key: options[name] for name, key in _FLAGS.items()}
    joined = {key: ":".join(value) if isinstance(value, tuple) else value for key, value in given.items()}
    return invocation.current(ctx).settings({key: value for key, value in joined.items() if value not in {None, ""}})


def _recipe(config: Settings, options: Mapping[str, Any]) -> generate.Recipe:
    base = specfile.recipe_of(config.node)
    changes: dict[str, Any] = {key: value for name in options["features"] for key, value in _FEATURES[name].items()}
    if options["capabilities"]:
        changes["capabilities"] = frozenset(options["capabilities"])
    if options["no_all"]:
        changes["has_all"] = False
    return dataclasses.replace(
        base,
        profile=dataclasses.replace(base.profile, **changes),
        strategies=options["strategies"] or base.strategies,
        devices=frozenset(options["devices"]),
        hook=_hook(base.hook, options),
        vendor=options["vendor"] or "",
        cls=options["cls"] or "",
    )


def _hook(hook: generate.Hook | None, options: Mapping[str, Any]) -> generate.Hook | None:
    if hook is None or "all" in options["without"]:
        return None
    return dataclasses.replace(hook, ldconfig=options["ldconfig"], without=frozenset(options["without"]))


def _collect(config: Settings, options: Mapping[str, Any]) -> specfile.Findings:
    """Look at the machine once, without an event loop, and without silicon where files say everything."""
    tree, host = _simulated(config)
    place = _place(config, options, tree)
    modes = mode.chosen(options["modes"], modefiles.detect_platform(place.root, place.driver_root))
    by_files = mode.file_modes(modes)
    inventory, drivers = _gpus(config, host) if len(by_files) < len(modes) else (Inventory(), ())
    found = {name: modefiles.scan(name, place) for name in by_files}
    recipe = _recipe(config, options)
    return specfile.findings(inventory, drivers, found, modes=modes, recipe=recipe, root=place.root)


def _simulated(config: Settings) -> tuple[Path, simhost.SimulatedHost | None]:
    """Return the root to read and, where silicon is simulated, its host."""
    if not config.silicon.simulate:
        return config.silicon.root, None
    from fairlead.silicon.sim import host as simhost

    host = simhost.SimulatedHost(_simulation_folder(config), config.silicon.simulate)
    return host.tree.path, host


def _simulation_folder(config: Settings) -> Path:
    """Return a folder apart: simulated silicon of a running service is that service's own, and is not touched here."""
    return config.state.folder / "cdi"


def _gpus(config: Settings, host: simhost.SimulatedHost | None) -> tuple[Inventory, tuple[DriverFiles, ...]]:
    from fairlead.silicon import once

    chosen = config.silicon
    reader: once.HardwareReader | once.SimulatedReader = once.HardwareReader(chosen)
    if host is not None:
        reader = once.SimulatedReader(host.tree.path, host.library, call_timeout_s=chosen.call_timeout_s)
    try:
        inventory = reader.scan()
    except errors.Unavailable as error:
        inventory = specfile.without_driver(error)
    for failure in reader.failed:
        plaintext.echo(f"warning: {errors.sentence(failure)}", err=True)
    return inventory, reader.scan_driver()


def _place(config: Settings, options: Mapping[str, Any], root: Path) -> modefiles.Place:
    return modefiles.Place(
        root=root,
        driver_root=config.silicon.driver_root,
        search=driver.search_of(config.silicon),
        csv_files=options["csv_files"],
        csv_ignored=options["csv_ignored"],
    )


@contextlib.asynccontextmanager
async def _source(config: Settings, options: Mapping[str, Any]) -> AsyncIterator[cdisource.Source]:
    from fairlead.node.cdi import source as cdisource

    silicon, root = _silicon(config)
    try:
        place = _place(config, options, root)
        modes = mode.chosen(options["modes"], modefiles.detect_platform(place.root, place.driver_root))
        yield cdisource.Source(silicon=silicon, place=place, modes=modes, recipe=_recipe(config, options))
    finally:
        await silicon.close()


def _silicon(config: Settings) -> tuple[port.Silicon, Path]:
    """Return the silicon and the root that it reads; hardware without the modules of the simulation."""
    if not config.silicon.simulate:
        from fairlead.silicon import hardware

        return hardware.open_hardware(config.silicon), config.silicon.root
    from fairlead.silicon import machine

    folder = _simulation_folder(config)
    return machine.open_silicon(config.silicon, folder), machine.root_of(config.silicon, folder)


def _renew_shim(config: Path, folder: Path) -> None:
    """Have the runtime shim know the new specs, if it reads this folder; it finds out by itself where this fails."""
    from fairlead.cli.layer.cdi import speccache

    try:
        if folder.resolve() in [Path(item).resolve() for item in speccache.folders(config)]:
            speccache.renew(config)
    except errors.FairleadError as error:
        plaintext.echo(f"warning: the runtime shim's files are not renewed: {errors.sentence(error)}", err=True)


def _warn_of_conflicts(folder: Path, read: Path) -> None:
    """Say which devices another file of the folder defines too, where engines or our kubelet (`read`) look there."""
    from fairlead_cdi import directory

    places = {Path(name).resolve() for name in (*directory.DEFAULT_DIRECTORIES, read)}
    if folder.resolve() not in places:
        return
    by_files: dict[tuple[str, ...], list[str]] = {}
    for name, paths in directory.scan([str(folder)]).conflicts.items():
        by_files.setdefault(paths, []).append(name)
    for paths, names in by_files.items():
        more = f" and {len(names) - 1} more are" if len(names) > 1 else " is"
        plaintext.echo(
            f"warning: {names[0]}{more} defined in {' and '.join(paths)}: engines will find neither", err=True
        )


def _targets(target: Path, specs: Sequence[spec_types.Spec], form: str | None) -> list[tuple[Path, spec_types.Spec]]:
    from fairlead_cdi import directory

    if target.is_dir():
        suffix = f".{form or 'yaml'}"
        return [(target / emit.file_name(spec.kind, suffix=suffix), spec) for spec in specs]
    if len(specs) > 1:
        kinds = ", ".join(spec.kind for spec in specs)
        message = f"{target} can hold one spec, there are {len(specs)} ({kinds})"
        raise errors.Invalid(message, reason="OutputAmbiguous", hint="name a folder, or choose with --mode")
    if target.suffix not in directory.SUFFIXES:
        message = f'"{target.name}" is not a name for a spec file: engines read {" and ".join(directory.SUFFIXES)} only'
        raise errors.Invalid(message, reason="OutputInvalid")
    return [(target, specs[0])]


@translate.cdi_errors
def _encode(spec: spec_types.Spec, form: str) -> bytes:
    return emit.emit_json(spec) if form == "json" else yamltext.emit_yaml(spec)
