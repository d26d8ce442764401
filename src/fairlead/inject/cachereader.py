"""Injects devices from the shim's cache, for as long as nothing it was made from has changed.

The file holds what each device and each spec file adds to an empty runtime spec, as `fairlead_cdi.inject` made it
(`cachewriter` writes it). Adding such a part to a container's runtime spec is then putting lists together, as long as
the two have nothing in common; where they have, or a file, folder, program or device node is not what it was, `inject`
returns None and the long way decides. So this module holds none of CDI's rules, and a test compares both ways on every
input.
"""

import posix

from fairlead.inject import bundle, fastjson, policy
from fairlead.plan.shim import request
from fairlead_cdi.host import trust

FORMAT = 2
STAMPS = ".stamp"
"""End of the names of files that say what a spec was made from; of `wire.cdi.stamp`, too heavy to import."""
_SUFFIXES = (".json", ".yaml", STAMPS)
_HOOKS = ("fairlead-hook", "nvidia-cdi-hook", "nvidia-ctk")
"""Programs of hooks that the short way adds; any other takes the long way, which reads it from the spec itself."""
_LOADER = ("LD_", "GLIBC_TUNABLES", "PYTHON")
_PRIVATE = 0o077


class Unfit(ValueError):
    """The cache does not cover this container; the CDI library must inject its devices."""


def inject(
    before: dict[str, object], asked: request.Request, settings: policy.Settings
) -> tuple[dict[str, object], dict[str, list[str]]] | None:
    """Return the runtime spec with the devices in it, `before` untouched, and what is known of their driver and GPUs.

    None: take the long way.

    Raises: OSError, ValueError: take the long way, too.
    """
    held = _held(settings.cache) if settings.cache else None
    if held is None or held.get("folders") != state_of(settings.spec_dirs):
        return None
    parts = _parts(held, asked, settings.request)
    known: dict[str, list[str]] = {}
    for part in parts:
        _assert_current(part)
        facts = part.get("facts")
        known.update(facts if isinstance(facts, dict) else {})
    return merge(before, parts, asked), known


def _held(path: str) -> dict[str, object] | None:
    data = policy.read_trusted(path)
    if data is not None and posix.stat(path.rpartition("/")[0] or "/").st_mode & _PRIVATE:
        raise Unfit(path)  # its folder is open to others
    held = None if data is None else fastjson.decode(data)
    return held if isinstance(held, dict) and held.get("format") == FORMAT else None


def is_current(state: list[object], path: str) -> bool:
    """Return whether the cache exists and was made from this state."""
    try:
        held = _held(path)
    except ValueError:
        return False
    return held is not None and held.get("folders") == state


def state_of(folders: tuple[str, ...]) -> list[object]:
    """Return the state of the spec folders: owners, modes, identity of every spec and stamp.

    Raises: Unfit: a folder or file can be written by others.
    """
    found: list[object] = []
    for folder in folders:
        try:
            status = posix.stat(folder)
            names = sorted(name for name in posix.listdir(folder) if name.endswith(_SUFFIXES))
        except FileNotFoundError:
            found.append([folder])
            continue
        files = [[name, *_identity(f"{folder}/{name}")] for name in names]
        if not policy.is_ours(status) or trust.find_open(folder):
            raise Unfit(folder)
        found.append([folder, files])
    return found


def _identity(path: str) -> list[int]:
    status = posix.stat(path)
    if not policy.is_ours(status) or trust.find_open(path):
        raise Unfit(path)
    return [status.st_dev, status.st_ino, status.st_size, status.st_ctime_ns, status.st_mtime_ns]


def _parts(held: dict[str, object], asked: request.Request, rules: request.Policy) -> list[dict[str, object]]:
    """Return the parts asked for in the order of injection: each spec file's own before its first device."""
    files, devices = _object(held, "files"), _object(held, "devices")
    wanted: list[tuple[dict[str, object], str]] = []
    for name in request.resolve(asked, rules, devices):
        entry = devices.get(name)
        if not isinstance(entry, dict):
            raise Unfit(name)
        wanted += [(files, str(entry["file"])), (devices, name)]
    if asked.is_bare:
        kinds = {path: part["kind"] for path, part in files.items() if isinstance(part, dict)}
        kind = next((kind for kind in request.kinds(asked, rules) if kind in kinds.values()), "")
        wanted += [(files, path) for path, own in kinds.items() if own == kind]
    parts = []
    seen = set()
    for table, key in wanted:
        part = table.get(key)
        if not isinstance(part, dict) or not part["is_complete"]:
            raise Unfit(key)
        if (table is files, key) not in seen:
            seen.add((table is files, key))
            parts.append(part)
    if not parts:
        raise Unfit("nothing is asked for")
    return parts


def _assert_current(part: dict[str, object]) -> None:
    """Look at every node and program again: numbers move, files change hands."""
    for path, mode, numbers in _lists(part["nodes_seen"]):
        status = posix.lstat(str(path))
        if (status.st_mode, status.st_rdev) != (mode, numbers):
            raise Unfit(str(path))
    for _, entry in _lists(part["hooks"]):
        _assert_known_hook(entry)


