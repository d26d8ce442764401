"""Follows the configuration of this node: one file, or a folder of them of which the node's label names one.

`ConfigSource.config` is the value in force, like the inventory's snapshot: readers take its changes without a restart.
A file that is wrong, or a label that names no file, changes nothing: what was in force stays, `problem` says why, and
the next change is tried again. Until the first configuration is known nothing is in force: an agent that starts must
not offer devices under names which the node's label takes back a moment later. The label is waited for, and the last
one is remembered on disk for a start without an API server.

Choice, as NVIDIA's config-manager makes it: the label, else the configured default, else the fallbacks in their order.
On one machine the file `agent/config/choice` in the state folder names a choice that stands below the label.
Source: NVIDIA k8s-device-plugin, cmd/config-manager/main.go.
"""

from __future__ import annotations

import asyncio
import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import asyncinotify

from fairlead import errors, files, settings, telemetry
from fairlead.node.inventory import foldermonitor, latest
from fairlead.plan.gpu import nodeconfig
from fairlead.wire.nvidia import pluginconfig, pluginreader

LABEL: Final = "nvidia.com/device-plugin.config"
LABEL_PATIENCE_S: Final = 5.0
"""How long the first configuration waits for the node's labels where a label chooses."""
POLL_S: Final = 10.0
"""Period of a look without an event: inotify on a folder misses changes behind a link that leads out of it."""
_SETTLE_S: Final = 0.05
"""Wait before a look: one change of a file arrives as several events."""
_LONGEST_NAME: Final = 253

Labels = latest.Latest[Mapping[str, str] | None]
"""Of this node; None: not known yet."""


def choice_file(state: Path) -> Path:
    """Return where this machine's choice of a configuration is kept."""
    return state / "agent" / "config" / "choice"


def label_file(state: Path) -> Path:
    """Return where the node's last label is kept."""
    return state / "agent" / "config" / "label"


def read_choice(path: Path) -> str:
    """Return the name in such a file, empty where there is none."""
    try:
        with path.open("rb") as file:
            return file.read(_LONGEST_NAME + 1).decode("utf-8", "replace").strip()
    except OSError:
        return ""


def write_choice(path: Path, name: str) -> None:
    """Put a name into such a file. Raises: OSError, Unavailable: it cannot be written."""
    path.parent.mkdir(parents=True, exist_ok=True)
    files.write_atomic(path, f"{name}\n".encode(), mode=0o644, durable=False)


def list_files(folder: Path) -> tuple[str, ...]:
    """Return the names of a folder's configuration files, without the `..` entries of a mounted ConfigMap.

    Raises: Unavailable: the folder cannot be read.
    """
    try:
        return tuple(sorted(one.name for one in folder.iterdir() if not one.name.startswith("..") and one.is_file()))
    except OSError as error:
        message = f"cannot read the folder of configurations {folder}: {error.strerror}"
        raise errors.Unavailable(message, reason="ConfigFolderUnreadable", path=str(folder)) from error


def read_file(path: Path) -> pluginconfig.PluginConfig:
    """Read one file. Raises: Invalid: it is wrong; Unavailable: it cannot be read."""
    try:
        data = files.read_bounded(path)
    except OSError as error:
        message = f"cannot read configuration file {path}: {error.strerror}"
        raise errors.Unavailable(message, reason="ConfigFileUnreadable", path=str(path)) from error
    return pluginreader.parse(data, source=str(path))


def read_config(chosen: settings.Settings, label: str) -> nodeconfig.NodeConfig:
    """Read what is to be in force. Args: label: of the node; empty: it has none. Raises: as `read_file`, NotFound."""
    plugin = chosen.plugin
    if plugin.config_folder is None:
        document = read_file(plugin.config_file) if plugin.config_file is not None else None
        return nodeconfig.plan_config(chosen, document, name=str(plugin.config_file or ""))
    wanted = label or read_choice(choice_file(chosen.state.folder))
    fallbacks = tuple(word.strip() for word in plugin.config_fallbacks.split(",") if word.strip())
    name = nodeconfig.choose_file(
        list_files(plugin.config_folder), wanted=wanted, default=plugin.config_default, fallbacks=fallbacks
    )
    document = read_file(plugin.config_folder / name) if name else None
    return nodeconfig.plan_config(chosen, document, name=name)


