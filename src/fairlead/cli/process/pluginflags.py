"""Adds the flags and variables of NVIDIA's device plugin to a verb, beside our own.

Each stands for one of our settings (`wire.nvidia.pluginconfig.FLAGS`). At the same level our own name wins: FAIRLEAD_*
over NVIDIA's variable; two flags that contradict each other are an error. A flag wins over a variable, a variable over
the configuration file, and that over our settings file. Flags without a meaning here are accepted and ignored, as the
help says; those that are not implemented are logged.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

import click

from fairlead import errors, settings
from fairlead.cli.core import invocation, options, sections
from fairlead.node.config import source
from fairlead.plan.gpu import nodeconfig
from fairlead.wire.nvidia import pluginconfig, pluginreader
from fairlead.wire.nvidia.pluginconfig import Effect, Flag

R = TypeVar("R")

_SECTION: Final = "Names of NVIDIA's device plugin"
_KUBELET_SOCKET: Final = "kubelet.sock"
_NO_FEATURES: Final = "the agent's specs take no feature flags; `fairlead cdi generate --feature-flag` does"
_NO_HOOKS: Final = "the agent's specs have no hook unless node.cdi_hook is set"


class _Alias(NamedTuple):
    """A name of NVIDIA's for one of our settings, or for nothing."""

    flag: Flag
    convert: Callable[[str], str] = str


def _folder_of_socket(text: str) -> str:
    path = Path(text)
    if path.name != _KUBELET_SOCKET or not path.is_absolute():
        message = f'kubelet socket "{text}" is not a path that ends in /{_KUBELET_SOCKET}'
        hint = "an agent without a kubelet has nobody to serve: leave it out where the kubelet is at its usual place"
        raise errors.Invalid(message, reason="SettingInvalid", hint=hint)
    return str(path.parent)


def _plain_list(text: str) -> str:
    """Return the channels without the brackets that NVIDIA's own default has."""
    return text.strip().removeprefix("[").removesuffix("]")


def _row(name: str, env: str, setting: str, text: str, *, effect: Effect = Effect.START, kind: type = str) -> Flag:
    return Flag("", kind, (name,) if name else (), (env,), setting, effect, text)


_ALIASES: Final = (
    *(_Alias(flag) for flag in pluginconfig.FLAGS if not flag.key.startswith("gfd.")),
    _Alias(_row("config-file", "CONFIG_FILE", "plugin.config_file", "configuration file, version: v1")),
    _Alias(_row("", "CONFIG_FILE_SRCDIR", "plugin.config_folder", "folder of configuration files")),
    _Alias(_row("", "DEFAULT_CONFIG", "plugin.config_default", "which of them where the node has no label")),
    _Alias(_row("", "FALLBACK_STRATEGIES", "plugin.config_fallbacks", "what else where it has none")),
    _Alias(
        _row("kubelet-socket", "KUBELET_SOCKET", "node.kubelet_folder", "the kubelet's socket, kubelet.sock"),
        _folder_of_socket,
    ),
    _Alias(
        _row("imex-channel-ids", "IMEX_CHANNEL_IDS", "plugin.imex_channels", "IMEX channels", effect=Effect.LIVE),
        _plain_list,
    ),
    _Alias(
        _row("imex-required", "IMEX_REQUIRED", "plugin.imex_required", "must be there", effect=Effect.LIVE, kind=bool)
    ),
    _Alias(_row("", "DP_DISABLE_HEALTHCHECKS", "health.ignored_xids", "XIDs that change nothing")),
    _Alias(_row("", "DP_ENABLE_HEALTHCHECKS", "health.heeded_xids", "XIDs that take their GPU out")),
    _Alias(_row("cdi-feature-flags", "CDI_FEATURE_FLAGS", "", _NO_FEATURES, effect=Effect.NOTHING_TO_DO)),
    _Alias(_row("cdi-disable-hooks", "CDI_DISABLE_HOOKS", "", _NO_HOOKS, effect=Effect.NOTHING_TO_DO)),
)


