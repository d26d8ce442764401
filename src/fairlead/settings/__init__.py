"""Declares every setting of every process, one row each; flags, environment, file and pages derive from the rows.

A row is a dataclass field made by `row.row`: its group and name give the environment variable (`FAIRLEAD_GROUP_NAME`),
the key in the file (`[group] name`) and the flag (`--group-name`) unless the row says otherwise. Precedence: flag over
environment over file over default. Unknown keys in the file and unknown `FAIRLEAD_*` variables are errors. Loaded once,
in `cli`; each room is handed only its group.

`groups`, `control` and `serving` have the rows, `reading` merges where they come from, `value` checks each value.
"""

from fairlead.settings.control import ControlSettings
from fairlead.settings.groups import (
    ClusterSettings,
    DebugSettings,
    EngineSettings,
    HealthSettings,
    KubeletSettings,
    LabelSettings,
    LeaseSettings,
    LogSettings,
    MeteringSettings,
    NodeSettings,
    PluginSettings,
    Settings,
    SiliconSettings,
    StateSettings,
    rows,
)
from fairlead.settings.idling import IdleSettings
from fairlead.settings.reading import DEFAULT_FILE, RESERVED, environment, load, override
from fairlead.settings.reserving import ReserveSettings
from fairlead.settings.row import PREFIX, Row
from fairlead.settings.serving import APISettings

__all__ = [
    "APISettings",
    "ClusterSettings",
    "ControlSettings",
    "DEFAULT_FILE",
    "DebugSettings",
    "EngineSettings",
    "HealthSettings",
    "IdleSettings",
    "KubeletSettings",
    "LabelSettings",
    "LeaseSettings",
    "LogSettings",
    "MeteringSettings",
    "NodeSettings",
    "PluginSettings",
    "PREFIX",
    "RESERVED",
    "ReserveSettings",
    "Row",
    "Settings",
    "SiliconSettings",
    "StateSettings",
    "environment",
    "load",
    "override",
    "rows",
]
