"""`fairlead cdi list|validate|lint|inject|explain|diff|prepare`: read spec folders.

Every verb prints what it found and then raises where something is wrong, so that a script has both the facts and the
exit code of the error table. Which folders are read is said with `--spec-dir`, in rising priority.
"""

from __future__ import annotations

import contextlib
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import click

from fairlead import errors, files
from fairlead.cli.core import invocation, output, plaintext
from fairlead.silicon import running
from fairlead.wire.cdi import stamp, translate
from fairlead_cdi import difference, directory, inject, oci, parse, validate
from fairlead_cdi import errors as cdi_errors
from fairlead_cdi import lint as linter
from fairlead_cdi import spec as spec_types
from fairlead_cdi.host import node

_LONGEST: Final = 1000
"""Characters of a warning, which has a path in it as it was given."""
_CONFIG: Final = click.argument("config", type=click.File("rb"), metavar="CONFIG.json")
_NAMES: Final = click.argument("names", nargs=-1, required=True, metavar="VENDOR/CLASS=DEVICE...")
_FILES: Final = click.argument("paths", nargs=-1, metavar="[FILE]...", type=click.Path(path_type=Path))


def _spec_dir_option(function: Callable[..., Any]) -> Callable[..., Any]:
    shown = ", ".join(directory.DEFAULT_DIRECTORIES)
    text = f"folder of CDI specs, repeatable, the last has the highest priority  [default: {shown}]"
    return click.option("--spec-dir", "spec_dirs", multiple=True, metavar="DIR", help=text)(function)


def _form_option(default: str) -> Callable[[Callable[..., Any]], Callable[..., Any]]:
    choice = click.Choice(("table", "json"))
    return click.option("-o", "form", type=choice, default=default, show_default=True, help="how to show it")


def _scan(spec_dirs: Sequence[str]) -> directory.Registry:
    return directory.scan(spec_dirs)


def _read(path: Path) -> bytes:
    try:
        return files.read_bounded(path)
    except OSError as error:
        message = f"cannot read {path}: {error.strerror}"
        raise errors.Invalid(message, reason="FileUnreadable", path=str(path)) from error


def _decoder(path: Path) -> parse.Decoder:
    """Return the decoder of a file's suffix; YAML, which JSON is a part of, for any other suffix."""
    return directory.DECODERS.get(path.suffix, directory.DECODERS[".yaml"])


def _load(path: Path) -> spec_types.Spec:
    """Read one spec file, by its suffix. Raises: ProtocolError with the file's name in front."""
    try:
        return parse.parse_spec(_read(path), decode=_decoder(path))
    except cdi_errors.DocumentError as error:
        message = f"{path}: {error.message}"
        raise errors.ProtocolError(message, reason=error.reason, hint=error.hint, path=str(path)) from error


def _table(title: Sequence[str], rows: Sequence[Sequence[str]]) -> None:
    for line in output.lines_of([title, *rows]):
        plaintext.echo(line)


@click.command("list")
@_spec_dir_option
@_form_option("table")
def list_verb(spec_dirs: tuple[str, ...], form: str) -> None:
    """List devices, and what is wrong with which file."""
    registry = _scan(spec_dirs)
    if form == "json":
        output.show_value(_listing(registry), form="json")
        return
    rows = [[item.name, item.file.path, item.spec.cdi_version] for item in registry.devices.values()]
    every = [["DEVICE", "SPEC", "VERSION"], *rows]
    kept, left_out = output.fitting(every, (0, 1, 2), output.terminal_columns())
    _table([every[0][at] for at in kept], [[row[at] for at in kept] for row in rows])
    if left_out and sys.stderr.isatty():
        plaintext.echo(f"left out for want of room: {', '.join(left_out)}; `-o json` shows all", err=True)
    for path, found in registry.problems.items():
        for error in found:
            words = f"warning: {path}: {error}"
            plaintext.echo(words if len(words) <= _LONGEST else f"{words[:_LONGEST]}…", err=True)


def _listing(registry: directory.Registry) -> dict[str, Any]:
    devices = [
        {"name": item.name, "path": item.file.path, "priority": item.file.priority, "cdiVersion": item.spec.cdi_version}
        for item in registry.devices.values()
    ]
    problems = {
        path: [{"reason": error.reason, "message": error.message} for error in found]
        for path, found in registry.problems.items()
    }
    return {"directories": list(registry.directories), "devices": devices, "errors": problems}


