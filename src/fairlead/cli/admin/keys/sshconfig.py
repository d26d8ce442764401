"""`fairlead ssh-config`: prints how OpenSSH reaches containers: a block of ~/.ssh/config, and a line of known_hosts."""

from __future__ import annotations

import re
import shlex
from typing import Final

import click

from fairlead import errors
from fairlead.cli.core import options, plaintext
from fairlead.cli.core.client import Client
from fairlead.serve.v1.accounts.sshkeyview import SSHDoorView

_ALIAS: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}", re.ASCII)


@click.command("ssh-config")
@click.argument("container", required=False, default="")
@options.namespace_option
@click.option("--alias", default="", metavar="NAME", help="name of the Host block  [default: fairlead, or CONTAINER]")
@click.option("--identity", default="", metavar="FILE", help="private key to use  [default: ssh's own choice]")
@click.option("--known-hosts", "is_line", is_flag=True, help="print the line of known_hosts alone")
@options.pass_client
def ssh_config(client: Client, *, container: str, namespace: str, alias: str, identity: str, is_line: bool) -> None:
    """Print what ~/.ssh/config needs to enter containers.

    It is a block, with the line for ~/.ssh/known_hosts as a comment in it.

    Without CONTAINER the block is for every container: `ssh train@fairlead`. With one, `ssh train` enters it. The
    user name is CONTAINER, or TENANCY+CONTAINER where several tenancies are yours.
    """
    found = client.call("GET", "/v1/ssh", SSHDoorView)
    if not found.host:
        message, hint = "the SSH door of this service is off", "its operator sets ssh.listen, for example to :2222"
        raise errors.Unavailable(message, reason="SSHOff", hint=hint)
    name = alias or container or "fairlead"
    if not _ALIAS.fullmatch(name):
        raise errors.Invalid(
            f'"{name}" is no name of a Host block', reason="NameInvalid", hint="for example --alias lab"
        )
    known = f"fairlead-{name}"
    line = f"{known} {found.host_key}"
    if is_line:
        plaintext.echo(line)
        return
    user = f"{namespace}+{container}" if container and namespace != "default" else container
    for text in (
        f"# {found.fingerprint}",
        "# This line belongs into ~/.ssh/known_hosts:",
        f"# {line}",
        f"Host {name}",
        f"    HostName {found.host}",
        f"    Port {found.port}",
        f"    HostKeyAlias {known}",
        *((f"    User {user}",) if user else ()),
        *((f"    IdentityFile {shlex.quote(identity)}", "    IdentitiesOnly yes") if identity else ()),
        "    StrictHostKeyChecking yes",
        "    ForwardAgent no",
    ):
        plaintext.echo(text)
