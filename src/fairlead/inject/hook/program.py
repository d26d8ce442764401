"""Implements `fairlead-hook`, which runs as root before a container's process exists, as its one createContainer hook.

It makes the driver's libraries findable: links by SONAME, the CUDA compatibility libraries of the image where the
driver is too old, the linker's cache (glibc) or path file (musl). It keeps the driver's programs inside from making
device nodes, and its graphics libraries which GPUs are the container's. The image is hostile: its environment and
working folder may be ours, its files may be anything and may change while we look. So the hook refuses loader
variables, leaves the folder it was started in, goes to files of the image through `rootfs` alone and runs nothing of it
(`linker`).

A file system that cannot be written, an image without a linker, a link that leads out: the step is refused and reported
on standard error, and the container starts without it. A hook started in the wrong way, and a host that is out of
space or memory, stop it.
Source: OCI runtime-spec config.md, "POSIX-platform Hooks"; runtime.md, "State"; NVIDIA driver README, "Application
profiles", EGLVisibleDGPUDevices.
"""

import _signal  # type: ignore[import-not-found]  # `signal` alone would cost 3 ms, for its enums
import _stat
import posix
import sys

from fairlead.inject import fastjson, rootfs
from fairlead.inject.hook import compat, elf, linker

_LONGEST = 2000
_STATE_LIMIT_BYTES = 1 << 20
_CONFIG_LIMIT_BYTES = 16 << 20
_DROP_IN = "/etc/ld.so.conf.d/00-fairlead.conf"
_INCLUDE = b"include /etc/ld.so.conf.d/*.conf\n"
_CACHE = "/etc/ld.so.cache"
_PARAMETERS = "/proc/driver/nvidia/params"
_MUSL_DEFAULT = "/lib:/usr/local/lib:/usr/lib"
_LEFT_OUT = frozenset({1, 2, 6, 13, 16, 17, 18, 20, 21, 22, 27, 30, 36, 38, 39, 40, 95})
"""EPERM ENOENT ENXIO EACCES EBUSY EEXIST EXDEV ENOTDIR EISDIR EINVAL EFBIG EROFS ENAMETOOLONG ENOSYS ENOTEMPTY ELOOP
EOPNOTSUPP: the image or the system is so that the step cannot be done, and it was not done."""
_EROFS = 30
_REPEATED = ("--folder", "--link")
_SINGLE = ("--driver", "--ldconfig", "--compat-folder", "--parameters", "--application-profile")
_GPU_NODE = "/dev/nvidia"
_MASK_BITS = 64


class HookError(Exception):
    """The container must not start; the text says why."""


def main(arguments: list[str] | None = None) -> int:
    """Run the hook for the container whose state is on standard input; returns the exit code."""
    try:
        _hear_signals()
        _leave_the_image()
        options = parse(sys.argv[1:] if arguments is None else arguments)
        config, bundle = _container(_read(0, _STATE_LIMIT_BYTES))
        Hook(options, config, bundle).run()
    except (HookError, ValueError) as error:
        return _stop(str(error))
    except OSError as error:
        return _stop(f"{error.filename or 'the container'}: {error.strerror}")
    return 0


def _stop(words: str) -> int:
    _tell(words)
    return 1


def _tell(words: str) -> None:
    if len(words) > _LONGEST:  # they name a value, and that may be megabytes
        words = f"{words[:_LONGEST]}… ({len(words) - _LONGEST} characters left out)"
    posix.write(2, f"fairlead-hook: {words}\n".encode("utf-8", "backslashreplace"))


def _hear_signals() -> None:
    """Unblock signals: crun runs hooks with every signal blocked, and the alarm would never arrive."""
    _signal.pthread_sigmask(_signal.SIG_SETMASK, ())
    _signal.signal(_signal.SIGALRM, _signal.SIG_DFL)


def _leave_the_image() -> None:
    """Refuse an environment that the image may have set, and drop inherited folder, umask and files."""
    loader = sorted(name for name in posix.environ if name.startswith((b"LD_", b"GLIBC_TUNABLES", b"PYTHON")))
    if loader:
        raise HookError(f"started with {loader[0].decode('ascii', 'replace')} set: the hook's entry must have an env")
    if not (sys.flags.isolated and sys.flags.no_site):
        raise HookError("must be started by its launcher, with python -I -S")
    posix.chdir("/")
    posix.umask(0o022)
    posix.closerange(3, 4096)


