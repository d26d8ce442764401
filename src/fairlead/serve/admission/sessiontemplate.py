"""Describes templates of sessions, and reads the operator's: a TOML file with a table for each."""

from __future__ import annotations

import tomllib
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from fairlead import errors, files
from fairlead.serve.admission.request import ContainerRequest, VolumeMount
from fairlead.wire.fairlead import listing
from fairlead.wire.kubernetes import names

_LARGEST: Final = 1 << 20
_MOST: Final = 100
LABEL: Final = "session"
"""Label of a session's container: the name of its template."""


_START: Final = """\
umask 077
mkdir -p "$0/.fairlead" && cd "$0" || exit 1
[ -s .fairlead/token ] || head -c 24 /dev/urandom | od -An -tx1 | tr -d ' \\n' >.fairlead/token
read -r {token} <.fairlead/token || [ -n "${token}" ] || exit 1
export {token}; umask 022
exec "$@"
"""
"""Makes the token where there is none, and becomes the first process. $0: the home."""


class Template(msgspec.Struct, frozen=True, kw_only=True, forbid_unknown_fields=True):
    """What a session is made of."""

    name: Annotated[str, msgspec.Meta(description="a DNS label")] = ""
    about: Annotated[str, msgspec.Meta(description="what it is for, for people")] = ""
    image: str
    command: Annotated[tuple[str, ...], msgspec.Meta(description="its first process, which stays")]
    home: Annotated[str, msgspec.Meta(description="folder of the container that is kept, in a volume of its name")]
    port: Annotated[int, msgspec.Meta(ge=0, le=65535, description="that it serves a page on; 0: none")] = 0
    path: Annotated[str, msgspec.Meta(description="of that page; {token} stands for its token")] = "/"
    token: Annotated[
        str, msgspec.Meta(description="variable that its first process finds its token in; empty: it has none")
    ] = ""
    gpus: Annotated[int, msgspec.Meta(ge=0, description="unless the person says otherwise")] = 0
    memory: Annotated[str, msgspec.Meta(description="at most, `16Gi`; empty: no limit")] = ""
    cpu: Annotated[str, msgspec.Meta(description="CPUs at most; empty: no limit")] = ""


class TemplateList(msgspec.Struct, frozen=True, kw_only=True):
    """Templates of sessions."""

    items: tuple[Template, ...]
    next: listing.Next = ""


BUILT_IN: Final = (
    Template(
        name="notebook",
        about="JupyterLab",
        image="jupyter/minimal-notebook",
        command=("start-notebook.sh", "--ServerApp.port=8888"),
        home="/home/jovyan",
        port=8888,
        path="/lab?token={token}",
        token="JUPYTER_TOKEN",  # noqa: S106 the name of a variable
    ),
    # As the first process `sleep` would have no signal end it.
    Template(
        name="shell",
        about="a shell",
        image="ubuntu",
        command=("sh", "-c", "trap exit TERM INT; while :; do sleep 3600 & wait; done"),
        home="/root",
    ),
)


def start_of(template: Template) -> tuple[str, ...]:
    """Return a template's command line; where it has a token, by a shell that makes it."""
    if not template.token:
        return template.command
    return ("sh", "-c", _START.format(token=template.token), template.home, *template.command)


def token_file(template: Template) -> str:
    """Return the file of the container that has its token; empty: it has none."""
    return f"{template.home}/.fairlead/token" if template.token else ""


def container(
    template: Template, *, name: str, namespace: str = "", image: str = "", gpus: int | None = None
) -> ContainerRequest:
    """Return the container of a session. Args: image: empty: the template's.   gpus: None: the template's."""
    return ContainerRequest(
        image=image or template.image,
        name=name,
        namespace=namespace,
        gpus=template.gpus if gpus is None else gpus,
        command=start_of(template),
        memory=template.memory or None,
        cpu=template.cpu or None,
        labels={LABEL: template.name},
        volumes=(VolumeMount(name=f"{name}-home", container_path=template.home),),
    )


def read(file: Path | None) -> tuple[Template, ...]:
    """Return the built-in templates and those of a file, by name; a table of the file replaces a built-in one.

    Raises: Invalid (`TemplateInvalid`); Unavailable: the file cannot be read.
    """
    found = {one.name: one for one in BUILT_IN}
    if file is not None:
        found |= {name: _parse(name, value, file) for name, value in _tables(file).items()}
    return tuple(found[name] for name in sorted(found))


def _tables(file: Path) -> Mapping[str, Any]:
    try:
        tables = tomllib.loads(files.read_bounded(file, limit_bytes=_LARGEST).decode())
    except OSError as error:
        message = f"cannot read session.templates, {file}: {error.strerror}"
        raise errors.Unavailable(message, reason="TemplateUnreadable", hint="is it there?") from error
    except (ValueError, RecursionError) as error:
        raise _invalid(file, f"is not TOML: {error}") from error
    if len(tables) > _MOST:
        raise _invalid(file, f"has {len(tables)} tables, and {_MOST} at most are taken")
    return tables


def _parse(name: str, value: Any, file: Path) -> Template:
    if not names.is_dns_label(name):
        raise _invalid(file, f'has a table "{errors.readable(name)}", which is no name: {names.DNS_RULE}')
    try:
        found = msgspec.convert(value, Template)
    except msgspec.ValidationError as error:
        raise _invalid(file, f'has a table "{name}" that is no template: {error}') from error
    if not found.home.startswith("/") or found.home == "/" or "\0" in found.home or ":" in found.home:
        raise _invalid(file, f'has a table "{name}" whose home "{errors.readable(found.home)}" is no folder from / on')
    if not found.command or not found.image:
        raise _invalid(file, f'has a table "{name}" without an image or a command')
    if not found.path.startswith("/") or not found.path.isprintable():
        raise _invalid(file, f'has a table "{name}" whose path "{errors.readable(found.path)}" does not begin with /')
    if found.token and not found.token.isidentifier():
        raise _invalid(
            file, f'has a table "{name}" whose token "{errors.readable(found.token)}" is no variable\'s name'
        )
    return msgspec.structs.replace(found, name=name)


def _invalid(file: Path, what: str) -> errors.Invalid:
    message = f"session.templates, {file}, {what}"
    return errors.Invalid(message, reason="TemplateInvalid", hint="docs/how-to/sessions.md has an example")
