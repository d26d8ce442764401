"""The operator's file: every key, mistakes refused, and only files nobody else could have written."""

from __future__ import annotations

import json
import re
from pathlib import Path

import pytest

from fairlead.inject import policy


def load(folder: Path, **keys: object) -> policy.Settings:
    path = folder / "runtime.json"
    path.write_text(json.dumps(keys))
    path.chmod(0o644)
    return policy.load(str(path))


def test_a_missing_file_means_the_careful_defaults(tmp_path: Path) -> None:
    settings = policy.load(str(tmp_path / "none.json"), hook="/opt/hook")
    assert (settings.hook, settings.request.image_requests) == ("/opt/hook", "ignore")
    assert not settings.request.accepts_volume_mounts


def test_every_key_lands_in_its_field(tmp_path: Path) -> None:
    settings = load(
        tmp_path,
        runtimes=["/opt/runc"],
        specDirs=["/a", "/b"],
        hook="/h",
        hookTimeout=5,
        ldconfig="/l",
        cache="",
        yamlCache="/y",
        allocations="/k",
        mode="cdi",
        defaultKind="a.b/c",
        imageRequests="honour",
        acceptVolumeMounts=True,
        checkAllocations=False,
        annotationPrefixes=["x/"],
        variables=["GPUS"],
        driverCapabilities=["compute"],
        checkRequirements=False,
    )
    assert (settings.runtimes, settings.spec_dirs, settings.hook) == (("/opt/runc",), ("/a", "/b"), "/h")
    assert (settings.hook_timeout_s, settings.ldconfig, settings.cache) == (5, "/l", "")
    assert (settings.yaml_cache, settings.allocations) == ("/y", "/k")
    rules = settings.request
    assert not rules.checks_allocations
    assert (rules.mode, rules.default_kind, rules.image_requests) == ("cdi", "a.b/c", "honour")
    assert (rules.annotation_prefixes, rules.variables) == (("x/",), ("GPUS",))
    assert (rules.accepts_volume_mounts, rules.checks_requirements) == (True, False)
    assert rules.capabilities == frozenset({"compute"})


def test_the_pages_table_has_every_key_and_no_other() -> None:
    page = Path("docs/how-to/replace-nvidia-toolkit.md").read_text()
    table = page.partition("| `runtimes` |")[1:]
    cells = (line.split("|")[1] for line in "".join(table).split("\n\n")[0].splitlines())
    named = [key for cell in cells for key in re.findall(r"`(\w+)`", cell)]
    assert sorted(named) == sorted(policy._KEYS)


@pytest.mark.parametrize(
    ("keys", "words"),
    [
        ({"imageRequest": "honour"}, 'key "imageRequest" is unknown'),
        ({"imageRequests": "yes"}, "one of ignore, refuse, privileged, honour"),
        ({"mode": 1}, "must be text"),
        ({"runtimes": []}, "list with at least one"),
        ({"runtimes": "runc"}, "list with at least one"),
        ({"hook": "hook"}, "absolute path"),
        ({"hookTimeout": 0}, "above 0"),
        ({"hookTimeout": True}, "above 0"),
        ({"acceptVolumeMounts": "true"}, "true or false"),
        ({"driverCapabilities": ["fly"]}, "must be of compute"),
    ],
)
def test_a_mistake_names_its_key(tmp_path: Path, keys: dict[str, object], words: str) -> None:
    with pytest.raises(policy.PolicyError, match=words):
        load(tmp_path, **keys)


@pytest.mark.parametrize(("text", "words"), [("[]", "not a JSON object"), ("{", "not JSON")])
def test_what_is_no_object_is_refused(tmp_path: Path, text: str, words: str) -> None:
    path = tmp_path / "runtime.json"
    path.write_text(text)
    path.chmod(0o644)
    with pytest.raises(policy.PolicyError, match=words):
        policy.load(str(path))


@pytest.mark.parametrize("mode", [0o646, 0o664])
def test_a_file_that_others_can_write_is_not_believed(tmp_path: Path, mode: int) -> None:
    path = tmp_path / "runtime.json"
    path.write_text("{}")
    path.chmod(mode)
    with pytest.raises(policy.PolicyError, match="written by others"):
        policy.load(str(path))


def test_a_folder_in_its_place_and_a_huge_file_are_refused(tmp_path: Path) -> None:
    with pytest.raises(policy.PolicyError):
        policy.load(str(tmp_path))
    path = tmp_path / "runtime.json"
    path.write_bytes(b" " * (1 << 20))
    path.chmod(0o600)
    with pytest.raises(policy.PolicyError, match="larger"):
        policy.load(str(path))