@click.command("validate")
@_FILES
@_spec_dir_option
@_form_option("table")
@click.option("--strict", is_flag=True, help="hold specs to the rules for writers too")
@click.pass_context
def validate_verb(
    ctx: click.Context, paths: tuple[Path, ...], spec_dirs: tuple[str, ...], form: str, *, strict: bool
) -> None:
    """Say of each spec (of the files, else of the folders) whether engines would load it, and rightly so."""
    now = _running(ctx)
    verdicts = {str(path): _verdict(path, now, is_strict=strict) for path in paths or _spec_paths(spec_dirs)}
    if not paths:
        registry = _scan(spec_dirs)
        for path, found in registry.problems.items():
            known = verdicts.setdefault(path, [])
            known.extend(e.message for e in found if e.reason in {"DeviceConflict", "SpecFolderUnreadable"})
    if form == "json":
        output.show_value(
            {path: {"valid": not found, "problems": found} for path, found in verdicts.items()}, form=form
        )
    else:
        _table(("SPEC", "VERDICT"), [[path, "; ".join(found) or "valid"] for path, found in verdicts.items()])
    for path in verdicts:
        _warn_of_missing(Path(path))
    bad = [path for path, found in verdicts.items() if found]
    if bad:
        message = f"{len(bad)} of {len(verdicts)} specs are not valid: {', '.join(bad)}"
        raise errors.ProtocolError(message, reason="SpecInvalid")


def _warn_of_missing(path: Path) -> None:
    """Say which files of the host a spec names in vain: engines load it, and no container starts with it."""
    with contextlib.suppress(errors.FairleadError):  # said already
        spec = _load(path)
        for edits in (spec.edits, *(device.edits for device in spec.devices)):
            for what in linter.missing(edits, stat_file=node.stat_file):
                plaintext.echo(f"warning: {path} {what}", err=True)


def _spec_paths(spec_dirs: Sequence[str]) -> list[Path]:
    return [Path(file.path) for file in _scan(spec_dirs).files]


def _running(ctx: click.Context) -> running.Running:
    return running.read_running(invocation.current(ctx).settings().silicon.root)


def _staleness(path: Path, spec: spec_types.Spec, now: running.Running) -> list[str]:
    """Say why a spec of ours is of another time; nothing of specs without a stamp."""
    mark = stamp.read(path, spec.annotations)
    return [] if mark is None else [f"stale: {why}" for why in mark.staleness(now.boot_id, now.versions)]


def _verdict(path: Path, now: running.Running, *, is_strict: bool) -> list[str]:
    judge = validate.strict_violations if is_strict else validate.violations
    try:
        with translate.cdi_errors:
            spec = parse.build_spec(_decoder(path)(_read(path)))
        return [*(str(violation) for violation in judge(spec)), *_staleness(path, spec, now)]
    except errors.FairleadError as error:
        return [error.message]


@click.command("inject")
@_CONFIG
@_NAMES
@_spec_dir_option
@_form_option("json")
@translate.cdi_errors
def inject_verb(config: Any, names: tuple[str, ...], spec_dirs: tuple[str, ...], form: str) -> None:
    """Print the OCI runtime spec CONFIG.json (- is standard input) with these devices in it."""
    before = oci.decode_config(config.read(files.LARGEST_BYTES))
    resolved = _scan(spec_dirs).resolve(names)
    for one in resolved:
        for edits in (one.spec.edits, one.device.edits):
            for what in linter.missing(edits, stat_file=node.stat_file):
                plaintext.echo(f"warning: {one.file.path} {what}", err=True)
    if form == "json":
        output.show_value(inject.inject(before, resolved, stat=node.stat_node), form="json")
    else:
        _show_changes(inject.explain(before, resolved))


@click.command("explain")
@_NAMES
@click.option("--config", type=click.File("rb"), metavar="CONFIG.json", help="a container's runtime spec; none: empty")
@_spec_dir_option
@_form_option("table")
@translate.cdi_errors
def explain_verb(names: tuple[str, ...], config: Any, spec_dirs: tuple[str, ...], form: str) -> None:
    """Show what injecting these devices would change, and which device or file asks for it."""
    before = oci.decode_config(config.read(files.LARGEST_BYTES)) if config else {"ociVersion": "1.0.2"}
    changes = inject.explain(before, _scan(spec_dirs).resolve(names), stat=node.stat_node)
    if form == "json":
        output.show_value([_change(change) for change in changes], form="json")
    else:
        _show_changes(changes)


