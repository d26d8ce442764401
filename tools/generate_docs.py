"""Write the reference pages that derive from code: settings, the command line, the chart's values, the CDI library.

`python tools/generate_docs.py` rewrites the pages below `docs/reference`; the house ring fails while a committed page
differs from what this makes. Nothing on the pages is written by hand, so nothing on them can be out of date.
"""

from __future__ import annotations

import ast
import copy
import dataclasses
import inspect
import itertools
import json
import re
import types
import typing
from collections.abc import Iterator
from pathlib import Path

import click
import yaml

import fairlead_cdi
from fairlead import settings, telemetry
from fairlead.cli import main
from fairlead.cli import verbs as lazy
from fairlead.cli.admin import manifests
from fairlead.cli.core import sections
from fairlead.plan.metrics import dcgm
from fairlead_cdi import errors as cdi_errors

FOLDER = Path(__file__).parent.parent / "docs" / "reference"
_MADE = "<!-- Made by tools/generate_docs.py; edit the code it reads, then run `make docs`. -->"
_KINDS = {str: "text", int: "whole number", float: "number", bool: "true or false", Path: "path"}


def pages() -> dict[str, str]:
    """Return every page by its path below the folder."""
    return {
        "settings.md": "\n".join(_settings_page()),
        "cli/index.md": "\n".join(_cli_page()),
        **{f"cli/{name}.md": "\n".join(_verb_page(name)) for name in _shown_verbs()},
        "cdi-library.md": "\n".join(_library_page()),
        "client.md": "\n".join(_client_page()),
        "metrics.md": "\n".join(_metrics_page()),
        "chart.md": "\n".join(_chart_page((manifests.CHART / "values.yaml").read_text())),
    }


# metrics


def _metrics_page() -> Iterator[str]:
    yield from (
        _MADE,
        "",
        "# Metrics",
        "",
        "## GPUs",
        "",
        "On port 9400 of each agent, and of 127.0.0.1 where `fairlead up` runs (setting `node.metrics`). Names, types",
        "and units are dcgm-exporter's. [How to watch GPUs](../how-to/metrics.md) explains the labels.",
        "",
        "| name | type | what |",
        "|---|---|---|",
        *(f"| `{row.name}` | {row.kind} | {row.text} |" for row in dcgm.FIELDS),
        *(f"| `{name}` | gauge | {text} |" for name, text in (dcgm.XID, dcgm.XID_COUNT, dcgm.HEALTH)),
        "",
        "## Fairlead itself",
        "",
        "On the address that `cluster.monitor` sets, of agent, scheduler, controller and API. The service of",
        "`fairlead up` shows `fairlead_connections`, `fairlead_requests_under_way` and `fairlead_leftovers` beside",
        "its GPUs, with `process_*` of itself.",
        "",
        "| name | labels | what |",
        "|---|---|---|",
        *(
            f"| `{metric.name}` | {', '.join(f'`{label}`' for label in metric.labels)} | {metric.text} |"
            for metric in telemetry.METRICS
        ),
        "",
    )


# settings


def _settings_page() -> Iterator[str]:
    yield from (
        _MADE,
        "",
        "# Settings",
        "",
        "Every setting of every process. A flag wins over the environment, that over the file, that over the default.",
        f"The file is `{settings.DEFAULT_FILE}`, or what `--config` or `FAIRLEAD_CONFIG` names; it is TOML, and `a.b`",
        "below is key `b` in its table `[a]`. Unknown keys and variables are errors. `fairlead settings` shows what is",
        "in force and where each value comes from.",
        "",
    )
    groups = {field.name: typing.get_type_hints(settings.Settings)[field.name] for field in _fields()}
    for group, rows in itertools.groupby(settings.rows(), key=lambda row: row.group):
        yield from (f"## {group}", "", inspect.getdoc(groups[group]) or "", "")
        yield from ("| key, variable, flag | value | meaning |", "|---|---|---|")
        for row in rows:
            names = f"`{row.key}`<br>`{row.env}`<br>`{row.flag}`"
            value = "<br>".join(part for part in (_value(row), _default(row)) if part)
            yield f"| {names} | {value} | {_cell(row.text)} |"
        yield ""


