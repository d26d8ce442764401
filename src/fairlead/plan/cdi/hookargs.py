"""Builds the command line of our one createContainer hook, for the shim and for generated specs alike.

`inject.hook.program` says what each option makes the hook do. The steps have the names of NVIDIA's toolkit, so that an
operator leaves one out by a known name. Nothing is imported: the shim uses this on a container's start.
"""

LINKS = "create-symlinks"
CACHE = "update-ldcache"
COMPAT = "enable-cuda-compat"
NO_NODES = "disable-device-node-modification"
PROFILE = "update-application-profile"
STEPS = (LINKS, CACHE, COMPAT, NO_NODES, PROFILE)
PROFILE_FILE = "/etc/nvidia/nvidia-application-profiles-rc.d/10-container.conf"
"""Read by the driver's graphics libraries. Source: NVIDIA driver README, "Application profiles"."""
_GRAPHICS = ("libEGL_nvidia.so.", "libGLX_nvidia.so.", "libnvidia-eglcore.so.", "libnvidia-glcore.so.")
NAME = "fairlead-hook"
ENV = ("PATH=/usr/sbin:/usr/bin:/sbin:/bin",)
"""Not empty, so that no runtime lets the image's environment reach the hook (CVE-2025-23266)."""
TIMEOUT_S = 30


def arguments(
    places: list[str], *, driver: str = "", ldconfig: str = "", without: frozenset[str] = frozenset()
) -> list[str]:
    """Return argv of the hook.

    Args:    places: paths, in the container, of every file that is mounted.   driver: its version; empty: unknown.
             ldconfig: the host's; empty: the hook looks in the usual places.   without: members of `STEPS`.
    """
    args = [NAME]
    if CACHE not in without:
        libraries = [place for place in places if ".so" in place[place.rfind("/") + 1 :]]
        for folder in sorted({place[: place.rfind("/")] or "/" for place in libraries}):
            args += ["--folder", folder]
    if driver and COMPAT not in without:
        args += ["--driver", driver]
    names = [place[place.rfind("/") + 1 :] for place in places]
    if PROFILE not in without and any(name.startswith(_GRAPHICS) for name in names):
        args += ["--application-profile", PROFILE_FILE]
    if ldconfig:
        args += ["--ldconfig", ldconfig]
    if NO_NODES in without:
        # The hook mounts over the driver's file of parameters; it skips that for a path that does not exist.
        args += ["--parameters", "/nonexistent"]
    return args
