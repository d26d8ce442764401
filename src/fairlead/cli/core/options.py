"""Makes the options that several verbs share, so that they look alike everywhere."""

from __future__ import annotations

import contextlib
import dataclasses
import functools
import re
import types
import typing
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Concatenate, Final, ParamSpec, TypeVar

import click
from click.shell_completion import CompletionItem

from fairlead import errors, files, settings
from fairlead.cli.core import connection, invocation, output, plaintext, sections
from fairlead.client.calls import item_path

if TYPE_CHECKING:
    from fairlead.cli.core.client import Client

P = ParamSpec("P")
R = TypeVar("R")
F = TypeVar("F", bound=Callable[..., Any])

LONGEST_NUMBER: Final = 18
"""Digits of a number that every reader of JSON takes as one."""

_UNITS: Final = {"ms": 0.001, "s": 1.0, "m": 60.0, "h": 3600.0, "d": 86400.0}
_SPAN: Final = re.compile(r"([0-9]{1,9}(?:\.[0-9]{1,9})?)(ms|s|m|h|d)", re.ASCII)
_SECONDS: Final = re.compile(r"[0-9]{1,9}(\.[0-9]{1,9})?", re.ASCII)


def parse_span(text: str) -> float | None:
    """Return the seconds of a length of time, `3s`, `2h30m`, `90d`; None: it is none. A bare number has no unit."""
    parts = _SPAN.findall(text)
    if not parts or "".join(number + unit for number, unit in parts) != text:
        return None
    return float(sum(float(number) * _UNITS[unit] for number, unit in parts))


class Duration(click.ParamType[float]):
    """A length of time, `30` (seconds), `3s`, `10m`, `2h30m`: the same words for every option that takes one."""

    name = "TIME"

    def __init__(self, *, least_s: float = 0, is_whole: bool = True) -> None:
        """Take what is allowed. Args: is_whole: whether it must be whole seconds."""
        self._least_s, self._is_whole = least_s, is_whole

    def convert(self, value: object, param: click.Parameter | None, ctx: click.Context | None) -> float:
        """Return seconds: a whole number where it must be one."""
        text = str(value)
        seconds = float(text) if _SECONDS.fullmatch(text) else parse_span(text)
        if seconds is None:
            self.fail(f'"{text}" is not a length of time, such as 30 (seconds), 3s, 10m or 2h30m', param, ctx)
        if seconds < self._least_s:
            self.fail(f'"{text}" is too short: {self._least_s:g} s or more', param, ctx)
        if not self._is_whole:
            return seconds
        if seconds != int(seconds):
            self.fail(f'"{text}" is not a number of whole seconds', param, ctx)
        return int(seconds)