def _assert_known_hook(entry: object) -> None:
    """Accept a hook from the cache: a driver's own program, that only root could have changed, cleanly started.

    The file is written by us alone; should another be able to, it still names no shell. Raises: OSError, Unfit.
    """
    path = entry.get("path") if isinstance(entry, dict) else None
    env = entry.get("env") if isinstance(entry, dict) else None
    if not isinstance(path, str) or path.rpartition("/")[2] not in _HOOKS or not isinstance(env, list | None):
        raise Unfit(str(path))
    if any(not isinstance(item, str) or item.startswith(_LOADER) for item in env or []):
        raise Unfit(path)
    if not path.startswith("/") or trust.find_open(path):
        raise Unfit(path)


def merge(before: dict[str, object], parts: list[dict[str, object]], asked: request.Request) -> dict[str, object]:
    """Put parts into a runtime spec with which they have nothing in common.

    Raises: Unfit: they have something in common, or the runtime spec is misshapen.
    """
    after = dict(before)
    process = _object(after, "process")
    _add_env(process, parts)
    user = _object(process, "user")
    _add_nodes(after, parts, user, asked)
    _add_mounts(after, parts, asked)
    _add_hooks(after, parts)
    gids = [gid for part in parts for gid in _items(part, "gids")]
    if gids:
        user["additionalGids"] = _apart(_items(user, "additionalGids"), gids)
        process["user"] = user
    if process:
        after["process"] = process
    return after


def _add_env(process: dict[str, object], parts: list[dict[str, object]]) -> None:
    added = [item for part in parts for item in _items(part, "env")]
    if added:
        held = _items(process, "env")
        _assert_apart([str(item).partition("=")[0] for item in held], [str(item).partition("=")[0] for item in added])
        process["env"] = [*held, *added]


def _add_nodes(
    after: dict[str, object], parts: list[dict[str, object]], user: dict[str, object], asked: request.Request
) -> None:
    added: list[dict[str, object]] = []
    granted = []
    for part in parts:
        for device, rule in _lists(part["nodes"]):
            if not isinstance(device, dict) or not bundle.is_shown(str(device["path"]), asked):
                continue
            own = {key: user[key] for key in ("uid", "gid") if key not in device and user.get(key)}
            added.append({**device, **own})
            granted += [rule] if rule else []
    if not added:
        return
    linux = _object(after, "linux")
    held = _items(linux, "devices")
    _assert_apart([_plain(item, "path") for item in held], [str(device["path"]) for device in added])
    linux["devices"] = [*held, *added]
    if granted:
        resources = _object(linux, "resources")
        resources["devices"] = _apart(_items(resources, "devices"), granted)
        linux["resources"] = resources
    after["linux"] = linux


def _add_mounts(after: dict[str, object], parts: list[dict[str, object]], asked: request.Request) -> None:
    added = [item for part in parts for item in _items(part, "mounts") if _is_shown(item, asked)]
    if not added:
        return
    held = _items(after, "mounts")
    _assert_apart([_plain(item, "destination") for item in held], [_plain(item, "destination") for item in added])
    after["mounts"] = sorted([*held, *added], key=_depth)


def _is_shown(mount: object, asked: request.Request) -> bool:
    return isinstance(mount, dict) and bundle.is_shown(str(mount["destination"]), asked)


def _depth(mount: object) -> int:
    """Count the parts of a destination that is written the shortest way."""
    place = _plain(mount, "destination")
    return place.count("/") - (place == "/")


def _add_hooks(after: dict[str, object], parts: list[dict[str, object]]) -> None:
    hooks = _object(after, "hooks")
    added = [pair for part in parts for pair in _lists(part["hooks"])]
    for stage, entry in added:
        hooks[str(stage)] = _apart(_items(hooks, str(stage)), [entry])
    if added:
        after["hooks"] = hooks


def _apart(held: list[object], added: list[object]) -> list[object]:
    """Return two lists as one. Raises: Unfit: an added item is in the result twice."""
    for place, item in enumerate(added):
        if item in held or item in added[:place]:
            raise Unfit(str(item))
    return [*held, *added]


def _assert_apart(held: list[str], added: list[str]) -> None:
    """Raises: Unfit: as `_apart`."""
    seen = set(held)
    for item in added:
        if item in seen:
            raise Unfit(item)
        seen.add(item)


def _plain(entry: object, key: str) -> str:
    """Return the path. Raises: Unfit: it is not absolute, or not in its shortest form."""
    text = entry.get(key) if isinstance(entry, dict) else None
    if not isinstance(text, str) or not text.startswith("/") or "/./" in f"{text}/" or "/../" in f"{text}/":
        raise Unfit(str(text))
    if "//" in text or (text.endswith("/") and text != "/"):
        raise Unfit(text)
    return text


def _object(parent: dict[str, object], key: str) -> dict[str, object]:
    value = parent.get(key)
    if value is not None and not isinstance(value, dict):
        raise Unfit(key)
    return dict(value or {})


def _items(parent: dict[str, object], key: str) -> list[object]:
    value = parent.get(key)
    if value is not None and not isinstance(value, list):
        raise Unfit(key)
    return value or []


def _lists(value: object) -> list[list[object]]:
    return value if isinstance(value, list) else []
