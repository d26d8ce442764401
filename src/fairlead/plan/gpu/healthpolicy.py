"""Makes the health rules of a node from its settings and its configuration file. Pure.

Settings name XIDs in three ways, because NVIDIA's plugin has two of them: what one asks for (`health.xids`), those that
change nothing (its DP_DISABLE_HEALTHCHECKS) and those that take a GPU out all the same (DP_ENABLE_HEALTHCHECKS, which
wins over the former). A flag or variable wins over the configuration file, that over the settings file.
Source: NVIDIA k8s-device-plugin, internal/rm/health.go, getDisabledHealthCheckXids.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from fairlead import errors, settings
from fairlead.model.gpu import SPARED, UNKNOWN_XID, XIDS, Action
from fairlead.plan.gpu import health
from fairlead.wire.nvidia import pluginconfig

ALL: Final = "all"
_EVERY: Final = frozenset({ALL, "xids"})
"""NVIDIA's two words for no health checks at all."""
ACTIONS: Final[Mapping[str, Action]] = dict(zip(pluginconfig.XID_ACTIONS, Action, strict=True))


def plan_policy(chosen: settings.Settings, xids: Mapping[int, str]) -> health.Policy:
    """Return the rules. Args: xids: actions that the configuration file gives. Raises: Invalid: a wrong setting."""
    rows = chosen.health
    ignored, heeded = set(_words(rows.ignored_xids)), set(_words(rows.heeded_xids))
    every = Action.RESET if ALL in heeded else Action.IGNORE if ignored & _EVERY else None
    named = {
        **{_xid(word, "health.ignored_xids"): Action.IGNORE for word in ignored - _EVERY},
        **{xid: _heeded(xid) for word in heeded - _EVERY for xid in (_xid(word, "health.heeded_xids"),)},
        **dict(_pairs(rows.xids)),
    }
    of_file = {xid: ACTIONS[action] for xid, action in xids.items()}
    is_stated = any(key.startswith("health.") and key.endswith("xids") for key in chosen.given)
    return health.Policy(
        hot_c=rows.hot_c,
        persist_s=rows.persist_s,
        hold_s=rows.hold_s,
        every_xid=every,
        xids={**of_file, **named} if is_stated else {**named, **of_file},
    )


def _heeded(xid: int) -> Action:
    action, _ = XIDS.get(xid, UNKNOWN_XID)
    return Action.RESET if action in SPARED else action


def _words(text: str) -> Iterator[str]:
    return (word for part in text.split(",") if (word := part.strip()))


def _pairs(text: str) -> Iterator[tuple[int, Action]]:
    for word in _words(text):
        xid, _, action = word.partition("=")
        if action.strip() not in ACTIONS:
            message = f'"{word}" in health.xids is not XID=ACTION (actions: {", ".join(ACTIONS)})'
            raise errors.Invalid(message, reason="SettingInvalid", hint="write 94=reset,63=ignore")
        yield _xid(xid.strip(), "health.xids"), ACTIONS[action.strip()]


def _xid(text: str, key: str) -> int:
    if text.isascii() and text.isdecimal() and len(text) < 5 and 0 < int(text) <= pluginconfig.LARGEST_XID:
        return int(text)
    message = f'"{text}" in {key} is not an XID, a number from 1 to {pluginconfig.LARGEST_XID}'
    raise errors.Invalid(message, reason="SettingInvalid", hint="NVIDIA's XID catalog has the numbers")
