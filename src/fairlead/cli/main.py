"""Runs the program: the root group, its flags, how errors are printed, and the exit code.

The only module that ends the process and the only one of this room that sees errors which are not ours. Exit codes
come from the error table; a container's own exit code is passed through by the verb that followed it.
"""

from __future__ import annotations

import errno
import gc
import os
import sys
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final

import click

from fairlead import __version__, errors
from fairlead.cli import foreign, verbs
from fairlead.cli.core import invocation, lazygroup, plaintext, progress

_BUG: Final = 70  # EX_SOFTWARE of sysexits.h
_INTERRUPTED: Final = 130  # 128 + SIGINT, as shells count it
_PIPE_CLOSED: Final = 141  # 128 + SIGPIPE
_SHOWN: Final = 100
_UNWRITABLE: Final = frozenset({errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO})


@click.group(
    cls=lazygroup.LazyGroup,
    verbs=verbs.VERBS,
    context_settings={"help_option_names": ["-h", "--help"], "max_content_width": 110},
    no_args_is_help=True,
)
@click.option("--config", type=click.Path(path_type=Path, dir_okay=False), help="settings file  [env: FAIRLEAD_CONFIG]")
@click.option("--url", help="address of the service  [env: FAIRLEAD_URL; default: the local API socket]")
@click.option(
    "--kubeconfig",
    type=click.Path(path_type=Path, dir_okay=False),
    help="talk to the Kubernetes cluster of this file  [env: FAIRLEAD_CLUSTER_KUBECONFIG]",
)
@click.option(
    "--context", help="use this context of the kubeconfig (logins: `fairlead context`)  [env: FAIRLEAD_CLUSTER_CONTEXT]"
)
@click.option("--show-request", is_flag=True, help="print the requests that are sent as curl lines, without the key")
@click.version_option(__version__, "-v", "--version", prog_name="fairlead", message="%(prog)s %(version)s")
@click.pass_context
def root(
    ctx: click.Context,
    *,
    config: Path | None,
    url: str | None,
    kubeconfig: Path | None,
    context: str | None,
    show_request: bool,
) -> None:
    """Guide GPUs into containers, and show every step of the way."""
    env = ctx.obj if ctx.obj is not None else os.environ
    call = invocation.Invocation(
        env=env, config=config, url=url, kubeconfig=kubeconfig, context=context, show_request=show_request
    )
    ctx.obj = call
    if call.is_plain:
        ctx.color = False
    ctx.meta[progress.IS_DUMB] = call.is_dumb


def invoke(argv: Sequence[str] | None = None, *, env: Mapping[str, str] | None = None) -> int:
    """Run one command line and return its exit code; errors are printed on standard error."""
    env = env if env is not None else os.environ
    is_plain = invocation.Invocation(env=env).is_plain
    try:
        result = root.main(args=argv, prog_name="fairlead", standalone_mode=False, obj=env)
    except (errors.FairleadError, BaseExceptionGroup, UnicodeEncodeError, ModuleNotFoundError) as error:
        return _report(_blamed(error, sys.argv[1:] if argv is None else argv), is_plain=is_plain)
    except click.ClickException as error:
        _show(error)
        return error.exit_code
    except (click.Abort, KeyboardInterrupt):
        return _INTERRUPTED
    except OSError as error:
        return _report_system(error, is_plain=is_plain)
    except Exception as error:  # noqa: BLE001 the edge of the process: a bug is shown whole and ends it
        return _report_bug(error)
    return result if isinstance(result, int) else 0


def _blamed(error: BaseException, argv: Sequence[str]) -> BaseException:
    """Return the error to report: a missing package or an argument that is not UTF-8 in place of its symptom."""
    if isinstance(error, ModuleNotFoundError):
        return lazygroup.package_missing(error)
    word = next((word for word in argv if not _is_utf8(word)), None)
    if word is None or not isinstance(error, UnicodeEncodeError):
        return error
    message = f"{word!r} on the command line is not UTF-8, which every name here is"
    refusal = errors.Invalid(message, reason="WordNotUTF8", hint="write it in UTF-8")
    refusal.__cause__ = error
    return refusal


def _is_utf8(word: str) -> bool:
    """Return whether a word of the command line holds no bytes that Python could not read."""
    return not any("\ud800" <= character <= "\udfff" for character in word)


def _show(error: click.ClickException) -> None:
    """Print what click refuses; a word of another program is answered with ours, not with what is spelled alike."""
    word = foreign.word_for(error) if isinstance(error, click.UsageError) else ""
    if word and isinstance(error, click.NoSuchCommand | click.NoSuchOption) and error.possibilities:
        error.possibilities.clear()
    error.message = plaintext.shown(errors.readable(error.message))  # type: ignore[misc]  # it names what was typed
    error.show()
    if word:
        plaintext.echo(f"  hint: {word}", err=True)


def _pipe_closed() -> int:
    """End quietly: the reader left (`| head`), and the interpreter must not fail again at its last flush."""
    os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
    return _PIPE_CLOSED


def _report_system(error: OSError, *, is_plain: bool) -> int:
    """Report an OSError: a path that no file can have, and an output that cannot be written, are the user's to mend."""
    if isinstance(error, BrokenPipeError):
        return _pipe_closed()
    if error.errno == errno.ENAMETOOLONG:
        shown = errors.readable(str(error.filename)[:_SHOWN])
        message = f'"{shown}" is longer than a path can be'
        hint = "a path has 4,095 bytes at most, and each name in it 255"
        return _report(errors.Invalid(message, reason="PathTooLong", hint=hint), is_plain=is_plain)
    if error.filename is not None or error.errno not in _UNWRITABLE:
        return _report_bug(error)
    _pipe_closed()
    message = f"the output cannot be written: {error.strerror}"
    refusal = errors.Unavailable(message, reason="OutputFailed", hint="free some space, or write elsewhere")
    return _report(refusal, is_plain=is_plain)


def _report(error: BaseException, *, is_plain: bool) -> int:
    """Print an error of ours, or those that ended a task tree; a group with any other is a bug, shown whole."""
    group = error if isinstance(error, BaseExceptionGroup) else BaseExceptionGroup("", [error])
    ours, others = group.split(errors.FairleadError)
    if ours is None or others is not None:
        return _report_bug(error)
    leaves = list(_leaves(ours))
    for leaf in leaves:
        print_error(leaf, is_plain=is_plain)
    return errors.row_of(leaves[0]).exit


def _leaves(group: BaseExceptionGroup[errors.FairleadError]) -> Iterator[errors.FairleadError]:
    for item in group.exceptions:
        if isinstance(item, BaseExceptionGroup):
            yield from _leaves(item)
        else:
            yield item


def _report_bug(error: BaseException) -> int:
    traceback.print_exception(error)
    plaintext.echo("error: this is a bug in fairlead; please report it with the lines above", err=True)
    return _BUG


def print_error(error: errors.FairleadError, *, is_plain: bool = False) -> None:
    """Print message and next step on standard error."""
    color = False if is_plain else None
    plaintext.echo("error: ", fg="red", err=True, nl=False, color=color)
    plaintext.echo(error.message, err=True, color=color)
    if error.hint:
        plaintext.echo(f"  hint: {error.hint}", err=True, color=color)


def main() -> None:
    """Run the program."""
    # Read as gRPC is loaded: below it, its C library writes every ended connection beside our log.
    os.environ.setdefault("GRPC_VERBOSITY", "ERROR")
    code = invoke()
    # The interpreter would look at every object once more before it ends; the kernel takes them as a whole.
    gc.freeze()
    sys.exit(code)


if __name__ == "__main__":
    main()
