"""Edits one bundle's config.json for the shim: read, strip the request, add the hook, write back.

Injection itself is not here: `cachereader` does it where nothing has changed since last time, `create` with the whole
CDI library where anything has. Both hand over to this module before and after, so what they share is here once. Nothing
heavy is imported: this runs on every container's start.
"""

import posix

from fairlead.inject import fastjson, policy
from fairlead.plan.cdi import capability, hookargs, requirement
from fairlead.plan.shim import request

_LIMIT_BYTES = 16 << 20


class Bundle:
    """config.json of one bundle as it was read."""

    __slots__ = ("config", "path", "status")

    def __init__(self, path: str, config: dict[str, object], status: posix.stat_result) -> None:
        self.path = path
        self.config = config
        self.status = status
        """Of the file: its mode and owner are kept."""


def read(folder: str, marks: tuple[bytes, ...] = (b"",)) -> Bundle | None:
    """Read a bundle's config.json; None: none of the marks is in it, so it need not be decoded.

    Raises: OSError: not there.   ValueError: not a JSON object.
    """
    path = f"{folder}/config.json"
    handle = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        status = posix.fstat(handle)
        data = b""
        while chunk := posix.read(handle, max(status.st_size - len(data), 0) + 1):
            data += chunk
            if len(data) > _LIMIT_BYTES:
                raise ValueError(f"larger than {_LIMIT_BYTES} bytes")
    finally:
        posix.close(handle)
    if not any(mark in data for mark in marks):
        return None
    config = fastjson.decode(data)
    if not isinstance(config, dict):
        raise ValueError("not a JSON object")  # noqa: TRY004  the bytes are wrong, not a caller's type
    return Bundle(path, config, status)


def write(bundle: Bundle, config: dict[str, object]) -> None:
    """Replace config.json in one step, mode and owner kept. Raises: OSError: the old content is untouched."""
    data = fastjson.encode(config)
    temporary = f"{bundle.path}.fairlead-{posix.getpid()}"
    flags = posix.O_WRONLY | posix.O_CREAT | posix.O_EXCL | posix.O_NOFOLLOW | posix.O_CLOEXEC
    handle = posix.open(temporary, flags, 0o600)
    try:
        try:
            if (posix.geteuid(), posix.getegid()) != (bundle.status.st_uid, bundle.status.st_gid):
                posix.fchown(handle, bundle.status.st_uid, bundle.status.st_gid)
            posix.fchmod(handle, bundle.status.st_mode & 0o7777)
            while data:
                data = data[posix.write(handle, data) :]
        finally:
            posix.close(handle)
        posix.rename(temporary, bundle.path)
    except BaseException:
        posix.unlink(temporary)
        raise


def strip(config: dict[str, object], asked: request.Request, rules: request.Policy) -> dict[str, object]:
    """Return the runtime spec without the request itself; the given one is not touched.

    The variable goes, because what is injected says `void` in its place; so do mounts that are only a request.
    """
    edited = dict(config)
    process, mounts = config.get("process"), config.get("mounts")
    if isinstance(process, dict) and isinstance(process.get("env"), list):
        starts = tuple(f"{name}=" for name in rules.variables)
        kept = [item for item in process["env"] if not (isinstance(item, str) and item.startswith(starts))]
        edited["process"] = {**process, "env": kept}
    if asked.source.startswith("volume mounts") and isinstance(mounts, list):
        edited["mounts"] = [item for item in mounts if not request.is_volume_request(item)]
    return edited


def is_shown(path: str, asked: request.Request) -> bool:
    """Return whether a file or node of a spec is within the capabilities asked for."""
    return asked.capabilities is None or capability.is_wanted(path, asked.capabilities)


def finish(
    before: dict[str, object],
    after: dict[str, object],
    asked: request.Request,
    settings: policy.Settings,
    *,
    known: dict[str, list[str]],
) -> request.Refusal | None:
    """Hold driver and GPUs that were injected to the image's requirements, and add our hook to `after`, in place.

    Args:    before, after: the runtime spec without and with the devices.   known: see `requirement.hosts`.
    Returns: why the container must not start; None: `after` is what the runtime shall see.
    """
    added = _added_files(before, after)
    driver = requirement.driver_of([source for source, _ in added])
    if asked.requirements:
        found = requirement.first_problem(asked.requirements, requirement.hosts(known, _nodes(after), driver))
        if found:
            return request.Refusal("Unavailable", found[0], reason=requirement.UNMET, hint=found[1])
    if settings.hook and added:
        _add_hook(after, hook_entry(settings, added, driver))
    return None


def _added_files(before: dict[str, object], after: dict[str, object]) -> list[tuple[str, str]]:
    """Return source and destination of every mount that the injection brought."""
    old = before.get("mounts")
    known = [item for item in old if isinstance(item, dict)] if isinstance(old, list) else []
    kept = {(str(item.get("source")), str(item.get("destination"))) for item in known}
    new = after.get("mounts")
    entries = [item for item in new if isinstance(item, dict)] if isinstance(new, list) else []
    found = [(str(item.get("source")), str(item.get("destination"))) for item in entries]
    return [pair for pair in found if pair not in kept]


def _nodes(after: dict[str, object]) -> list[str]:
    """Return the paths of the container's device nodes; one that it had before counts: it is the same GPU."""
    linux = after.get("linux")
    nodes = linux.get("devices") if isinstance(linux, dict) else None
    return [str(item.get("path")) for item in nodes if isinstance(item, dict)] if isinstance(nodes, list) else []


def hook_entry(settings: policy.Settings, added: list[tuple[str, str]], driver: str) -> dict[str, object]:
    """Return the createContainer hook for these files, as config.json wants it."""
    args = hookargs.arguments([place for _, place in added], driver=driver, ldconfig=settings.ldconfig)
    return {"path": settings.hook, "args": args, "env": list(hookargs.ENV), "timeout": settings.hook_timeout_s}


def _add_hook(after: dict[str, object], entry: dict[str, object]) -> None:
    """Add our hook last; a spec that brings it by itself keeps its own."""
    held = after.get("hooks")
    hooks = dict(held) if isinstance(held, dict) else {}
    stage = hooks.get("createContainer")
    entries = list(stage) if isinstance(stage, list) else []
    if not any(isinstance(item, dict) and item.get("path") == entry["path"] for item in entries):
        hooks["createContainer"] = [*entries, entry]
        after["hooks"] = hooks