def _change(change: inject.Change) -> dict[str, Any]:
    facts = {"action": change.action, "what": change.what, "subject": change.subject}
    return facts | {"before": change.before, "after": change.after, "source": change.source}


def _show_changes(changes: Sequence[inject.Change]) -> None:
    # A rule's subject says all of it already.
    rows = [[c.action, c.what, c.subject, "" if c.what == "rule" else _brief(c.after), c.source] for c in changes]
    _table(("ACTION", "WHAT", "SUBJECT", "DETAIL", "ASKED FOR BY"), rows)


def _brief(value: Any) -> str:
    """Return a plain value in one short line."""
    if isinstance(value, dict):
        return " ".join(f"{key}={_brief(item)}" for key, item in value.items() if key not in {"path", "destination"})
    return ",".join(map(_brief, value)) if isinstance(value, list | tuple) else str(value)


@click.command("diff")
@click.argument("before")
@click.argument("after")
@_spec_dir_option
@_form_option("table")
@translate.cdi_errors
def diff_verb(before: str, after: str, spec_dirs: tuple[str, ...], form: str) -> None:
    """Compare two specs: two files, or (with --spec-dir) the names of two devices in the folders."""
    if spec_dirs:
        registry = _scan(spec_dirs)
        (old,), (new,) = registry.resolve([before]), registry.resolve([after])
        found = difference.diff_edits(old.device.edits, new.device.edits)
    else:
        found = difference.diff(_load(Path(before)), _load(Path(after)))
    if form == "json":
        rows = [{"action": d.action, "where": d.where, "before": d.before, "after": d.after} for d in found]
        output.show_value(rows, form="json")
        return
    _table(
        ("ACTION", "WHERE", "BEFORE", "AFTER"),
        [[d.action, d.where, _brief(d.before or ""), _brief(d.after or "")] for d in found],
    )


@click.command("lint")
@_FILES
@_spec_dir_option
@_form_option("table")
@click.pass_context
def lint_verb(ctx: click.Context, paths: tuple[Path, ...], spec_dirs: tuple[str, ...], form: str) -> None:
    """Find dangers in specs of any vendor; fails when there is an error among them."""
    now = _running(ctx)
    found = [(path, finding) for path in paths or _spec_paths(spec_dirs) for finding in _findings(path, now)]
    if form == "json":
        output.show_value([{"path": str(path), **_finding(finding)} for path, finding in found], form="json")
    else:
        rows = [[f.severity.value, f.code, str(path), f.where, f.message] for path, f in found]
        _table(("SEVERITY", "CODE", "SPEC", "WHERE", "MESSAGE"), rows)
    bad = [finding for _, finding in found if finding.severity is linter.Severity.ERROR]
    if bad:
        raise errors.ProtocolError(f"{len(bad)} dangers found", reason="SpecDangerous")


def _findings(path: Path, now: running.Running) -> tuple[linter.Finding, ...]:
    about_file = linter.lint_file(str(path), stat_file=node.stat_file, find_open=node.find_open)
    try:
        spec = _load(path)
    except errors.FairleadError as error:
        unread = linter.Finding(
            severity=linter.Severity.ERROR, code="spec-invalid", where=str(path), message=error.message
        )
        return (*about_file, unread)
    stale = tuple(
        linter.Finding(severity=linter.Severity.WARNING, code="spec-stale", where="", message=why)
        for why in _staleness(path, spec, now)
    )
    found = linter.lint(spec, stat_node=node.stat_node, stat_file=node.stat_file, find_open=node.find_open)
    return about_file + stale + found


def _finding(finding: linter.Finding) -> dict[str, str]:
    return {
        "severity": finding.severity.value,
        "code": finding.code,
        "where": finding.where,
        "message": finding.message,
    }


@click.command("prepare")
@click.option(
    "--runtime-config",
    type=click.Path(path_type=Path),
    default=Path("/etc/fairlead/runtime.json"),
    show_default=True,
    help="policy of the runtime shim: which folders, and where the results are kept",
)
def prepare_verb(runtime_config: Path) -> None:
    """Make the specs in the runtime shim's folders ready for it, YAML ones too.

    The results go where the shim reads them: its policy says it (`cache`, `yamlCache`), by default below
    /run/fairlead. Settings such as state.run do not count, because engines start the shim without them.
    """
    from fairlead.cli.layer.cdi import speccache

    made = speccache.renew(runtime_config)
    plaintext.echo(f"{made.conversions} YAML specs converted; cache: {made.cache or 'not now, a spec is changing'}")
