"""`fairlead service …`: runs Fairlead from boot on, as a unit of systemd.

The unit is hardened as far as containers allow it. A mount namespace of its own (ProtectSystem, PrivateTmp) would hide
the containers' file systems from the host; filters that children inherit (NoNewPrivileges, SystemCallFilter,
LockPersonality, RestrictNamespaces, MemoryDenyWriteExecute) would bind every container; DevicePolicy would take their
GPUs. What is left: no capability that neither Fairlead nor a container needs, folders of its own with closed modes, and
an end that spares containers.
"""

from __future__ import annotations

import asyncio
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Final

import click

from fairlead import command, errors, files
from fairlead.cli.core import invocation, options, plaintext

UNIT: Final = Path("etc/systemd/system/fairlead.service")
_NAME: Final = "fairlead.service"
_MARK: Final = "# Written by `fairlead service install`; `fairlead service uninstall` removes it."
_SYSTEMD: Final = Path("run/systemd/system")
"""There while systemd is process 1.  Source: sd_booted(3)."""
_SYSTEMCTL_S: Final = 120.0
_TEMPLATE: Final = """\
{mark}
[Unit]
Description=Fairlead: GPUs into containers
Documentation=man:fairlead(1) man:fairlead-up(1)
Wants=network-online.target
After=network-online.target local-fs.target nvidia-persistenced.service nvidia-fabricmanager.service

[Service]
Type=notify
NotifyAccess=main
ExecStart={start}
# Containers outlive the service: the next start adopts them.
KillMode=process
TimeoutStartSec=90
TimeoutStopSec=30
Restart=on-failure
RestartSec=2
# Wrong settings, no root, another owner of this machine's GPUs: trying again mends none of them.
RestartPreventExitStatus=2 3 4
LimitNOFILE=1048576
TasksMax=infinity
ConfigurationDirectory=fairlead
StateDirectory=fairlead
StateDirectoryMode=0700
RuntimeDirectory=fairlead
RuntimeDirectoryMode=0755
RuntimeDirectoryPreserve=yes
KeyringMode=private
# Nothing here may make a mount namespace, a device policy or a filter that containers would inherit.
CapabilityBoundingSet=~CAP_SYS_BOOT CAP_SYS_TIME CAP_WAKE_ALARM CAP_BLOCK_SUSPEND CAP_LINUX_IMMUTABLE
CapabilityBoundingSet=~CAP_SYS_TTY_CONFIG CAP_AUDIT_CONTROL CAP_AUDIT_READ CAP_SYS_PACCT

[Install]
WantedBy=multi-user.target
"""


def unit_text(argv: Sequence[str], *, mark: str = _MARK) -> str:
    """Return the unit that starts a command line; its first line says whose it is."""
    return _TEMPLATE.format(mark=mark, start=" ".join(_quoted(word) for word in argv))


def _quoted(word: str) -> str:
    """Return one word of ExecStart.  Source: systemd.service(5), COMMAND LINES, and systemd.unit(5), SPECIFIERS."""
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in word):
        message = f"{word!r} holds a control character, which a unit cannot hold"
        raise errors.Invalid(message, reason="UnitInvalid", hint="choose another name")
    word = word.replace("\\", "\\\\").replace('"', '\\"').replace("%", "%%").replace("$", "$$")
    return f'"{word}"' if not word or set(word) & set(" '\\\"") else word


def own_command() -> tuple[str, ...]:
    """Return what starts this program, by absolute paths."""
    program = Path(sys.argv[0])
    if program.name == "fairlead" and program.is_file() and os.access(program, os.X_OK):
        return (str(program.absolute()),)
    return (sys.executable, "-m", "fairlead.cli.main")


@click.group("service")
def group() -> None:
    """Run Fairlead from boot on, as a systemd unit."""


@group.command("install")
@click.option(
    "--simulate",
    "profile",
    metavar="PROFILE",
    shell_complete=options.complete_profiles,
    help="use simulated silicon, as with `fairlead up`",
)
@click.option("--start/--no-start", "starts", default=True, show_default=True, help="start it now, and at every boot")
@click.option("--print", "prints", is_flag=True, help="print the unit and change nothing")
@click.option("--program", type=click.Path(path_type=Path), help="the fairlead program  [default: this one]")
@click.option("--root", type=click.Path(path_type=Path), default="/", hidden=True)
@click.pass_context
def install(
    ctx: click.Context, *, profile: str | None, starts: bool, prints: bool, program: Path | None, root: Path
) -> None:
    """Write the unit, enable it and start it.

    Settings are those of /etc/fairlead/config.toml, or of the file that --config names before the verb.
    """
    argv = (str(program.absolute()),) if program else own_command()
    config = invocation.current(ctx).config
    argv += (*(("--config", str(config.absolute())) if config else ()), "up")
    text = unit_text((*argv, *(("--simulate", profile) if profile else ())))
    if prints:
        plaintext.echo(text, nl=False)
        return
    _check(root)
    path = root / UNIT
    if path.exists() and _MARK not in path.read_text(errors="replace"):
        message = f"{path} is there already and was not written by fairlead"
        raise errors.Conflict(message, reason="UnitForeign", hint="move it away, or use it: systemctl start fairlead")
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomic(path, text.encode(), mode=0o644)
    plaintext.echo(f"{path}: written")
    _systemctl("daemon-reload")
    if starts:
        _systemctl("enable", _NAME)
        # One that runs already, by the package's unit or an earlier one of ours, goes on with this one.
        _systemctl("restart", _NAME)
        plaintext.echo(
            "fairlead runs, and will at every boot; `fairlead status` shows it, `journalctl -u fairlead` its log"
        )
    else:
        plaintext.echo(f"start it with: systemctl enable --now {_NAME}")


@group.command("uninstall")
@click.option("--root", type=click.Path(path_type=Path), default="/", hidden=True)
def uninstall(*, root: Path) -> None:
    """Stop the service and remove its unit; containers, state and settings stay."""
    _check(root)
    path = root / UNIT
    if not path.exists():
        plaintext.echo(f"{path} is not there: nothing to remove")
        return
    if _MARK not in path.read_text(errors="replace"):
        message = f"{path} was not written by fairlead, so it stays"
        raise errors.Conflict(message, reason="UnitForeign", hint="systemctl disable --now fairlead; then remove it")
    _systemctl("disable", "--now", _NAME)
    path.unlink()
    _systemctl("daemon-reload")
    plaintext.echo(f"{path}: removed; containers go on, `fairlead up` adopts them")


def _check(root: Path) -> None:
    if os.geteuid() != 0:
        message = "fairlead service needs root: it writes a unit of systemd"
        raise errors.Denied(message, reason="NotRoot", hint="run it with sudo")
    if not (root / _SYSTEMD).is_dir():
        message = "this machine is not run by systemd"
        hint = "`fairlead up` runs the service in a terminal; `--print` shows the unit"
        raise errors.Unavailable(message, reason="SystemdMissing", hint=hint)


def _systemctl(*arguments: str) -> None:
    asked = command.run(["systemctl", *arguments], env=command.base_env(), timeout_s=_SYSTEMCTL_S)
    result = asyncio.run(asked)
    if result.code != 0:
        message = f"systemctl {' '.join(arguments)} failed: {result.last_line or f'it ended with {result.code}'}"
        raise errors.Unavailable(message, reason="SystemdFailed", hint=f"systemctl status {_NAME} says more")
