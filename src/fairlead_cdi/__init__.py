"""Reads, checks, resolves, injects, writes and watches CDI specs: the Container Device Interface as a library.

    from fairlead_cdi import Registry

    config = Registry.default().inject(config, ["nvidia.com/gpu=0"])

The names in `__all__` are the usual entry; each is loaded from its module when it is first used, so that `import
fairlead_cdi` itself costs nothing. The modules have the rest: `parse` and `emit` (documents in and out), `validate`
and `lint` (rules and dangers), `difference`, `annotation`, `oci` (runtime specs), `host` (this machine's device
nodes, and who could change a file). Only the standard library is needed. `yamlfile` reads YAML by PyYAML and is loaded
with the first YAML file; `cache` adds asyncinotify and is loaded when a program imports it.
"""

__version__ = "0.1.0"

__all__ = [
    "CDIError",
    "Change",
    "ContainerEdits",
    "Device",
    "DeviceNode",
    "DeviceNotFound",
    "DocumentError",
    "Hook",
    "HostError",
    "IntelRdt",
    "InvalidRequest",
    "Mount",
    "NetDevice",
    "Registry",
    "RequestError",
    "Resolved",
    "Spec",
    "SpecFile",
    "WrongType",
    "scan",
]

TYPE_CHECKING = False  # importing `typing` for its constant would cost as much as the rest of this module
if TYPE_CHECKING:
    from fairlead_cdi.directory import Registry, scan
    from fairlead_cdi.errors import (
        CDIError,
        DeviceNotFound,
        DocumentError,
        HostError,
        InvalidRequest,
        RequestError,
        WrongType,
    )
    from fairlead_cdi.inject import Change
    from fairlead_cdi.spec import (
        ContainerEdits,
        Device,
        DeviceNode,
        Hook,
        IntelRdt,
        Mount,
        NetDevice,
        Resolved,
        Spec,
        SpecFile,
    )

else:  # a type checker that saw `__getattr__` would take any misspelt name
    _MODULES = {
        "directory": ("Registry", "scan"),
        "errors": (
            "CDIError",
            "DeviceNotFound",
            "DocumentError",
            "HostError",
            "InvalidRequest",
            "RequestError",
            "WrongType",
        ),
        "inject": ("Change",),
        "spec": (
            "ContainerEdits",
            "Device",
            "DeviceNode",
            "Hook",
            "IntelRdt",
            "Mount",
            "NetDevice",
            "Resolved",
            "Spec",
            "SpecFile",
        ),
    }
    """Module to the names of `__all__` that it defines."""

    def __getattr__(name: str) -> object:
        """Load a name of `__all__` from its module when it is first used."""
        for module, names in _MODULES.items():
            if name in names:
                # Not importlib: importing it would cost more than this package does.
                value: object = getattr(__import__(f"{__name__}.{module}", fromlist=[name]), name)
                globals()[name] = value
                return value
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

    def __dir__() -> list[str]:
        """List the names that can be loaded too."""
        return sorted({*globals(), *__all__})
