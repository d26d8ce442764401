"""YAML specs in the shim's folders: read once converted, told where they might decide, never passed over."""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import Any

import pytest

from fairlead import errors
from fairlead.cli.layer.cdi import speccache
from fairlead.inject import cachereader, create, policy, runtime, yamlcache
from fairlead.plan.shim import request
from fairlead_cdi import directory

KIND = "test.fairlead.dev/gpu"
YAML = f"""\
cdiVersion: "0.5.0"
kind: {KIND}
devices:
- name: 0:1
  containerEdits:
    env: [FROM=yaml]
"""


class World:
    """A shim of its own: policy file, spec folders, a bundle; `run` is one container's create."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.config = folder / "runtime.json"
        for name in ("low", "high", "bundle"):
            (folder / name).mkdir()
        settings = {
            "runtimes": ["/bin/true"],
            "specDirs": [str(folder / "low"), str(folder / "high")],
            "defaultKind": KIND,
            "imageRequests": "honour",
            "cache": str(folder / "run/shim/cache.json"),
            "yamlCache": str(folder / "run/yaml"),
        }
        self.config.write_text(json.dumps(settings))
        self.settings = policy.load(str(self.config))

    def json_spec(self, folder: str, value: str) -> Path:
        edits = {"env": [f"FROM={value}"]}
        document = {"cdiVersion": "0.5.0", "kind": KIND, "devices": [{"name": "0:1", "containerEdits": edits}]}
        path = self.folder / folder / "spec.json"
        path.write_text(json.dumps(document))
        return path

    def env(self) -> list[str]:
        """Have the shim edit a container that asks for the device; its environment, or the error's reason."""
        config: dict[str, Any] = {"ociVersion": "1.0.2", "process": {"env": [f"NVIDIA_VISIBLE_DEVICES={KIND}=0:1"]}}
        path = self.folder / "bundle/config.json"
        path.write_text(json.dumps(config))
        asked = request.decide(request.read(config), self.settings.request)
        found = cached_env(config, asked, self.settings)
        if found is not None:
            return found
        registry = directory.scan(self.settings.spec_dirs, decoders=yamlcache.decoders(self.settings.yaml_cache))
        return [item for _, part in create.sources(registry, asked, self.settings) for item in part.env]


def cached_env(config: dict[str, Any], asked: request.Request, settings: policy.Settings) -> list[str] | None:
    try:
        made = cachereader.inject({}, asked, settings)
    except (OSError, ValueError):
        return None
    return None if made is None else list(made[0]["process"]["env"])  # type: ignore[index]


@pytest.fixture
def world(tmp_path: Path) -> World:
    return World(tmp_path)


def test_a_yaml_spec_is_refused_with_its_remedy_until_it_is_converted(world: World) -> None:
    (world.folder / "high/spec.yaml").write_text(YAML)
    with pytest.raises(errors.Unavailable) as caught:
        world.env()
    assert caught.value.reason == "SpecFormatUnread"
    assert "spec.yaml may define what is asked for" in caught.value.message
    assert caught.value.hint is not None
    assert "fairlead cdi prepare" in caught.value.hint
    assert speccache.renew(world.config).conversions == 1
    assert world.env() == ["FROM=yaml"]


def test_a_converted_spec_goes_the_short_way_and_the_long_one(world: World) -> None:
    (world.folder / "high/spec.yaml").write_text(YAML)
    assert speccache.renew(world.config).cache == world.settings.cache
    asked = request.Request()
    asked.names = (f"{KIND}=0:1",)
    assert cached_env({}, asked, world.settings) == ["FROM=yaml"]
    Path(world.settings.cache).unlink()
    assert world.env() == ["FROM=yaml"]


@pytest.mark.parametrize("folder", ["low", "high"])
def test_an_unread_spec_that_could_overrule_or_cancel_is_not_passed_over(world: World, folder: str) -> None:
    world.json_spec("low", "json")
    (world.folder / folder / "more.yaml").write_text(YAML)
    with pytest.raises(errors.Unavailable, match="may define"):
        world.env()


def test_an_unread_spec_that_can_decide_nothing_stops_nobody(world: World) -> None:
    world.json_spec("high", "json")
    (world.folder / "low/more.yaml").write_text(YAML)
    assert world.env() == ["FROM=json"]


def test_an_override_in_yaml_counts_once_converted(world: World) -> None:
    world.json_spec("low", "json")
    (world.folder / "high/more.yaml").write_text(YAML)
    speccache.renew(world.config)
    assert world.env() == ["FROM=yaml"]


def test_a_conversion_is_of_these_bytes_only(world: World) -> None:
    path = world.folder / "high/spec.yaml"
    path.write_text(YAML)
    speccache.renew(world.config)
    path.write_text(YAML.replace("yaml", "other"))
    with pytest.raises(errors.Unavailable):
        world.env()
    speccache.renew(world.config)
    assert world.env() == ["FROM=other"]
    assert len(list(Path(world.settings.yaml_cache).iterdir())) == 1


def test_a_conversion_that_others_can_write_is_not_used(world: World) -> None:
    (world.folder / "high/spec.yaml").write_text(YAML)
    speccache.renew(world.config)
    Path(world.settings.cache).unlink()
    (conversion,) = Path(world.settings.yaml_cache).iterdir()
    conversion.chmod(0o666)
    with pytest.raises(errors.Unavailable, match="can be written by others"):
        world.env()


def test_what_json_cannot_say_is_left_unconverted(tmp_path: Path) -> None:
    assert yamlcache.keep(tmp_path / "yaml", [(b"a", {1j}), (b"b", {"ok": 1}), (b"c", float("nan"))]) == 1


def test_a_folder_that_refuses_is_told(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(errors.Unavailable):
        yamlcache.keep(tmp_path / "file", [])


def test_a_policy_that_cannot_be_used_is_told(tmp_path: Path) -> None:
    (tmp_path / "runtime.json").write_text("{")
    with pytest.raises(errors.Invalid):
        speccache.renew(tmp_path / "runtime.json")


def test_the_refusal_reaches_the_engine(world: World, capfd: pytest.CaptureFixture[str]) -> None:
    (world.folder / "high/spec.yaml").write_text(YAML)
    config = {"ociVersion": "1.0.2", "process": {"env": [f"NVIDIA_VISIBLE_DEVICES={KIND}=0:1"]}}
    (world.folder / "bundle/config.json").write_text(json.dumps(config))
    arguments = ["create", "--bundle", str(world.folder / "bundle"), f"x{os.getpid()}"]
    assert runtime.main(arguments, config=str(world.config)) != 0
    assert "fairlead cdi prepare" in capfd.readouterr().err