class ConfigSource:
    """Keeps `config` up to date."""

    def __init__(self, chosen: settings.Settings, *, poll_s: float = POLL_S) -> None:
        """Take the settings; where neither file nor folder is named, what they say is in force at once."""
        self._settings = chosen
        self._poll_s = poll_s
        self._label: str | None = None
        self._problem = ""
        self._is_fixed = chosen.plugin.config_file is None and chosen.plugin.config_folder is None
        first = nodeconfig.plan_config(chosen) if self._is_fixed else None
        self.config: latest.Latest[nodeconfig.NodeConfig | None] = latest.Latest(first)
        """None: nothing is known to be in force yet, and nothing may be offered."""
        self.problem: latest.Latest[str] = latest.Latest("")
        """Why what was asked for last is not in force; empty: it is."""

    async def run(self, labels: Labels | None) -> None:
        """Follow for ever. Args: labels: of this node, where something knows them."""
        if self._is_fixed:
            return
        folder = self._settings.plugin.config_folder
        watched = (folder, choice_file(self._settings.state.folder).parent) if folder is not None else ()
        file = self._settings.plugin.config_file
        places = watched or ((file.parent,) if file is not None else ())
        if folder is None:
            labels = None
        changed = asyncio.Event()
        async with asyncio.TaskGroup() as tasks:
            for place in places:
                watch = foldermonitor.FolderMonitor(place, mask=foldermonitor.CONTENT & ~asyncinotify.Mask.ATTRIB)
                tasks.create_task(watch.run(), name="config: folder")
                tasks.create_task(watch.ticks.follow(lambda _: changed.set()), name="config: files")
            if labels is not None:
                tasks.create_task(labels.follow(lambda _: changed.set()), name="config: label")
                await self._await_labels(labels)
            while True:
                changed.clear()
                await self._read(labels)
                try:
                    async with asyncio.timeout(self._poll_s):
                        await changed.wait()
                        await asyncio.sleep(_SETTLE_S)
                except TimeoutError:
                    continue

    async def _await_labels(self, labels: Labels) -> None:
        try:
            async with asyncio.timeout(LABEL_PATIENCE_S):
                while labels.value is None:
                    await labels.wait(labels.version)
        except TimeoutError:
            telemetry.log.warning("node's labels not known yet, its last choice of a configuration is taken")

    async def _read(self, labels: Labels | None) -> None:
        label = await self._read_label(labels)
        try:
            found = await asyncio.to_thread(read_config, self._settings, label)
        except errors.FairleadError as error:
            self._refuse(error)
            return
        if self._problem:
            telemetry.log.info("configuration is in force again", path=found.name)
        self._problem = ""
        self.problem.set("")
        if self.config.set(found):
            telemetry.log.info("configuration in force", path=found.name or "none")

    def _refuse(self, error: errors.FairleadError) -> None:
        sentence = errors.sentence(error)
        if sentence != self._problem:
            state = "the last one stays in force" if self.config.value is not None else "nothing is offered"
            telemetry.log.error("configuration refused", reason=error.reason, error=sentence, state=state)
        self._problem = sentence
        self.problem.set(sentence)
        if (now := self.config.value) is not None:
            self.config.set(dataclasses.replace(now, problem=sentence))

    async def _read_label(self, labels: Labels | None) -> str:
        """Return the node's label, the remembered one while labels are not known; remember a change."""
        path = label_file(self._settings.state.folder)
        if labels is None or labels.value is None:
            return await asyncio.to_thread(read_choice, path) if labels is not None else ""
        label = labels.value.get(LABEL, "")
        if label != self._label:
            self._label = label
            try:
                await asyncio.to_thread(write_choice, path, label)
            except (OSError, errors.Unavailable) as error:
                telemetry.log.warning("choice of a configuration not remembered", path=str(path), error=str(error))
        return label
