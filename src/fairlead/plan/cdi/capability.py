"""Parses NVIDIA_DRIVER_CAPABILITIES and says which file belongs to which part of the driver.

Libraries, tools, configuration and nodes are known by path alone, so that one rule serves every vendor's spec. A
path that no part claims belongs to all of them. The generator of specs and the runtime shim both decide with this
table; the shim does so on a container's start, so nothing is imported here, not even `typing`.
Source: NVIDIA container toolkit documentation, "Driver capabilities"; libnvidia-container's library groups.
"""

VARIABLE = "NVIDIA_DRIVER_CAPABILITIES"
KNOWN = ("compute", "compat32", "display", "graphics", "ngx", "utility", "video")
DEFAULT = frozenset({"compute", "utility"})
ALL = frozenset(KNOWN)

_FILES: dict[str, tuple[str, ...]] = {
    "utility": (
        "libnvidia-ml.",
        "libnvidia-cfg.",
        "libnvidia-nscq.",
        "nvidia-smi",
        "nvidia-debugdump",
        "nvidia-persistenced",
        "nv-fabricmanager",
    ),
    "compute": (
        "libcuda.",
        "libcudadebugger.",
        "libnvidia-opencl.",
        "libnvidia-gpucomp.",
        "libnvidia-ptxjitcompiler.",
        "libnvidia-fatbinaryloader.",
        "libnvidia-allocator.",
        "libnvidia-compiler.",
        "libnvidia-pkcs11",
        "libnvidia-nvvm",
        "libnvidia-tileiras.",
        "nvidia-cuda-mps-",
        "libOpenCL.",
    ),
    "display": ("nvidia-xconfig", "nvidia_drv.so", "libglxserver_nvidia."),
    "video": ("libvdpau_nvidia.", "libnvidia-encode.", "libnvidia-opticalflow.", "libnvcuvid."),
    "graphics": (
        "libnvidia-eglcore.",
        "libnvidia-glcore.",
        "libnvidia-tls.",
        "libnvidia-glsi.",
        "libnvidia-fbc.",
        "libnvidia-ifr.",
        "libnvidia-rtcore.",
        "libnvoptix.",
        "libGLX_nvidia.",
        "libEGL_nvidia.",
        "libGLESv2_nvidia.",
        "libGLESv1_CM_nvidia.",
        "libnvidia-glvkspirv.",
        "libnvidia-cbl.",
        "libnvidia-egl-",
        "libnvidia-vulkan-producer.",
        "libnvidia-api.",
        "libGLX_indirect.",
        "libEGL.",
        "libGL.",
        "libGLESv1_CM.",
        "libGLESv2.",
        "libGLX.",
        "libGLdispatch.",
        "libOpenGL.",
        "nvoptix.bin",
        "nvidia-application-profiles",
        # Both need these: a shader compiler, and buffers that graphics and compute share.
        "libnvidia-gpucomp.",
        "libnvidia-allocator.",
    ),
    "ngx": ("libnvidia-ngx.",),
}
_FOLDERS: dict[str, tuple[str, ...]] = {
    "glvnd": ("graphics", "display"),
    "egl_external_platform.d": ("graphics", "display"),
    "vulkan": ("graphics", "display"),
    "dri": ("graphics", "display"),
    "gbm": ("graphics", "display"),
    "X11": ("display",),
    "OpenCL": ("compute",),
}
KEPT = ("libnvidia-gpucomp.", "libnvidia-allocator.")
"""Starts of files that every generated spec has, whatever capabilities it is made for.

Compute and graphics both need them. The shim narrows a spec for each container and can widen none.
"""
_FOLDERS_32 = frozenset({"i386-linux-gnu", "arm-linux-gnueabihf", "lib32"})
_MODESET = "/dev/nvidia-modeset"


def parse_capabilities(text: str, supported: frozenset[str] = ALL) -> tuple[frozenset[str], tuple[str, ...]]:
    """Read a value of the variable.

    Args:    text: names joined by commas; empty means the default.   supported: what `all` stands for.
    Returns: the capabilities asked for, and the words that are none or are not supported, in the order given.
    """
    words = [word for word in (part.strip() for part in text.split(",")) if word]
    if not words:
        return DEFAULT & supported, ()
    if "all" in words:
        return supported, ()
    return frozenset(words) & supported, tuple(word for word in words if word not in supported)


def owners(path: str) -> frozenset[str]:
    """Return the capabilities a file or node belongs to; empty: to every one."""
    if path == _MODESET:
        return frozenset({"graphics", "display"})
    folder, _, name = path.rpartition("/")
    found = {owner for owner, starts in _FILES.items() if name.startswith(starts)}
    if not found:
        found = {owner for part in folder.split("/") for owner in _FOLDERS.get(part, ())}
    return frozenset(found)


def is_wanted(path: str, wanted: frozenset[str], kept: tuple[str, ...] = ()) -> bool:
    """Whether a container that asked for these capabilities gets this file or node.

    Args: kept: starts of names that are given whatever was asked for, `KEPT` for a generated spec.
    """
    if "compat32" not in wanted and not _FOLDERS_32.isdisjoint(path.split("/")):
        return False
    if path[path.rfind("/") + 1 :].startswith(kept):
        return True
    found = owners(path)
    return not found or not found.isdisjoint(wanted)
