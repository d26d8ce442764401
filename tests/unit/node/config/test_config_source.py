"""The node's configuration follows its file, its label and its folder, and keeps what works."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from pathlib import Path

from fairlead import settings
from fairlead.node.config import source
from fairlead.node.inventory import latest
from fairlead.plan.gpu import nodeconfig


def at(root: Path, **plugin: object) -> settings.Settings:
    return settings.Settings(
        state=settings.StateSettings(folder=root / "state"),
        plugin=settings.PluginSettings(**plugin),  # type: ignore[arg-type]
    )


def folder(root: Path, **texts: str) -> Path:
    made = root / "configs"
    made.mkdir(exist_ok=True)
    for name, text in texts.items():
        (made / name).write_text(text)
    return made


@contextlib.asynccontextmanager
async def running(chosen: settings.Settings, labels: source.Labels | None = None) -> AsyncIterator[source.ConfigSource]:
    made = source.ConfigSource(chosen, poll_s=0.05)
    async with asyncio.TaskGroup() as tasks:
        task = tasks.create_task(made.run(labels))
        try:
            yield made
        finally:
            task.cancel()


async def until(made: source.ConfigSource, condition: Callable[[nodeconfig.NodeConfig], bool]) -> nodeconfig.NodeConfig:
    async with asyncio.timeout(20):
        async for config in made.config.changes():
            if config is not None and condition(config):
                return config
    raise AssertionError


async def test_without_a_file_the_settings_are_in_force_at_once() -> None:
    assert source.ConfigSource(settings.Settings()).config.value == nodeconfig.NodeConfig()


async def test_a_file_that_changes_is_in_force_and_a_wrong_one_changes_nothing(tmp_path: Path) -> None:
    file = tmp_path / "c.yaml"
    file.write_text("flags: {migStrategy: single}")
    async with running(at(tmp_path, config_file=file)) as made:
        await until(made, lambda config: config.mig_strategy == "single")
        file.write_text("flags: {migStrategy: bad}")
        refused = await until(made, lambda config: bool(config.problem))
        assert refused.mig_strategy == "single"
        assert "flags.migStrategy" in made.problem.value
        file.write_text("flags: {migStrategy: mixed}")
        taken = await until(made, lambda config: config.mig_strategy == "mixed")
        assert (taken.problem, made.problem.value) == ("", "")


async def test_the_label_chooses_and_a_changed_label_chooses_anew(tmp_path: Path) -> None:
    files = folder(tmp_path, default="flags: {migStrategy: none}", a="flags: {migStrategy: single}", b="version: v1")
    labels: source.Labels = latest.Latest({source.LABEL: "a"})
    async with running(at(tmp_path, config_folder=files), labels) as made:
        await until(made, lambda config: config.name == "a")
        labels.set({source.LABEL: "b"})
        await until(made, lambda config: config.name == "b")
        labels.set({source.LABEL: "absent"})
        kept = await until(made, lambda config: bool(config.problem))
        assert kept.name == "b"
        assert 'configuration "absent" is not there (there: a, b, default)' in kept.problem
        labels.set({})
        await until(made, lambda config: config.name == "default" and not config.problem)


async def test_nothing_is_in_force_before_the_label_is_known(tmp_path: Path) -> None:
    files = folder(tmp_path, default="version: v1", a="version: v1")
    labels: source.Labels = latest.Latest(None)
    async with running(at(tmp_path, config_folder=files), labels) as made:
        await asyncio.sleep(0.2)
        assert made.config.value is None
        labels.set({source.LABEL: "a"})
        assert (await until(made, lambda _: True)).name == "a"


async def test_the_last_label_is_remembered_for_a_start_without_an_api_server(
    tmp_path: Path, monkeypatch: object
) -> None:
    monkeypatch.setattr(source, "LABEL_PATIENCE_S", 0.05)  # type: ignore[attr-defined]
    files = folder(tmp_path, default="version: v1", a="version: v1")
    async with running(at(tmp_path, config_folder=files), latest.Latest({source.LABEL: "a"})) as made:
        await until(made, lambda config: config.name == "a")
    async with running(at(tmp_path, config_folder=files), latest.Latest(None)) as made:
        assert (await until(made, lambda _: True)).name == "a"


async def test_a_choice_on_this_machine_stands_below_the_label(tmp_path: Path) -> None:
    files = folder(tmp_path, a="version: v1", b="version: v1")
    choice = source.choice_file(tmp_path / "state")
    choice.parent.mkdir(parents=True)
    choice.write_text("a\n")
    async with running(at(tmp_path, config_folder=files), latest.Latest({})) as made:
        await until(made, lambda config: config.name == "a")
        choice.write_text("b\n")
        await until(made, lambda config: config.name == "b")
    async with running(at(tmp_path, config_folder=files), latest.Latest({source.LABEL: "a"})) as made:
        assert (await until(made, lambda _: True)).name == "a"


async def test_a_mounted_configmap_that_is_replaced_is_read_again(tmp_path: Path) -> None:
    files = folder(tmp_path)
    for name, text in (("..1", "flags: {migStrategy: single}"), ("..2", "flags: {migStrategy: mixed}")):
        (files / name).mkdir()
        (files / name / "only").write_text(text)
    (files / "..data").symlink_to("..1")
    (files / "only").symlink_to("..data/only")
    async with running(at(tmp_path, config_folder=files)) as made:
        await until(made, lambda config: config.mig_strategy == "single")
        (files / "..data_tmp").symlink_to("..2")
        (files / "..data_tmp").replace(files / "..data")
        await until(made, lambda config: config.mig_strategy == "mixed")


async def test_no_choice_at_all_leaves_nothing_in_force_and_says_why(tmp_path: Path) -> None:
    files = folder(tmp_path, a="version: v1", b="version: v1")
    async with running(at(tmp_path, config_folder=files), latest.Latest({})) as made:
        async with asyncio.timeout(20):
            await made.problem.wait(0)
        assert made.config.value is None
        assert "no configuration was chosen for this node" in made.problem.value
        (files / "default").write_text("version: v1")
        await until(made, lambda config: config.name == "default")