def settings_options(*groups: str, hidden: bool = False) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Add a flag for every setting of the groups, and pass the merged `Settings` as first argument.

    Args:    groups: names of fields of `Settings`, such as `silicon`, and keys of single ones; none: all.
             hidden: keep the flags out of `--help`.
    """
    chosen = [row for row in settings.rows() if {row.group, row.key} & set(groups) or not groups]

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        @click.pass_context
        @functools.wraps(function)
        def called(ctx: click.Context, /, *args: Any, **kwargs: Any) -> R:
            given = {row.key: kwargs.pop(_parameter(row)) for row in chosen}
            flags = {key: value for key, value in given.items() if value is not None}
            call = invocation.current(ctx)
            _refuse_two_clusters(call, flags)
            return function(call.settings(flags), *args, **kwargs)

        # Bottom up, so that --help shows them in the table's order.
        for row in reversed(chosen):
            called = _option(row, hidden=hidden)(called)
        return called

    return decorate


def _refuse_two_clusters(call: invocation.Invocation, flags: Mapping[str, Any]) -> None:
    """Refuse a call that names one cluster before its verb and another after it. Raises: UsageError."""
    before = {"kubeconfig": call.kubeconfig and call.kubeconfig.absolute(), "context": call.context}
    after = {name: flags.get(f"cluster.{name}") for name in before}
    after |= {"kubeconfig": Path(after["kubeconfig"]).absolute()} if after["kubeconfig"] else {}
    for name, one in before.items():
        if one and (other := after[name]) and one != other:
            message = f'--{name} "{one}" stands before the verb and --cluster-{name} "{other}" after it'
            raise click.UsageError(f"{message}: give one of them")


def _parameter(row: settings.Row) -> str:
    return f"{row.group}_{row.name}"


def _option(row: settings.Row, *, hidden: bool) -> Callable[[F], F]:
    kinds = typing.get_args(row.type) if isinstance(row.type, types.UnionType) else (row.type,)
    kind = next(kind for kind in kinds if kind is not types.NoneType)
    default = "" if row.default in {None, ""} else f"  [default: {_shown(row.default)}]"
    unit = f", {row.unit}" if row.unit else ""
    text = f"{row.text}{unit}{default}"
    section = f"Settings {row.group}.*"
    common: dict[str, Any] = {
        "cls": sections.SectionedOption, "section": section, "default": None, "help": text, "hidden": hidden
    }  # fmt: skip
    if kind is bool:
        return click.option(f"{row.flag}/--no-{row.flag[2:]}", _parameter(row), **common)
    if row.choices:
        if len("|".join(row.choices)) > _WIDEST:
            common |= {"metavar": "NAME", "help": f"{row.text}; one of {', '.join(row.choices)}{default}"}
        return click.option(row.flag, _parameter(row), type=click.Choice(row.choices), **common)
    metavar = "SECONDS" if row.unit == "s" else _METAVARS.get(kind, "TEXT")
    return click.option(row.flag, _parameter(row), metavar=metavar, **common)


_METAVARS: dict[type, str] = {Path: "PATH", float: "NUMBER", int: "N", str: "TEXT"}
_WIDEST: Final = 60
"""Characters of the choices that stand beside a flag; more are listed in its help, which breaks lines."""


def _shown(value: object) -> str:
    return str(value).lower() if isinstance(value, bool) else f"{value}"


def output_option(function: F) -> F:
    """Add `-o`, how a listing is shown, as `form`."""
    return click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(output.FORMS),
        default="table",
        show_default=True,
        help="how to show it",
    )(function)


def json_option(function: F) -> F:
    """Add `-o text|json|yaml` for what is one thing and no listing, as `form`."""
    return click.option(
        "-o",
        "--output",
        "form",
        type=click.Choice(("text", "json", "yaml")),
        default="text",
        show_default=True,
        help="how to show it",
    )(function)


# Completion never prints an error into the line being typed: no service means no offers.

Offer = tuple[str, str]
"""A word, and what a shell may show beside it."""
Completer = Callable[[click.Context, click.Parameter, str], list[CompletionItem]]


def asking(find: Callable[[Client], Iterable[Offer]]) -> Completer:
    """Return a completer that offers names from the service, without those on the line already."""

    def complete(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
        taken = ctx.params.get(str(param.name)) or ()
        with contextlib.suppress(errors.FairleadError), connection.opened(invocation.current(ctx)) as client:
            return _items((one for one in find(client) if one[0] not in taken), incomplete)
        return []

    return complete


_PLAIN: Final = re.compile(r"[A-Za-z0-9_./:@+=,][-A-Za-z0-9_./:@+=,]*")
"""Words that are no option and hold neither blanks nor characters special to a shell."""


def _items(offers: Iterable[Offer], incomplete: str) -> list[CompletionItem]:
    """Return matching words that are safe on a command line: the names come from the service."""
    fitting = [(word, text) for word, text in offers if word.startswith(incomplete) and _PLAIN.fullmatch(word)]
    return [CompletionItem(word, help=plaintext.cell(text)) for word, text in fitting]


def _containers(client: Client) -> Iterator[Offer]:
    for item in client.list_containers(show_ended=True):
        yield item.name, item.state


def _images(client: Client) -> Iterator[Offer]:
    from fairlead.serve.backend.hardware import ImageList

    for item in client.call("GET", "/v1/images", ImageList).items:
        for name in item.names:
            yield name, ""


def _gpus(client: Client) -> Iterator[Offer]:
    from fairlead.serve.backend.hardware import GPUListing

    for item in client.call("GET", "/v1/gpus", GPUListing).gpus:
        yield str(item.gpu.index), item.gpu.name


def _tenancies(client: Client) -> Iterator[Offer]:
    from fairlead.serve.v1.tenancies.view import TenancyList

    for item in client.call("GET", "/v1/tenancies", TenancyList).items:
        yield item.name, item.phase


complete_tenancies: Completer = asking(_tenancies)
complete_containers: Completer = asking(_containers)
complete_images: Completer = asking(_images)
complete_gpus: Completer = asking(_gpus)


def complete_container_then_gpu(ctx: click.Context, param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer containers for the first word of an argument, GPUs for the second."""
    complete = complete_gpus if ctx.params.get(str(param.name)) else complete_containers
    return complete(ctx, param, incomplete)


