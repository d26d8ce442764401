"""`fairlead user`: makes, lists and deletes accounts, and gives and takes their roles in tenancies."""

from __future__ import annotations

from typing import Final

import click

from fairlead import errors
from fairlead.cli.core import options, output, plaintext
from fairlead.cli.core.client import Client
from fairlead.cli.core.output import Column
from fairlead.client.calls import item_path
from fairlead.serve.accounts.port import AccountView, MemberView
from fairlead.serve.accounts.roles import Role
from fairlead.serve.v1.accounts.view import AccountList, MemberList, RoleRequest, UserRequest


def _roles(item: AccountView) -> str:
    found = ", ".join(f"{one.tenancy} {one.role}" for one in item.memberships)
    return ", ".join(part for part in ("administrator" if item.is_administrator else "", found) if part)


_ACCOUNTS: Final = (
    Column[AccountView]("NAME", lambda item: item.name),
    Column[AccountView]("KIND", lambda item: item.kind, rank=2),
    Column[AccountView]("ROLES", lambda item: _roles(item) or "-"),
    Column[AccountView]("KEYS", lambda item: str(item.keys), rank=1),
    Column[AccountView]("AGE", lambda item: output.age(item.created_at), rank=3),
)
_MEMBERS: Final = (
    Column[MemberView]("NAME", lambda item: item.account),
    Column[MemberView]("ROLE", lambda item: item.role),
    Column[MemberView]("TENANCY", lambda item: item.tenancy),
)
_ROLES: Final = tuple(role.value for role in Role)


@click.group()
def group() -> None:
    """Make accounts, and give them roles in tenancies."""


_required = click.option(
    "-T",
    "--tenancy",
    "place",
    metavar="TENANCY",
    required=True,
    shell_complete=options.complete_tenancies,
    help="tenancy that it is about",
)


@group.command(name="create")
@click.argument("name", metavar="NAME")
@click.option("--service", "is_service", is_flag=True, help="it is a program's, not a person's")
@click.option("--administrator", "is_administrator", is_flag=True, help="it may do on this machine what root may")
@options.output_option
@options.pass_client
def create_verb(client: Client, /, *, name: str, is_service: bool, is_administrator: bool, form: str) -> None:
    """Make an account; `user grant` makes it a member, `key create` gives it a key."""
    kind = "service" if is_service else "person"
    request = UserRequest(name=name, kind=kind, is_administrator=is_administrator)
    made = client.call("POST", "/v1/users", AccountView, body=request)
    output.show_listing((made,), _ACCOUNTS, form=form, name=lambda item: item.name)


@group.command(name="list")
@click.option(
    "-T",
    "--tenancy",
    "place",
    metavar="TENANCY",
    shell_complete=options.complete_tenancies,
    help="members of this tenancy alone",
)
@options.output_option
@options.pass_client
def list_verb(client: Client, *, place: str | None, form: str) -> None:
    """List accounts and their roles; with -T, who is a member of a tenancy."""
    if place:
        members = client.call("GET", _members(place), MemberList).items
        output.show_listing(members, _MEMBERS, form=form, name=lambda item: item.account)
        return
    found = client.call("GET", "/v1/users", AccountList).items
    output.show_listing(found, _ACCOUNTS, form=form, name=lambda item: item.name)


@group.command(name="delete")
@click.argument("name", metavar="NAME")
@options.pass_client
def delete_verb(client: Client, *, name: str) -> None:
    """Delete an account with its keys and roles; its containers go on."""
    client.call("DELETE", item_path("/v1/users", name), object)
    plaintext.echo(f"{name}: deleted")


@group.command(name="grant")
@click.argument("name", metavar="NAME")
@click.argument("role", metavar="ROLE", type=click.Choice(_ROLES))
@_required
@options.pass_client
def grant_verb(client: Client, *, name: str, role: str, place: str) -> None:
    """Give an account a role in a tenancy: viewer, developer, admin or owner."""
    made = client.call("PUT", _member(place, name), MemberView, body=RoleRequest(role=role))
    plaintext.echo(f"{made.account}: {made.role} of {made.tenancy}")


@group.command(name="revoke")
@click.argument("name", metavar="NAME")
@_required
@options.pass_client
def revoke_verb(client: Client, *, name: str, place: str) -> None:
    """Take an account's role in a tenancy; it holds from the next request on."""
    client.call("DELETE", _member(place, name), object)
    plaintext.echo(f"{name}: is not a member of {place} any more")


def _members(tenancy: str) -> str:
    return item_path("/v1/tenancies", tenancy) + "/members"


def _member(tenancy: str, account: str) -> str:
    if not account:
        raise errors.Invalid("no account is named", reason="AccountInvalid", hint="`fairlead user list`")
    return item_path(_members(tenancy), account)
