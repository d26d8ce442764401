"""Reads the shim's file, `/etc/fairlead/runtime.json`: which runtime, which specs, whose requests count.

Every key is optional and an unknown one is an error: a typing mistake must not widen what images may do. The file and
its folder must belong to root and be closed to others, because its writer decides what runs as root.
"""

import posix

from fairlead.inject import fastjson
from fairlead.plan.cdi import capability
from fairlead.plan.shim import request

DEFAULT_PATH = "/etc/fairlead/runtime.json"
_WRITABLE = 0o022
_MAX_BYTES = 1 << 20


class PolicyError(ValueError):
    """The file says something it cannot mean; the text names the key."""


class Settings:
    """What the file says, or the default."""

    runtimes: tuple[str, ...] = ("runc", "crun")
    """Names on PATH or absolute paths; the first that is there is used."""
    spec_dirs: tuple[str, ...] = ("/etc/cdi", "/var/run/cdi")
    """In rising priority."""
    hook = ""
    """Absolute path of `fairlead-hook`; empty: no hook is added."""
    hook_timeout_s = 30
    ldconfig = ""
    """The host's ldconfig; empty: the hook looks in the usual places."""
    cache = "/run/fairlead/shim/inject.json"
    """Where resolved specs are kept between containers, in a folder of mode 0700; empty: nowhere."""
    yaml_cache = "/run/fairlead/cdi-yaml"
    """Where YAML specs are kept as JSON, which alone is read here; empty: nowhere."""
    allocations = "/var/lib/kubelet/device-plugins/kubelet_internal_checkpoint"
    """Where the node's kubelet writes down what it gave to whom; empty: nowhere."""

    def __init__(self) -> None:
        self.request = request.Policy()


def load(path: str, *, hook: str = "", runtimes: tuple[str, ...] = ()) -> Settings:
    """Read the file; a missing one means the defaults.

    Args:    hook, runtimes: what these are where the file does not say; no runtimes: the default.
    Raises:  PolicyError: unreadable, open to others than root, or a key that is unknown or mistyped.
    """
    settings = Settings()
    settings.hook = hook
    settings.runtimes = runtimes or settings.runtimes
    data = read_trusted(path)
    if data is None:
        return settings
    try:
        found = fastjson.decode(data)
    except ValueError as error:
        raise PolicyError(f"not JSON: {error}") from None
    if not isinstance(found, dict):
        raise PolicyError("not a JSON object")
    for key, value in found.items():
        if key not in _KEYS:
            raise PolicyError(f'key "{key}" is unknown (known: {", ".join(sorted(_KEYS))})')
        field, check = _KEYS[key]
        owner = settings if hasattr(settings, field) else settings.request
        setattr(owner, field, check(key, value))
    return settings


def read_trusted(path: str) -> bytes | None:
    """Return a file that only root, or who we are, can have written; None: it is not there.

    Raises: PolicyError: it cannot be read, or others could have written it.
    """
    try:
        handle = posix.open(path, posix.O_RDONLY | posix.O_CLOEXEC | posix.O_NONBLOCK)
    except FileNotFoundError:
        return None
    except OSError as error:
        raise PolicyError(f"cannot be read: {error.strerror}") from None
    try:
        status = posix.fstat(handle)
        if not is_ours(status):
            raise PolicyError("can be written by others than root")
        # No more than there is: a large buffer costs more than all the reading.
        data = posix.read(handle, min(status.st_size + 1, _MAX_BYTES))
    except OSError as error:
        raise PolicyError(f"cannot be read: {error.strerror}") from None
    finally:
        posix.close(handle)
    if len(data) == _MAX_BYTES:
        raise PolicyError(f"is larger than {_MAX_BYTES} bytes")
    return data


def is_ours(status: posix.stat_result) -> bool:
    """Whether only root and our own user may write a file or folder."""
    return status.st_uid in {0, posix.geteuid()} and not status.st_mode & _WRITABLE


def _text(key: str, value: object) -> str:
    if not isinstance(value, str):
        raise PolicyError(f'"{key}" must be text, not {value!r}')
    return value


def _path(key: str, value: object) -> str:
    text = _text(key, value)
    if text and not text.startswith("/"):
        raise PolicyError(f'"{key}" must be an absolute path, not "{text}"')
    return text


def _texts(key: str, value: object) -> tuple[str, ...]:
    if not isinstance(value, list) or not value:
        raise PolicyError(f'"{key}" must be a list with at least one text, not {value!r}')
    return tuple(_text(key, item) for item in value)


def _flag(key: str, value: object) -> bool:
    if not isinstance(value, bool):
        raise PolicyError(f'"{key}" must be true or false, not {value!r}')
    return value


def _seconds(key: str, value: object) -> int:
    if not isinstance(value, int) or isinstance(value, bool) or value <= 0:
        raise PolicyError(f'"{key}" must be a number of seconds above 0, not {value!r}')
    return value


def _mode(key: str, value: object) -> str:
    return _one_of(key, value, request.MODES)


def _image_requests(key: str, value: object) -> str:
    return _one_of(key, value, request.IMAGE_REQUESTS)


def _one_of(key: str, value: object, offered: tuple[str, ...]) -> str:
    text = _text(key, value)
    if text not in offered:
        raise PolicyError(f'"{key}" must be one of {", ".join(offered)}, not "{text}"')
    return text


def _capabilities(key: str, value: object) -> frozenset[str]:
    found = frozenset(_texts(key, value))
    if not found <= capability.ALL:
        raise PolicyError(f'"{key}" must be of {", ".join(capability.KNOWN)}, not {", ".join(sorted(found))}')
    return found


_KEYS = {
    "runtimes": ("runtimes", _texts),
    "specDirs": ("spec_dirs", _texts),
    "hook": ("hook", _path),
    "hookTimeout": ("hook_timeout_s", _seconds),
    "ldconfig": ("ldconfig", _path),
    "cache": ("cache", _path),
    "yamlCache": ("yaml_cache", _path),
    "allocations": ("allocations", _path),
    "mode": ("mode", _mode),
    "defaultKind": ("default_kind", _text),
    "imageRequests": ("image_requests", _image_requests),
    "acceptVolumeMounts": ("accepts_volume_mounts", _flag),
    "checkAllocations": ("checks_allocations", _flag),
    "annotationPrefixes": ("annotation_prefixes", _texts),
    "variables": ("variables", _texts),
    "driverCapabilities": ("capabilities", _capabilities),
    "checkRequirements": ("checks_requirements", _flag),
}