def complete_profiles(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer the machines that can be simulated."""
    from fairlead.silicon.sim import profile as known

    return _items(((name, "") for name in known.list_names()), incomplete)


def complete_faults(_ctx: click.Context, _param: click.Parameter, incomplete: str) -> list[CompletionItem]:
    """Offer what can be broken on command."""
    from fairlead.silicon.sim import fault as known

    return _items(((name, item.text) for name, item in known.FAULTS.items()), incomplete)


def container_argument(name: str = "name", *, many: bool = False, required: bool = True) -> Callable[[F], F]:
    """Add an argument that names a container, or several, and completes to those that exist."""
    return click.argument(
        name,
        metavar="CONTAINER..." if many else "CONTAINER",
        nargs=-1 if many else 1,
        required=required,
        shell_complete=complete_containers,
    )


def namespace_option(function: F) -> F:
    """Add `-n`, the namespace of what is named, and `-T`; `pass_client` puts the client's own where none is."""
    named = click.option("-n", "--namespace", default="", help="namespace  [default: default, or the context's]")
    return named(tenancy_option(function))


def tenancy_option(function: F) -> F:
    """Add `-T`, a tenancy in place of a namespace, which `pass_client` looks up."""
    return click.option(
        "-T", "--tenancy", metavar="NAME", help="tenancy, in place of -n", shell_complete=complete_tenancies
    )(function)


def pass_client(function: Callable[Concatenate[Any, P], R]) -> Callable[P, R]:
    """Pass the client as first argument, and close it when the verb is done; `-n` left out means its namespace.

    Adds `--kubeconfig` and `--context`, which may stand before the verb as well.
    """

    @click.pass_context
    @functools.wraps(function)
    def called(ctx: click.Context, /, *args: P.args, **kwargs: P.kwargs) -> R:
        with connection.opened(invocation.current(ctx)) as client:
            if tenancy := kwargs.pop("tenancy", None):
                kwargs["namespace"] = _namespace_of(client, str(tenancy), kwargs.get("namespace"))
            if kwargs.get("namespace") == "":
                kwargs["namespace"] = client.namespace
            return function(client, *args, **kwargs)

    return cluster_options(called)


def _namespace_of(client: Client, tenancy: str, namespace: Any) -> str:
    """Return the namespace of a tenancy. Raises: Invalid: a namespace is named as well; NotFound."""
    from fairlead.serve.v1.tenancies.view import TenancyView

    if namespace:
        message = f'tenancy "{tenancy}" and namespace "{namespace}" are given: a tenancy has a namespace of its own'
        raise errors.Invalid(message, reason="NamespaceAmbiguous", hint="leave -n out")
    return client.call("GET", item_path("/v1/tenancies", tenancy), TenancyView).namespace


_CONTEXT: Final = "use this context of the kubeconfig (logins: `fairlead context`)"


def cluster_options(function: F) -> F:
    """Add `--kubeconfig` and `--context`, which cluster the verb goes to, and `--show-request`."""
    for decorate in (
        click.option(
            "--show-request",
            "named_show_request",
            is_flag=True,
            default=None,
            expose_value=False,
            callback=_name,
            help="print the requests that are sent as curl lines, without the key",
        ),
        click.option("--context", "named_context", expose_value=False, callback=_name, help=_CONTEXT),
        click.option(
            "--kubeconfig",
            "named_kubeconfig",
            type=click.Path(path_type=Path, dir_okay=False),
            expose_value=False,
            callback=_name,
            help="talk to the Kubernetes cluster of this file",
        ),
    ):
        function = decorate(function)
    return function


def _name(ctx: click.Context, param: click.Parameter, value: Any) -> None:
    """Let the verb's option override the root command's."""
    if value is not None:
        named = dataclasses.replace(invocation.current(ctx), **{str(param.name).removeprefix("named_"): value})
        ctx.obj = named


def words(command: tuple[str, ...]) -> tuple[str, ...]:
    """Return a command as given after `NAME --`: click leaves the dashes in it once options have ended."""
    return command[1:] if command[:1] == ("--",) else command


def pairs(values: Iterable[str], flag: str) -> dict[str, str]:
    """Return `KEY=VALUE` words as a map. Raises: Invalid (`PairInvalid`)."""
    result: dict[str, str] = {}
    for item in values:
        key, equals, value = item.partition("=")
        if not key or not equals:
            message = f'{flag} "{item}" is not of the form KEY=VALUE'
            raise errors.Invalid(message, reason="PairInvalid", hint=f"{flag} NAME=VALUE")
        result[key] = value
    return result


def environment(values: Sequence[str], env_files: Sequence[Path], own: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of files and of the command line, which goes last.

    Args:    values: `KEY=VALUE`, or `KEY` for our own value of it.   own: our environment.
    Raises:  Invalid: a word that is neither, a variable that we do not have, or a file that cannot be read.
    """
    words = [word for file in env_files for word in _lines(file)]
    return pairs([_with_value(word, own) for word in (*words, *values)], "--env")


def _lines(file: Path) -> Iterator[str]:
    try:
        text = files.read_bounded(file).decode()
    except (OSError, UnicodeDecodeError) as error:
        why = error.strerror if isinstance(error, OSError) and error.strerror else "it is not text in UTF-8"
        message = f'cannot read --env-file "{file}": {why.lower()}'
        raise errors.Invalid(
            message, reason="EnvFileUnreadable", hint="a line is KEY=VALUE, KEY or # a remark"
        ) from error
    for number, line in enumerate(text.split("\n"), 1):
        if (word := line.removesuffix("\r").lstrip()) and not word.startswith("#"):
            name = word.partition("=")[0]
            if any(letter.isspace() for letter in name):
                message = f'line {number} of --env-file "{file}": "{name}" is not the name of a variable'
                hint = "write NAME=VALUE, without export and without spaces before the ="
                raise errors.Invalid(message, reason="EnvFileUnreadable", hint=hint)
            yield word


def _with_value(word: str, own: Mapping[str, str]) -> str:
    if "=" in word or not word:
        return word
    if word not in own:
        message = f'--env "{word}" has no value, and no variable of that name is set here'
        raise errors.Invalid(message, reason="PairInvalid", hint=f"--env {word}=VALUE")
    return f"{word}={own[word]}"