def _fields() -> tuple[dataclasses.Field[typing.Any], ...]:
    return dataclasses.fields(settings.Settings)


def _value(row: settings.Row) -> str:
    if row.choices:
        return ", ".join(f"`{choice}`" for choice in row.choices)
    kinds = typing.get_args(row.type) if isinstance(row.type, types.UnionType) else (row.type,)
    kind = next(_KINDS[kind] for kind in kinds if kind is not types.NoneType)
    return f"{kind}, {row.unit}" if row.unit else kind


def _default(row: settings.Row) -> str:
    if row.default is None or row.default == "":
        return ""
    return f"default `{str(row.default).lower() if isinstance(row.default, bool) else row.default}`"


# command line


def _cli_page() -> Iterator[str]:
    yield from (_MADE, "", "# Command line", "", "Every command explains itself with `--help`; where that is short,")
    yield from ("`--help all` has every option. Each verb has a page.", "")
    yield from _command(
        main.root, click.Context(main.root, info_name="fairlead", **main.root.context_settings), level=2
    )
    for section, names in itertools.groupby(_shown_verbs(), key=lambda name: lazy.VERBS[name].section):
        yield from (f"## {section}", "", "| verb | what it does |", "|---|---|")
        yield from (f"| [`fairlead {name}`]({name}.md) | {_cell(lazy.VERBS[name].help)} |" for name in names)
        yield ""


def _shown_verbs() -> list[str]:
    return [name for name, verb in lazy.VERBS.items() if not verb.is_hidden]


def _verb_page(name: str) -> Iterator[str]:
    context = click.Context(main.root, info_name="fairlead", **main.root.context_settings)
    command = main.root.get_command(context, name)
    if command is None:
        raise TypeError(f"{name} is no verb")
    yield from (_MADE, "")
    yield from _tree(command, click.Context(command, parent=context, info_name=name), level=1)


def _tree(command: click.Command, context: click.Context, *, level: int) -> Iterator[str]:
    yield from _command(command, context, level=level)
    if not isinstance(command, click.Group):
        return
    for name in command.list_commands(context):
        child = command.get_command(context, name)
        if child is not None and not child.hidden:
            yield from _tree(child, click.Context(child, parent=context, info_name=name), level=level + 1)


def _command(command: click.Command, context: click.Context, *, level: int) -> Iterator[str]:
    usage = " ".join((context.command_path, *command.collect_usage_pieces(context)))
    yield from (f"{'#' * level} {context.command_path}", "", f"`{usage}`", "")
    for paragraph in inspect.cleandoc(command.help or "").split("\n\n"):
        yield from (_paragraph(paragraph), "")
    for title, records in _sections(command, context).items():
        if title:
            yield from (f"**{title}**", "")
        yield from ("| option | meaning |", "|---|---|")
        yield from (f"| {_code(' '.join(names.split()))} | {_cell(text)} |" for names, text in records)
        yield ""


def _sections(command: click.Command, context: click.Context) -> dict[str, list[tuple[str, str]]]:
    """Return the options' help records by the section of the help that they stand in."""
    if isinstance(command, sections.Sectioned):
        return {title: records for title, records in command.records(context, is_whole=True)[0].items() if records}
    records = [record for item in command.params if (record := item.get_help_record(context)) and record[1]]
    return {"": records} if records else {}


def _paragraph(text: str) -> str:
    """Keep what click shows as it stands (marked by a backspace) as a block, join the lines of the rest."""
    if text.startswith("\b"):
        return "```\n" + text.removeprefix("\b").strip("\n") + "\n```"
    return " ".join(text.split())


# values of the chart


def _chart_page(text: str) -> Iterator[str]:
    yield from (
        _MADE,
        "",
        "# Values of the chart",
        "",
        "What `helm install --set KEY=VALUE` takes, also from files with `-f`. A value that is not here is refused.",
        "`fairlead manifests` has the default ones. [Fairlead on Kubernetes](../how-to/kubernetes.md) says how they go",
        "together.",
        "",
        "| value | default | meaning |",
        "|---|---|---|",
    )
    node = yaml.compose(text)
    if not isinstance(node, yaml.MappingNode):
        raise TypeError("values.yaml is no map")
    for path, remark, value in _values(node, text.splitlines(), ""):
        yield f"| `{path}` | `{json.dumps(value)}` | {_cell(remark)} |"
    yield ""


