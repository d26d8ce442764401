"""Settings: one table, four sources, one order of precedence; whatever is not in the table is an error."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from fairlead import errors, settings
from fairlead.settings import reading

_ROWS = {item.key: item for item in settings.rows()}


def _load(flags: dict[str, Any] | None = None, env: dict[str, str] | None = None, file: Path | None = None) -> Any:
    return settings.load(flags=flags or {}, env=env or {}, file=file)


def _file(folder: Path, text: str) -> Path:
    path = folder / "config.toml"
    path.write_text(text)
    return path


# the table


@pytest.mark.parametrize("item", _ROWS.values(), ids=_ROWS)
def test_every_row_says_what_it_means_in_one_line(item: settings.Row) -> None:
    assert item.text
    assert "\n" not in item.text
    assert not item.text.endswith(".")


@pytest.mark.parametrize("item", _ROWS.values(), ids=_ROWS)
def test_every_time_has_its_unit_in_name_and_row(item: settings.Row) -> None:
    assert (item.unit == "s") is item.name.endswith("_s")


@pytest.mark.parametrize("item", [item for item in _ROWS.values() if item.choices], ids=lambda item: item.key)
def test_every_default_is_one_of_its_choices(item: settings.Row) -> None:
    assert item.default in item.choices


def test_names_are_unique_in_every_source() -> None:
    for spelling in ("env", "key", "flag"):
        names = [getattr(item, spelling) for item in _ROWS.values()]
        assert len(set(names)) == len(names)
        assert not settings.RESERVED & set(names)


def test_a_row_gives_variable_key_and_flag() -> None:
    item = _ROWS["kubelet.endpoint_grace_s"]
    assert (item.env, item.flag) == ("FAIRLEAD_KUBELET_ENDPOINT_GRACE_S", "--kubelet-endpoint-grace-s")


# precedence


def test_nothing_given_is_all_defaults() -> None:
    assert _load() == settings.Settings()


def test_flag_wins_over_environment_over_file_over_default(tmp_path: Path) -> None:
    file = _file(tmp_path, '[node]\nname = "file"\nresource = "a.com/file"\n[kubelet]\nmax_pods = 3\n')
    env = {"FAIRLEAD_NODE_NAME": "env", "FAIRLEAD_NODE_RESOURCE": "a.com/env"}
    found = _load({"node.name": "flag"}, env, file)
    assert (found.node.name, found.node.resource, found.kubelet.max_pods) == ("flag", "a.com/env", 3)
    assert found.control == settings.ControlSettings()


@pytest.mark.parametrize(
    ("key", "text", "value"),
    [
        ("state.folder", "/srv/x", Path("/srv/x")),
        ("api.socket", "/run/a.sock", Path("/run/a.sock")),
        ("kubelet.resync_s", "0.25", 0.25),
        ("kubelet.resync_s", "0", 0.0),
        ("kubelet.max_pods", "7", 7),
        ("engine.pull", "off", False),
        ("engine.pull", "YES", True),
        ("log.level", "debug", "debug"),
        ("node.name", "", ""),
        # GPU-hours are no time: no bound of a century.
        ("reserve.gpu_hours", "1000000", 1e6),
    ],
)
def test_text_becomes_the_rows_type(key: str, text: str, value: object) -> None:
    group, name = key.split(".")
    found = getattr(getattr(_load(env={_ROWS[key].env: text}), group), name)
    assert found == value
    assert type(found) is type(value)


@pytest.mark.parametrize("toml", ["pull = true", 'pull = "true"'])
def test_toml_values_keep_their_type_or_are_read_as_text(tmp_path: Path, toml: str) -> None:
    assert _load(file=_file(tmp_path, f"[engine]\n{toml}\n")).engine.pull is True


def test_whole_numbers_in_toml_are_good_enough_for_seconds(tmp_path: Path) -> None:
    assert _load(file=_file(tmp_path, "[kubelet]\nresync_s = 2\n")).kubelet.resync_s == 2.0


# what is wrong


@pytest.mark.parametrize(
    ("key", "text"),
    [
        ("kubelet.max_pods", "many"),
        ("kubelet.max_pods", "1.5"),
        ("kubelet.max_pods", "-1"),
        ("kubelet.resync_s", "nan"),
        ("kubelet.resync_s", "inf"),
        ("kubelet.resync_s", "-0.5"),
        ("kubelet.resync_s", "3153600001"),
        ("idle.warn_min", "1e300"),
        ("lease.keep_days", "36501"),
        ("engine.pull", "perhaps"),
        ("log.level", "loud"),
        ("state.folder", ""),
        ("api.socket", ""),
    ],
)
def test_a_bad_value_is_named_with_where_to_set_it(key: str, text: str) -> None:
    item = _ROWS[key]
    with pytest.raises(errors.Invalid) as caught:
        _load(env={item.env: text})
    assert f'setting {key} = "{text}"' in caught.value.message
    assert caught.value.hint == f"set {item.env} or {item.flag}"


@pytest.mark.parametrize(
    "toml",
    ["[kubelet]\nmax_pods = 1.5", "[kubelet]\nmax_pods = true", "[node]\nname = 5", '[node]\nname = ["a"]'],
)
def test_a_toml_value_of_another_type_is_refused_and_never_bent(tmp_path: Path, toml: str) -> None:
    with pytest.raises(errors.Invalid, match="is not a"):
        _load(file=_file(tmp_path, toml))


def test_choices_are_listed_where_none_of_them_was_given() -> None:
    with pytest.raises(errors.Invalid, match=r"not offered \(offered: auto, console, plain, json\)"):
        _load({"log.format": "xml"})


@pytest.mark.parametrize(
    "toml", ["[node]\nnaem = 1", "name = 1", "[noed]\n", "[noed]\nname = 1", "[node.name]\nx = 1\n", "[node.sub]\n"]
)
def test_unknown_keys_and_groups_in_the_file_are_errors(tmp_path: Path, toml: str) -> None:
    with pytest.raises(errors.Invalid):
        _load(file=_file(tmp_path, toml))


def test_an_unknown_key_is_answered_with_the_nearest_known_one(tmp_path: Path) -> None:
    with pytest.raises(errors.Invalid) as caught:
        _load(file=_file(tmp_path, '[node]\nnaem = "x"'))
    assert caught.value.hint == 'did you mean "node.name"?'


def test_an_unknown_variable_is_an_error_and_a_foreign_one_is_not() -> None:
    with pytest.raises(errors.Invalid, match="FAIRLEAD_NODE_NAEM") as caught:
        _load(env={"FAIRLEAD_NODE_NAEM": "x"})
    assert caught.value.hint == 'did you mean "FAIRLEAD_NODE_NAME"?'
    assert _load(env={"HOME": "/root", **dict.fromkeys(settings.RESERVED, "x"), "FAIRLEAD_TEST_X": "1"})


def test_an_unknown_flag_is_an_error() -> None:
    with pytest.raises(errors.Invalid, match=r"nod\.name"):
        _load({"nod.name": "x"})


@pytest.mark.parametrize("content", [b"not toml", b'[node]\nname = "\xff"'])
def test_a_file_that_is_not_toml_is_an_error_with_its_path(tmp_path: Path, content: bytes) -> None:
    file = tmp_path / "bad.toml"
    file.write_bytes(content)
    with pytest.raises(errors.Invalid, match=r"bad\.toml is not TOML"):
        _load(file=file)


def test_a_named_file_must_be_there_and_the_default_one_need_not(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    absent = tmp_path / "absent.toml"
    with pytest.raises(errors.Invalid, match="No such file"):
        _load(file=absent)
    monkeypatch.setattr(reading, "DEFAULT_FILE", absent)
    assert _load(file=absent) == settings.Settings()


# the child process


def test_a_childs_environment_loads_the_same_settings() -> None:
    given = {"engine.pull": False, "kubelet.resync_s": 0.1, "state.folder": Path("/srv/a b"), "api.socket": Path("/x")}
    parent = _load(given)
    assert _load(env=settings.environment(parent)) == parent


def test_defaults_that_follow_other_settings_stay_unset_in_a_childs_environment() -> None:
    env = settings.environment(settings.Settings())
    assert "FAIRLEAD_API_SOCKET" not in env
    assert all(isinstance(value, str) for value in env.values())


def test_sockets_and_folders_follow_the_run_folder_unless_given() -> None:
    found = _load({"state.run": Path("/r")})
    assert (found.api_socket, found.kubelet_folder) == (Path("/r/api.sock"), Path("/r/device-plugins"))
    given = _load({"api.socket": Path("/a.sock"), "node.kubelet_folder": Path("/k")})
    assert (given.api_socket, given.kubelet_folder) == (Path("/a.sock"), Path("/k"))


def test_rows_can_be_set_anew_and_all_others_stay() -> None:
    before = settings.load(flags={"silicon.simulate": "h100x8"}, env={}, file=None)
    after = settings.override(before, {"node.kubelet_folder": Path("/var/lib/kubelet/device-plugins")})
    assert after.kubelet_folder == Path("/var/lib/kubelet/device-plugins")
    assert settings.override(after, {"node.kubelet_folder": None}) == before
    with pytest.raises(errors.Invalid, match=r"node\.device_id_strategy"):
        settings.override(before, {"node.device_id_strategy": "serial"})


@pytest.mark.parametrize("text", ["a = " + "9" * 5000, "a = " + "[" * 100_000, "#" * (2 << 20)])
def test_a_file_that_no_reader_can_take_is_refused(tmp_path: Path, text: str) -> None:
    path = tmp_path / "config.toml"
    path.write_text(text)
    with pytest.raises(errors.Invalid, match=r"config\.toml"):
        settings.load(flags={}, env={}, file=path)
