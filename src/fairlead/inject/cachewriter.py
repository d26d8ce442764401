"""Writes the shim's cache: what each device and spec file adds to an empty runtime spec, by the CDI library itself.

`cachereader` says how long it is good. A program that changes specs may call `write` at once; the shim's long way calls
`keep` after its work, so the file heals by itself. It is a convenience: nothing is lost without it, and a failure to
write it is not a failure of the container.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from fairlead import errors, files
from fairlead.inject import cachereader, fastjson, policy, yamlcache
from fairlead.wire.cdi import stamp
from fairlead_cdi import directory, inject, parse, validate
from fairlead_cdi import errors as cdi_errors
from fairlead_cdi import spec as cdi

_MODE = 0o600
_FOLDER_MODE = 0o700


def write(spec_dirs: Sequence[str], path: str, *, decoders: Mapping[str, parse.Decoder] = directory.JSON_ONLY) -> bool:
    """Scan the spec folders and write the cache; returns False where it cannot be kept now (see `keep`)."""
    registry = directory.scan(spec_dirs, decoders=decoders)
    try:
        return keep(registry, cachereader.state_of(tuple(spec_dirs)), path, is_renewed=True)
    except (OSError, ValueError):
        return False


def keep(registry: directory.Registry, state: list[object], path: str, *, is_renewed: bool = False) -> bool:
    """Write the cache of a registry; False: a spec changed a moment ago, it is there already, or refused.

    Args: state: of the spec folders, read after the scan: a change between the two makes the file useless, not wrong,
          unless the clock stood still; therefore files that changed within its tick are not kept at all.
          is_renewed: write it although one of this state is there: more formats are read now than then.
    """
    if not _is_of(registry, state) or (not is_renewed and cachereader.is_current(state, path)):
        return False
    entry = {
        "format": cachereader.FORMAT,
        "folders": state,
        "files": {
            file.path: {"kind": file.spec.kind, "facts": facts(file), **_part(file.spec.edits)}
            for file in registry.files
            if file.spec is not None
        },
        "devices": {
            name: {"file": item.file.path, **_part(item.device.edits)} for name, item in registry.devices.items()
        },
    }
    target = Path(path)
    try:
        target.parent.mkdir(mode=_FOLDER_MODE, parents=True, exist_ok=True)
        files.write_atomic(target, fastjson.encode(entry), mode=_MODE, durable=False)
    except (OSError, errors.Unavailable):
        return False
    return True


def _is_of(registry: directory.Registry, state: list[Any]) -> bool:
    """Return whether the scan read the very files of the state; a file that has just changed proves nothing."""
    told = {f"{folder}/{name}": identity for folder, *rest in state for names in rest for name, *identity in names}
    specs = {path for path in told if not path.endswith(cachereader.STAMPS)}
    seen = {file.path: file.fingerprint for file in registry.files}
    used = [file.priority for file in registry.files if file.spec is not None]
    if yamlcache.find_decisive(registry, min(used, default=0)) is not None:
        return False  # its content may depend on the container; the shim then reads it each time
    read = [file.path for file in registry.files if not yamlcache.is_unread(file)]
    return specs == seen.keys() and all(told[path] == list(seen[path] or ()) for path in read)


def facts(file: cdi.SpecFile) -> dict[str, list[str]]:
    """Return what a spec's stamp says of driver and GPUs; empty: it has none that only root could write."""
    if file.spec is None:
        return {}
    try:
        mark = policy.read_trusted(f"{file.path}{cachereader.STAMPS}")
        found = stamp.find(file.spec.annotations, Path(file.path).read_bytes(), mark)
    except (OSError, policy.PolicyError):
        return {}
    return found.facts() if found is not None else {}


def known(registry: directory.Registry, paths: Collection[str]) -> dict[str, list[str]]:
    """Return what the stamps of these spec files say; see `requirement.hosts`."""
    return {key: told for file in registry.files if file.path in paths for key, told in facts(file).items()}


def programs(parts: Iterable[cdi.ContainerEdits]) -> tuple[str, ...]:
    """Return the programs that the hooks of these edits run, each once."""
    return tuple(dict.fromkeys(hook.path for part in parts for hook in part.hooks))


def _part(part: cdi.ContainerEdits) -> dict[str, Any]:
    """Return what edits add to an empty runtime spec, taken apart so that it can be narrowed and put together."""
    try:
        nodes, seen = _nodes(part)
        added = inject.inject_edits({}, [("", cdi.ContainerEdits(env=part.env, mounts=part.mounts))])
        hooks = list(_hooks(part))
    except cdi_errors.CDIError:
        return {"is_complete": False}
    mounts = added.get("mounts", [])
    return {
        "is_complete": _is_plain(part),
        "env": added.get("process", {}).get("env", []),
        "nodes": nodes,
        "nodes_seen": seen,
        "mounts": mounts,
        "hooks": hooks,
        "programs": list(programs([part])),
        "gids": [gid for gid in dict.fromkeys(part.additional_gids) if gid],
    }


def _is_plain(part: cdi.ContainerEdits) -> bool:
    """Whether the short way can put it together: no kind of edit, and no way of writing a path, that it leaves out."""
    paths = [node.path for node in part.device_nodes] + [mount.container_path for mount in part.mounts]
    is_usual = part.intel_rdt is None and not part.net_devices
    return is_usual and len(set(paths)) == len(paths) and all(validate.is_plain_path(path) for path in paths)


def _nodes(part: cdi.ContainerEdits) -> tuple[list[Any], list[Any]]:
    """Return each node with its rule, and what its path on the host was when they were made."""
    made, seen = [], []
    for node in part.device_nodes:
        path = node.host_path or node.path
        alone = inject.inject_edits({}, [("", cdi.ContainerEdits(device_nodes=(node,)))])
        status = Path(path).lstat()
        rules = alone["linux"].get("resources", {}).get("devices", [None])
        made.append([alone["linux"]["devices"][0], rules[0]])
        seen.append([path, status.st_mode, status.st_rdev])
    return made, seen


def _hooks(part: cdi.ContainerEdits) -> Iterator[list[Any]]:
    for hook in part.hooks:
        alone = inject.inject_edits({}, [("", cdi.ContainerEdits(hooks=(hook,)))])
        yield [hook.hook_name, alone["hooks"][hook.hook_name][0]]