def _values(node: yaml.MappingNode, lines: list[str], path: str) -> Iterator[tuple[str, str, object]]:
    """Yield path, remark and default of each value; a map is one value, unless its own keys carry remarks."""
    for key, value in node.value:
        here, remark = f"{path}{key.value}", _remark(lines, key.start_mark.line)
        is_group = isinstance(value, yaml.MappingNode) and any(
            _remark(lines, k.start_mark.line) for k, _ in value.value
        )
        if is_group:
            yield from _values(value, lines, f"{here}.")
        elif not remark:
            raise SystemExit(f"values.yaml: {here} has no remark above it")
        else:
            yield here, remark, yaml.SafeLoader("").construct_document(value)


def _remark(lines: list[str], line: int) -> str:
    """Return the comment that ends right above a line."""
    above = itertools.takewhile(lambda text: text.lstrip().startswith("#"), reversed(lines[:line]))
    return " ".join(text.lstrip("# ") for text in reversed(list(above)))


# the CDI library


_LIBRARY = Path(cdi_errors.__file__).parent
_LIBRARY_ORDER = (
    *("directory", "inject", "spec", "errors", "parse", "emit", "validate", "lint", "names", "difference"),
    *("annotation", "oci", "host.node", "host.trust", "yamlfile", "yamltext", "cache"),
)
_SECTION = re.compile(r"(?:^|\s)((?:Args|Returns|Raises)(?:, (?:Args|Returns|Raises))*|Source):\s+")
_ERROR_NAMES = {name for name, kind in vars(cdi_errors).items() if isinstance(kind, type)} | {"OSError"}
Member = ast.FunctionDef | ast.AsyncFunctionDef


def _library_page() -> Iterator[str]:
    files = (
        path.relative_to(_LIBRARY).with_suffix("") for path in _LIBRARY.rglob("*.py") if path.name != "__init__.py"
    )
    modules = {".".join(path.parts) for path in files}
    if modules != set(_LIBRARY_ORDER):
        raise SystemExit(f"_LIBRARY_ORDER and {_LIBRARY} differ: {sorted(modules ^ set(_LIBRARY_ORDER))}")
    yield from (_MADE, "", "# CDI library", "")
    yield from _prose(_module("__init__"))
    yield from ("The [tutorial](../tutorial/cdi-library.md) shows each of them at work.", "")
    yield from ("| `from fairlead_cdi import …` | what it is |", "|---|---|")
    for name in fairlead_cdi.__all__:
        found = getattr(fairlead_cdi, name)
        first = (inspect.getdoc(found) or "").partition("\n")[0]
        yield f"| [`{name}`](#{name.lower()}) | {_cell(first)} |"
    yield ""
    for name in _LIBRARY_ORDER:
        yield from _library_module(name, _module(name))


def _module(name: str) -> ast.Module:
    return ast.parse((_LIBRARY / f"{name.replace('.', '/')}.py").read_text())


def _library_module(name: str, tree: ast.Module) -> Iterator[str]:
    yield from (f"## fairlead_cdi.{name}", "")
    yield from _prose(tree)
    constants = [(target, value, text) for target, value, _, text in _assigned(tree) if target.isupper() or text]
    if constants:
        yield from ("| constant | value | meaning |", "|---|---|---|")
        yield from (f"| `{target}` | {_code(_short(value))} | {_cell(text)} |" for target, value, text in constants)
        yield ""
    for node in tree.body:
        if isinstance(node, ast.ClassDef) and _is_public(node.name):
            yield from _library_class(node)
        elif isinstance(node, Member) and _is_public(node.name):
            yield from _library_function(node, node.name, level=3)


_CLIENT = FOLDER.parent.parent / "src" / "fairlead" / "client"
_CLIENT_CLASSES = (
    ("client", ("Client",)),
    ("container", ("Container",)),
    ("asynchronous", ("AsyncClient", "AsyncContainer", "AsyncLogs")),
    ("session.logs", ("Logs",)),
    ("session.process", ("ExecResult",)),
    ("session.forward", ("Forward",)),
    ("record", ("Listing",)),
    ("runoptions", ()),
    ("answers", ()),
    ("lifeanswers", ()),
)
"""Modules, and which of their classes a program meets; none: all."""