def settings_options(*groups: str) -> Callable[[Callable[..., R]], Callable[..., R]]:
    """Add what `options.settings_options` adds, and NVIDIA's names for some of it."""

    def decorate(function: Callable[..., R]) -> Callable[..., R]:
        inner = options.settings_options(*groups)(function)

        @click.pass_context
        @functools.wraps(inner)
        def called(ctx: click.Context, /, *args: Any, **kwargs: Any) -> R:
            given = {alias: kwargs.pop(_parameter(alias)) for alias in _ALIASES if alias.flag.names}
            call = invocation.current(ctx)
            ctx.obj = dataclasses.replace(call, env={**dict(_of_environment(call.env)), **call.env})
            for alias, text in given.items():
                if text is not None and (value := _read(alias, text, f"--{alias.flag.names[0]}")) is not None:
                    _take(kwargs, alias, value)
            return inner(*args, **kwargs)

        for alias in reversed(_ALIASES):
            if alias.flag.names:
                called = _option(alias)(called)
        return called

    return decorate


def with_file(config: settings.Settings) -> settings.Settings:
    """Return the settings with what a configuration file says that a running agent cannot change.

    Raises: Invalid: the file is wrong; Unavailable: it, or the folder of files, cannot be read.
    """
    plugin = config.plugin
    if plugin.config_folder is not None:
        source.list_files(plugin.config_folder)  # which of them is in force may not be known yet
        return config
    if plugin.config_file is None:
        return config
    document = source.read_file(plugin.config_file)
    nodeconfig.plan_config(config, document)
    return nodeconfig.apply_at_start(config, document)


def _option(alias: _Alias) -> Callable[[Callable[..., R]], Callable[..., R]]:
    flag = alias.flag
    stands_for = f"NVIDIA's name for --{flag.setting.replace('.', '-').replace('_', '-')}" if flag.setting else ""
    mark = "" if flag.setting else f"{flag.effect.value}: "
    text = f"{mark}{stands_for or flag.text}  [env: {flag.envs[0]}]"
    common: dict[str, Any] = {
        "cls": sections.SectionedOption, "section": _SECTION, "is_aside": True, "default": None, "help": text
    }  # fmt: skip
    names = [f"--{name}" for name in flag.names]
    if flag.kind is bool:
        # Go's flags take a value behind an equals sign, and none at all for true.
        return click.option(*names, _parameter(alias), is_flag=False, flag_value="true", metavar="[BOOL]", **common)
    if flag.kind is tuple:
        joined = click.option(
            *names, _parameter(alias), multiple=True, callback=lambda _c, _p, v: ",".join(v) or None, metavar="TEXT",
            cls=sections.SectionedOption, section=_SECTION, is_aside=True, help=text,
        )  # fmt: skip
        return joined
    return click.option(*names, _parameter(alias), metavar="TEXT", **common)


def _parameter(alias: _Alias) -> str:
    return f"nvidia_{alias.flag.names[0].replace('-', '_')}"


def _read(alias: _Alias, text: str, named: str) -> str | None:
    """Return the value for our setting; None: it stands for none, and is logged where that matters."""
    flag = alias.flag
    value = pluginreader.flag_value(flag, text, named=named)
    if not flag.setting:
        return None
    plain = ",".join(value) if isinstance(value, tuple) else str(value).lower() if value in {True, False} else value
    return alias.convert(str(plain))


def _take(kwargs: dict[str, Any], alias: _Alias, value: str) -> None:
    """Put a flag's value where our own flag's would be. Raises: Invalid: that one is given too, and says otherwise."""
    parameter = alias.flag.setting.replace(".", "_")
    ours = kwargs.get(parameter)
    plain = str(ours).lower() if isinstance(ours, bool) else None if ours is None else str(ours)
    if plain is not None and plain != value:
        own = f"--{alias.flag.setting.replace('.', '-').replace('_', '-')}"
        message = f"--{alias.flag.names[0]} says {value} and {own} says {plain}"
        raise errors.Invalid(message, reason="SettingInvalid", hint="they are one setting: give one of them")
    kwargs[parameter] = value


def _of_environment(env: Mapping[str, str]) -> Iterator[tuple[str, str]]:
    """Yield our variables for those of NVIDIA's that are set; an empty one is not."""
    known = {row.key: row for row in settings.rows()}
    for alias in _ALIASES:
        name = next((name for name in alias.flag.envs if env.get(name)), None)
        if name is not None and (value := _read(alias, env[name], name)) is not None:
            yield known[alias.flag.setting].env, value
