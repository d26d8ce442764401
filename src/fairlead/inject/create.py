"""Injects devices with the whole CDI library: the long way of `fairlead-runtime`, with every refusal in words.

Taken when the cache does not fit: the first start after a spec changed, a request that meets what the
container has already, or anything wrong. The same steps as the short way (`runtime`, `bundle`), with the library's
`directory` and `inject` in its middle, and a new cache at the end.
"""

from __future__ import annotations

import dataclasses
import posix
from collections.abc import Iterable
from typing import Any

from fairlead import errors
from fairlead.inject import allocations, bundle, cachereader, cachewriter, commandline, policy, yamlcache
from fairlead.plan.shim import request
from fairlead.wire.cdi import translate
from fairlead_cdi import directory, inject
from fairlead_cdi import spec as cdi
from fairlead_cdi.host import trust

_KINDS = {"Denied": errors.Denied, "Invalid": errors.Invalid, "Unavailable": errors.Unavailable}


def edit(argv: list[str], folder: str, name: str, settings: policy.Settings) -> int:
    """Edit the bundle of the container with this id; returns 0, or the exit code of the error that was reported."""
    try:
        _edit(folder, name, settings)
    except errors.FairleadError as error:
        commandline.tell(argv, "error", errors.sentence(error))
        return errors.row_of(error).exit
    return 0


@translate.cdi_errors
def _edit(folder: str, name: str, settings: policy.Settings) -> None:
    made = _read(folder)
    kept = allocations.KubeletCheckpoint(settings.allocations)
    asked = request.decide(request.read(made.config, name), settings.request, kept)
    _raise(asked.refusal)
    if asked.is_empty:
        return
    before = bundle.strip(made.config, asked, settings.request)
    registry = directory.scan(settings.spec_dirs, decoders=yamlcache.decoders(settings.yaml_cache))
    try:
        state = cachereader.state_of(settings.spec_dirs)
    except (OSError, ValueError):
        state = None  # reported below, where it concerns a file that is used
    given = sources(registry, asked, settings)
    after = inject.inject_edits(before, given)
    known = cachewriter.known(registry, {source for source, _ in given})
    _raise(bundle.finish(before, after, asked, settings, known=known))
    try:
        bundle.write(made, after)
    except OSError as error:
        message = f"cannot write {made.path}: {error.strerror}"
        raise errors.Unavailable(message, reason="BundleWriteFailed", path=made.path) from error
    if state is not None and settings.cache:
        cachewriter.keep(registry, state, settings.cache)


def _read(folder: str) -> bundle.Bundle:
    try:
        made = bundle.read(folder)
    except OSError as error:
        message = f"cannot read {folder}/config.json: {error.strerror}"
        raise errors.Invalid(message, reason="BundleUnreadable", path=folder) from error
    except ValueError as error:
        message = f"{folder}/config.json: {error}"
        raise errors.ProtocolError(message, reason="RuntimeSpecInvalid", path=folder) from error
    if made is None:
        raise AssertionError(folder)
    return made


def _raise(refusal: request.Refusal | None) -> None:
    if refusal is not None:
        raise _KINDS[refusal.kind](refusal.message, reason=refusal.reason, hint=refusal.hint)


@translate.cdi_errors
def sources(
    registry: directory.Registry, asked: request.Request, settings: policy.Settings
) -> tuple[inject.Source, ...]:
    """Return the edits asked for, narrowed to the capabilities asked for, from files of root or ours.

    Raises: NotFound, Invalid: a device is not there.   Denied: others could have written the spec or a hook's program.
            Unavailable: a YAML spec that was not converted may say otherwise.
    """
    defined: dict[str, object] = dict(registry.devices)
    wanted = request.resolve(asked, settings.request, defined)
    if any(name not in registry.devices for name in wanted):
        _assert_decided(registry, 0)
    resolved = registry.resolve(wanted)
    files = [item.file for item in resolved]
    found = list(inject.sources_of(resolved))
    if asked.is_bare:
        kind = settings.request.default_kind
        specs = [(file, file.spec.kind) for file in registry.files if file.spec is not None]
        there = {own for _, own in specs}
        chosen = next((one for one in request.kinds(asked, settings.request) if one in there), kind)
        bare = [file for file, own in specs if own == chosen]
        if not bare:
            _assert_decided(registry, 0)
            message = f"no CDI spec is of kind {kind}: no driver files to give"
            hint = f"generate it into one of {', '.join(registry.directories)}"
            raise errors.NotFound(message, reason="KindUnresolvable", hint=hint, kind=kind)
        files += bare
        known = {source for source, _ in found}
        found += [(file.path, file.spec.edits) for file in bare if file.spec is not None and file.path not in known]
    _assert_decided(registry, min((file.priority for file in files), default=0))
    for file in {file.path: file for file in files}.values():
        # The very file that was read, and then the way to it: what a name leads to now may be another one.
        if file.owner is None or not trust.is_closed(*file.owner):
            raise _untrusted("a CDI spec", file.path)
        _assert_ours(file.path[: file.path.rfind("/")] or "/", "a folder of CDI specs")
        _assert_ours(file.path, "a CDI spec")
    narrowed = tuple((source, _narrow(each, asked)) for source, each in found)
    for path in cachewriter.programs(each for _, each in narrowed):
        _assert_ours(path, "a hook's program")
    return narrowed


def _assert_decided(registry: directory.Registry, priority: int) -> None:
    """Refuse to answer where a spec that could not be read may say otherwise. Raises: Unavailable."""
    unread = yamlcache.find_decisive(registry, priority)
    if unread is not None and unread.error is not None:
        message = f"{unread.path} may define what is asked for, but is {unread.error.message}"
        raise errors.Unavailable(message, reason=yamlcache.UNREAD, hint=unread.error.hint, path=unread.path)


def _assert_ours(path: str, what: str) -> None:
    try:
        place = trust.find_open(path)
        if not place and not policy.is_ours(posix.stat(path)):
            place = path
    except OSError as error:
        message = f"cannot look at {path}: {error.strerror}"
        raise errors.Unavailable(message, reason="InjectionSourceUnreadable", path=path) from error
    if place:
        raise _untrusted(what, path, place)


def _untrusted(what: str, path: str, place: str = "") -> errors.Denied:
    way = f" (by way of {place})" if place not in {"", path} else ""
    message = f"{what} can be written by others than root: {path}{way}"
    hint = "what it says is done as root; chown it to root and chmod go-w"
    return errors.Denied(message, reason="InjectionSourceUntrusted", hint=hint, path=path)


def _narrow(each: cdi.ContainerEdits, asked: request.Request) -> cdi.ContainerEdits:
    if asked.capabilities is None:
        return each
    return dataclasses.replace(
        each,
        device_nodes=_shown(each.device_nodes, "path", asked),
        mounts=_shown(each.mounts, "container_path", asked),
    )


def _shown(items: Iterable[Any], field: str, asked: request.Request) -> tuple[Any, ...]:
    return tuple(item for item in items if bundle.is_shown(getattr(item, field), asked))
