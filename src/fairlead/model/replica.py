"""Owns the ids of shared devices: `ID::N` is one of several devices that stand for the device ID.

One owner of the grammar. The runtime shim reads it at every container's start, so nothing is imported here.
Source: NVIDIA k8s-device-plugin, internal/rm/allocate.go and devices.go, "AnnotatedID".
"""

SEPARATOR = "::"


def name(device_id: str, number: int) -> str:
    """Return the id of one replica of a device."""
    return f"{device_id}{SEPARATOR}{number}"


def origin(device_id: str) -> str:
    """Return the id of the device that a replica stands for; of any other device its own."""
    head, _, number = device_id.partition(SEPARATOR)
    return head if head and number.isascii() and number.isdecimal() else device_id
