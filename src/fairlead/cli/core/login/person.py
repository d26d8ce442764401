"""Says which person runs a verb on this machine, also behind sudo and su.

The kernel keeps who logged in (`loginuid`) through every change of user; where it does not know, sudo says who called.
Root can forge either: so this serves records among trusted people, not access control.
Source: proc(5), /proc/pid/loginuid; sudo(8), SUDO_UID.
"""

from __future__ import annotations

import contextlib
import os
import pwd
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from fairlead import errors

_UNSET: Final = 0xFFFFFFFF
_LONGEST: Final = 80


def name(env: Mapping[str, str], *, claimed: str = "", root: Path = Path("/")) -> str:
    """Return the person's name, or `uid N` where the machine has none for them.

    Args:    claimed: what they call themselves; it counts where the machine does not know.
    Raises:  Invalid (`PersonKnown`, `PersonInvalid`).
    """
    known = next((one for one in (_logged_in(root), _called(env)) if one is not None), None)
    if not claimed or known is not None:
        found = _named(os.getuid() if known is None else known)
        if claimed not in {"", found}:
            message = f'this machine knows who you are: "{found}"'
            raise errors.Invalid(message, reason="PersonKnown", hint="leave --by out")
        return found
    if not claimed.isprintable() or len(claimed) > _LONGEST:
        message = f'"{errors.readable(claimed[:_LONGEST])}" is not a name of at most {_LONGEST} characters'
        raise errors.Invalid(message, reason="PersonInvalid", hint="such as --by ann")
    return claimed


def _named(uid: int) -> str:
    with contextlib.suppress(KeyError):
        return pwd.getpwuid(uid).pw_name
    return f"uid {uid}"


def _logged_in(root: Path) -> int | None:
    try:
        found = int((root / "proc/self/loginuid").read_text())
    except (OSError, ValueError):
        return None
    return None if found == _UNSET else found


def _called(env: Mapping[str, str]) -> int | None:
    text = env.get("SUDO_UID", "")
    return int(text) if text.isascii() and text.isdecimal() and len(text) <= len(str(_UNSET)) else None