def parse(arguments: list[str]) -> dict[str, list[str]]:
    """Read the command line; every option has a value. Raises: HookError: unknown, or without a value."""
    found: dict[str, list[str]] = {name: [] for name in (*_REPEATED, *_SINGLE)}
    for place in range(0, len(arguments), 2):
        name = arguments[place]
        if name not in found or place + 1 == len(arguments):
            raise HookError(f'option "{name}" is unknown or has no value (known: {", ".join(found)})')
        found[name].append(arguments[place + 1])
    relative = [
        path
        for path in (*found["--folder"], *found["--application-profile"])
        if not path.startswith("/") or "/../" in f"{path}/"
    ]
    if relative:
        raise HookError(f'"{relative[0]}" is not an absolute path')
    return found


def _read(handle: int, limit: int) -> bytes:
    found = b""
    while chunk := posix.read(handle, 1 << 16):
        found += chunk
        if len(found) > limit:
            raise HookError(f"input is larger than {limit} bytes")
    return found


def _container(state: bytes) -> tuple[dict[str, object], str]:
    """Return the container's runtime spec and bundle. Raises: HookError, ValueError, OSError."""
    found = fastjson.decode(state)
    bundle = found.get("bundle") if isinstance(found, dict) else None
    if not isinstance(bundle, str) or not bundle.startswith("/"):
        raise HookError("the state on standard input names no bundle")
    handle = posix.open(f"{bundle}/config.json", posix.O_RDONLY | posix.O_CLOEXEC)
    try:
        config = fastjson.decode(_read(handle, _CONFIG_LIMIT_BYTES))
    finally:
        posix.close(handle)
    if not isinstance(config, dict):
        raise HookError(f"{bundle}/config.json is not a JSON object")
    return config, bundle


class _Step:
    """A step that may be left out: what the image or system cannot have is reported and passed over."""

    def __init__(self, what: str) -> None:
        self._what = what

    def __enter__(self) -> None:
        """Begin."""

    def __exit__(self, kind: object, error: BaseException | None, trace: object) -> bool:
        """Decide whether an error ends the hook."""
        if isinstance(error, linker.LinkerError):
            _tell(f"{self._what} left out: {error}")
            return True
        if isinstance(error, OSError) and error.errno in _LEFT_OUT:
            _tell(f"{self._what} left out: {error.strerror}")
            return True
        return False