def _client_page() -> Iterator[str]:
    yield from (_MADE, "", "# Python client", "")
    yield from ("```", "from fairlead import Client", "", "with Client() as client:")
    yield from ('    client.run("pytorch", gpus=2).logs(follow=True)', "```", "")
    yield from (
        "The [tutorial](../tutorial/client.md) shows it at work. What the service refuses is raised as a class of",
        "`fairlead.errors`, with `reason` and `hint`; the [errors](errors.md) are the command line's.",
        "",
    )
    for name, classes in _CLIENT_CLASSES:
        tree = ast.parse((_CLIENT / f"{name.replace('.', '/')}.py").read_text())
        yield from (f"## fairlead.client.{name}", "")
        yield from _prose(tree)
        for node in tree.body:
            if isinstance(node, ast.ClassDef) and (node.name in classes or not classes):
                yield from _library_class(node)
                yield from _twins(node)


def _twins(node: ast.ClassDef) -> Iterator[str]:
    """List the methods that stand for another class's, whose parameters and answers are there."""
    made = [(one.targets[0], one.value) for one in node.body if isinstance(one, ast.Assign)]
    rows = [(ast.unparse(name), ast.unparse(call.args[0])) for name, call in made if isinstance(call, ast.Call)]
    if rows:
        yield from ("| `await` | as |", "|---|---|")
        for name, other in rows:
            its = other.partition(".")[2]
            yield f"| `{name}` | [`{its}`](#{its.replace('.', '').lower()}) |"
        yield ""


def _library_class(node: ast.ClassDef) -> Iterator[str]:
    yield from (f"### {node.name}", "")
    bases = [base for base in map(ast.unparse, node.bases) if _is_public(base)]
    if bases:
        yield from (f"Is a {', '.join(f'`{base}`' for base in bases)}.", "")
    made = next((one for one in node.body if isinstance(one, Member) and one.name == "__init__"), None)
    if made is not None:
        yield from ("```python", _signature(made, node.name), "```", "")
    yield from _docstring(_told(node), _parameters(made) if made else set())
    fields = [one for one in _assigned(node) if not (one[1] or "").startswith("_awaited")]
    if fields:
        yield from ("| field | type | default | meaning |", "|---|---|---|---|")
        for name, value, kind, text in fields:
            yield f"| `{name}` | {_code(kind)} | {_code(_short(value))} | {_cell(text)} |"
        yield ""
    for one in node.body:
        if isinstance(one, Member) and _is_public(one.name):
            yield from _library_function(one, f"{node.name}.{one.name}", level=4)


def _library_function(node: Member, name: str, *, level: int) -> Iterator[str]:
    yield from (f"{'#' * level} {name}", "")
    is_property = any(ast.unparse(one) == "property" for one in node.decorator_list)
    if is_property:
        yield from (f"Property: `{ast.unparse(node.returns) if node.returns else ''}`", "")
    else:
        yield from ("```python", _signature(node, name), "```", "")
    yield from _docstring(_told(node), _parameters(node))


def _told(node: Member | ast.ClassDef) -> str:
    text = ast.get_docstring(node)
    if not text:
        raise SystemExit(f"fairlead_cdi: {node.name} has no docstring")
    return text


def _is_public(name: str) -> bool:
    return not name.startswith("_")


def _assigned(tree: ast.Module | ast.ClassDef) -> Iterator[tuple[str, str, str, str]]:
    """Yield name, value, type and docstring of each public assignment of a module or class."""
    for node, after in zip(tree.body, [*tree.body[1:], None], strict=True):
        target = node.targets[0] if isinstance(node, ast.Assign) else getattr(node, "target", None)
        if not isinstance(target, ast.Name) or not _is_public(target.id):
            continue
        is_told = isinstance(after, ast.Expr) and isinstance(after.value, ast.Constant)
        text = str(after.value.value) if is_told else ""  # type: ignore[union-attr]
        value, kind = getattr(node, "value", None), getattr(node, "annotation", None)
        default = ast.unparse(value).replace("field(default_factory=dict)", "{}") if value else ""
        yield target.id, default, ast.unparse(kind) if kind else "", text


