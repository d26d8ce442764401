"""Says how a container's files are served: who its user is, from its OCI configuration, and the program that goes in.

Source: OCI runtime specification 1.2, "Process" (user, capabilities, cwd).
"""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import Annotated, Final

import msgspec

import fairlead
from fairlead import command, errors, files

PROGRAM: Final = Path(fairlead.__file__).parent / "kernel/programs/sftpserver.py"
_Id = Annotated[int, msgspec.Meta(ge=0, lt=1 << 32)]


class _User(msgspec.Struct, frozen=True, rename="camel"):
    uid: _Id = 0
    gid: _Id = 0
    additional_gids: tuple[_Id, ...] = ()


class _Capabilities(msgspec.Struct, frozen=True):
    effective: tuple[str, ...] = ()


class _Process(msgspec.Struct, frozen=True):
    user: _User = _User()
    capabilities: _Capabilities = _Capabilities()
    cwd: str = "/"


class _Config(msgspec.Struct, frozen=True):
    process: _Process


def argv(bundle: Path, pid: int, container: str) -> list[str]:
    """Return the command line of the program for a container. Args: pid: its first process.   container: its id.

    Raises: Unavailable (`SFTPNotServed`): the library is not installed; ProtocolError: the configuration is damaged.
    """
    if importlib.util.find_spec("asyncssh") is None:
        message = "SFTP needs asyncssh, which is not installed"
        hint = "`make install` and the Debian package bring it; a wheel has it with its extra, fairlead[server,ssh]"
        raise errors.Unavailable(message, reason="SFTPNotServed", hint=hint)
    try:
        process = msgspec.json.decode(files.read_bounded(bundle / "config.json"), type=_Config).process
    except (OSError, msgspec.MsgspecError) as error:
        message = f"the configuration of the container cannot be read: {error}"
        raise errors.ProtocolError(message, reason="PodmanOutputInvalid", hint="is it running still?") from error
    user = process.user
    groups, capabilities = ",".join(map(str, user.additional_gids)), ",".join(process.capabilities.effective)
    words = [str(pid), container, str(user.uid), str(user.gid), groups, capabilities, process.cwd]
    return command.dying_with_us([sys.executable, "-I", str(PROGRAM), *words])
