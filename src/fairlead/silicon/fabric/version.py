"""Checks versions of the Fabric Manager and of NVIDIA's driver, as settings and machines say them; they must be one."""

from __future__ import annotations

import re
from typing import Final

from fairlead import errors
from fairlead.model.fabric import VERSION

_FORM: Final = re.compile(VERSION, re.ASCII)


def checked(name: str, value: str) -> str:
    """Return a version that a setting says. Raises: Invalid (`SettingInvalid`): it is none."""
    if value and not _FORM.fullmatch(value):
        message = f'{name} "{value}" is no version of NVIDIA\'s driver'
        raise errors.Invalid(message, reason="SettingInvalid", hint="as `nvidia-smi` shows it: 580.95.05")
    return value


def known(value: str) -> str:
    """Return a version that a machine says; empty where it is none."""
    return value if _FORM.fullmatch(value) else ""
