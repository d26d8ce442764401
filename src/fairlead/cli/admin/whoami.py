"""`fairlead whoami`: says as whom the service takes this person, and what that allows."""

from __future__ import annotations

import getpass

import click

from fairlead import errors
from fairlead.cli.core import connection, invocation, options, output, plaintext
from fairlead.serve.v1.accounts.view import Self


@click.command()
@options.json_option
@click.pass_context
def whoami(ctx: click.Context, *, form: str) -> None:
    """Show your account at the service, and what it may do."""
    call = invocation.current(ctx)
    meant = call.target()
    if meant.is_cluster:
        message = "accounts are a service's: a cluster knows you by your kubeconfig"
        raise errors.Invalid(message, reason="AccountsAbsent", hint="`kubectl auth whoami` says as whom")
    with connection.opened(call) as client:
        found = client.call("GET", "/v1/self", Self)
    if form != "text":
        output.show_value(found, form=form)
        return
    for line in output.lines_of(rows(found, meant.url)):
        plaintext.echo(line)


def rows(found: Self, url: str) -> list[list[str]]:
    """Return who one is as rows of name and value."""
    if not found.account:
        may = "everything" if found.is_administrator else "your own containers, in a namespace of yours"
        return [["account", f"{getpass.getuser()}, by the socket of the machine"], ["may", may], ["service", url]]
    roles = ["administrator: everything"] if found.is_administrator else []
    roles += [f"{one.role} of {one.tenancy}" for one in found.memberships]
    return [
        ["account", found.account],
        ["may", ", ".join(roles) or "nothing yet: an owner or admin adds you to a tenancy"],
        ["key", f"{found.key}, for {', '.join(found.scopes)}" if found.key else "none: by a session"],
        ["service", url],
    ]