def _parameters(node: Member) -> set[str]:
    return {one.arg for one in (*node.args.posonlyargs, *node.args.args, *node.args.kwonlyargs, node.args.kwarg) if one}


def _signature(node: Member, name: str) -> str:
    """Return a signature without `self`, on one line or with one parameter a line."""
    arguments = copy.deepcopy(node.args)
    if arguments.args and arguments.args[0].arg in {"self", "cls"}:
        del arguments.args[0]
    parts = [re.sub(r"^(\w+: .*?)=", r"\1 = ", part) for part in _split(ast.unparse(arguments))]
    result = f" -> {ast.unparse(node.returns)}" if node.returns and node.name != "__init__" else ""
    before = "async " if isinstance(node, ast.AsyncFunctionDef) else ""
    line = f"{before}{name}({', '.join(parts)}){result}"
    if len(line) <= 100:
        return line
    lines = "".join(f"    {part},\n" for part in parts)
    return f"{before}{name}(\n{lines}){result}"


def _split(inner: str) -> list[str]:
    """Split parameters at the commas that are not inside brackets."""
    parts, depth = [""], 0
    for letter in inner:
        depth += (letter in "[({") - (letter in "])}")
        if letter == "," and not depth:
            parts.append("")
        else:
            parts[-1] += letter
    return [part.strip() for part in parts]


def _docstring(text: str, parameters: set[str]) -> Iterator[str]:
    """Yield a docstring as Markdown: its prose, then Args, Returns and Raises."""
    pieces = _SECTION.split(text)
    for paragraph in pieces[0].strip().split("\n\n"):
        yield from (" ".join(paragraph.split()), "")
    for title, body in zip(pieces[1::2], pieces[2::2], strict=True):
        known = parameters if title.startswith("Args") else _ERROR_NAMES
        entries = _entries(body, known) if title in {"Args", "Raises"} else []
        if entries:
            yield from (f"**{title}**", "")
            yield from (f"- {names}{f': {about}' if about else ''}" for names, about in entries)
        else:
            yield f"**{title}**: {' '.join(body.split())}"
        yield ""


def _entries(body: str, known: set[str]) -> list[tuple[str, str]]:
    """Split `a: text. b, c: text.` at the known names; an empty list: it does not begin with one."""
    name = "|".join(sorted(known, key=len, reverse=True)) or "(?!)"
    starts = list(re.finditer(rf"(?:^|(?<=\s))((?:{name})(?:, (?:{name}))*)(?::|\.$|\.(?=\s))", body))
    if not starts or starts[0].start() != 0:
        return []
    ends = [one.start() for one in starts[1:]] + [len(body)]
    return [
        (
            ", ".join(f"`{part}`" for part in start[1].split(", ")),
            " ".join(body[start.end() : end].split()),
        )
        for start, end in zip(starts, ends, strict=True)
    ]


def _prose(tree: ast.Module) -> Iterator[str]:
    """Yield a module's docstring; what is indented in it is code or a picture."""
    paragraphs = (ast.get_docstring(tree) or "").split("\n\n")
    for is_block, group in itertools.groupby(paragraphs, key=lambda text: text.startswith("    ")):
        if is_block:
            yield from ("```", inspect.cleandoc("\n\n".join(group)), "```", "")
        else:
            yield from (line for text in group for line in (" ".join(text.split()), ""))


def _short(text: str) -> str:
    return text if len(text) <= 90 else f"{text[:80]}…"


def _code(text: str) -> str:
    """Return code for a cell of a table, where a bar in backticks would end the cell."""
    return f"<code>{text.replace('&', '&amp;').replace('<', '&lt;').replace('|', '&#124;')}</code>" if text else ""


def _cell(text: str) -> str:
    return " ".join(text.split()).replace("|", "\\|")


if __name__ == "__main__":
    made = pages()
    for old in (FOLDER / "cli").glob("*.md"):
        if f"cli/{old.name}" not in made:
            old.unlink()  # of a verb that is no more
    (FOLDER / "cli").mkdir(exist_ok=True)
    for file_name, content in made.items():
        (FOLDER / file_name).write_text(content)
    print(f"{len(made)} pages below {FOLDER}")