class Hook:
    """One container's preparation."""

    def __init__(self, options: dict[str, list[str]], config: dict[str, object], bundle: str) -> None:
        self._options = options
        self._config = config
        held = config.get("root")
        path = held.get("path") if isinstance(held, dict) else None
        if not isinstance(path, str) or not path:
            raise HookError("the runtime spec names no root file system")
        self._path = path if path.startswith("/") else f"{bundle}/{path}"
        self._root = rootfs.Root(self._path)
        self._folders = list(dict.fromkeys(options["--folder"]))

    def run(self) -> None:
        """Do every step; one that the image or system cannot have is reported and left out."""
        with _Step("links"):
            self._make_links()
        folders = [*self._compat_folders(), *self._folders]
        if folders:
            with _Step("library search"):
                self._find_libraries(folders)
        with _Step("device node modification"):
            self._stop_modification()
        for place in self._options["--application-profile"][-1:]:
            with _Step("application profile"):
                self._write_profile(place)

    def _make_links(self) -> None:
        """Make the links asked for, and one by SONAME for each mounted library that has none."""
        for pair in self._options["--link"]:
            target, separator, place = pair.partition("::")
            if not separator or not place.startswith("/"):
                raise HookError(f'link "{pair}" is not of the form TARGET::/PLACE')
            self._root.link(target, place)
        mounts = self._library_mounts()
        for place in mounts:
            folder, _, name = place.rpartition("/")
            wanted = _soname(self._root, place)
            if wanted and wanted != name and f"{folder}/{wanted}" not in mounts:
                self._root.link(name, f"{folder}/{wanted}")

    def _library_mounts(self) -> dict[str, str]:
        """Return destination → source of libraries in our folders that are mounted under a version, not a link's name.

        A source with several destinations has its links as mounts already.
        """
        held = self._config.get("mounts")
        entries = [item for item in held if isinstance(item, dict)] if isinstance(held, list) else []
        pairs = {str(item.get("destination")): str(item.get("source")) for item in entries}
        found = {place: source for place, source in pairs.items() if place.rpartition("/")[0] in self._folders}
        sources = list(found.values())
        return {place: source for place, source in found.items() if ".so." in place and sources.count(source) == 1}

    def _compat_folders(self) -> list[str]:
        driver = self._options["--driver"]
        if not driver:
            return []
        folder = (self._options["--compat-folder"] or [compat.FOLDER])[-1]
        return [folder] if compat.is_needed(self._root, folder, driver[-1]) else []

    def _find_libraries(self, folders: list[str]) -> None:
        names = self._names("/lib")
        musl = [name for name in names if name.startswith("ld-musl-") and name.endswith(".so.1")]
        for name in musl:
            self._extend_musl_path(f"/etc/{name.removesuffix('.so.1')}.path", folders)
        if musl and not any(name.startswith("ld-linux") for name in (*names, *self._names("/lib64"))):
            return
        self._keep_for_later(folders)
        ldconfig = (self._options["--ldconfig"] or [""])[-1]
        data = linker.build_cache(self._path, folders, ldconfig=ldconfig)
        try:
            self._root.write(_CACHE, data)
        except OSError as error:
            if error.errno != _EROFS:
                raise
            self._root.cover(_CACHE, data)

    def _names(self, folder: str) -> list[str]:
        try:
            return self._root.list(folder)
        except OSError:
            return []

    def _extend_musl_path(self, path: str, folders: list[str]) -> None:
        try:
            held = self._root.read(path).decode("utf-8", "surrogateescape")
        except FileNotFoundError:
            held = _MUSL_DEFAULT
        parts = [part for part in held.replace("\n", ":").split(":") if part]
        wanted = [*parts, *(folder for folder in folders if folder not in parts)]
        if wanted != parts:
            self._root.write(path, (":".join(wanted) + "\n").encode("utf-8", "surrogateescape"))

    def _keep_for_later(self, folders: list[str]) -> None:
        """Name the folders in the linker's configuration, so that an ldconfig inside does not lose them."""
        try:
            self._root.write(_DROP_IN, "".join(f"{folder}\n" for folder in folders).encode())
            if not self._root.is_file("/etc/ld.so.conf"):
                self._root.write("/etc/ld.so.conf", _INCLUDE)
        except OSError as error:
            if error.errno not in _LEFT_OUT:
                raise
            _tell(f"{_DROP_IN} left out: {error.strerror}")

    def _stop_modification(self) -> None:
        """Show the container's NVIDIA programs a driver that does not ask them to make device nodes."""
        host = (self._options["--parameters"] or [_PARAMETERS])[-1]
        try:
            handle = posix.open(host, posix.O_RDONLY | posix.O_CLOEXEC)
        except FileNotFoundError:
            return  # no driver is loaded
        try:
            lines = rootfs.read_all(handle).splitlines(keepends=True)
        finally:
            posix.close(handle)
        data = b"".join(b"ModifyDeviceFiles: 0\n" if line.startswith(b"ModifyDeviceFiles:") else line for line in lines)
        self._root.cover(_PARAMETERS, data)

    def _write_profile(self, place: str) -> None:
        """Have EGL and Vulkan look at the container's GPUs only: bit N of the mask is /dev/nvidiaN.

        The driver enumerates every GPU of the machine, and a library that opens one without its node may give up.
        """
        mask = 0
        for minor in _gpu_minors(self._config):
            mask |= 1 << minor
        if mask:
            rule = f'{{"pattern": [], "profile": ["EGLVisibleDGPUDevices", {mask:#x}]}}'
            self._root.write(place, f'{{"rules": [{rule}]}}\n'.encode())


def _gpu_minors(config: dict[str, object]) -> list[int]:
    """Return the minors of the GPUs whose nodes the runtime makes in the container."""
    linux = config.get("linux")
    held = linux.get("devices") if isinstance(linux, dict) else None
    nodes = [item for item in held if isinstance(item, dict)] if isinstance(held, list) else []
    found = [
        item.get("minor")
        for item in nodes
        if str(item.get("path"))[len(_GPU_NODE) :].isdecimal() and str(item.get("path")).startswith(_GPU_NODE)
    ]
    return [minor for minor in found if isinstance(minor, int) and 0 <= minor < _MASK_BITS]


def _soname(root: rootfs.Root, place: str) -> str | None:
    """Return the SONAME of a library as it is mounted inside; None where it has none or is not a file to be read.

    A tenant's own volume may stand among the driver's libraries: what is not a regular file is never waited for.
    """
    try:
        handle = root.open(place, posix.O_RDONLY | posix.O_NONBLOCK)
    except OSError:
        return None
    try:
        return elf.soname(handle) if _stat.S_ISREG(posix.fstat(handle).st_mode) else None
    except OSError:
        return None
    finally:
        posix.close(handle)
