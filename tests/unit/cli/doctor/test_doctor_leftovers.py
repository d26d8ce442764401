"""What doctor says of things that are held for what is gone: each by name, with the command that gives it back."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path

import pytest

from fairlead import settings
from fairlead.cli.doctor.held import leftovers
from fairlead.engine import machine as engines
from fairlead.engine.fake import engine
from fairlead.node.leftovers import KINDS, Leftover
from fairlead.store.sqlite import store as sqlite
from fairlead.wire.kubernetes import core, meta


def _one(kind: str, what: str = "/s/pods/u/volumes/v") -> Leftover:
    return Leftover(kind=kind, what=what, fix=f"`umount {what}`")


def test_nothing_is_said_where_nothing_was_looked_at_and_one_good_word_where_nothing_is_left() -> None:
    assert list(leftovers.check(leftovers.Facts())) == []
    (found,) = leftovers.check(leftovers.Facts(is_read=True))
    assert (found.check, found.level) == ("leftovers", "ok")


def test_each_kind_is_a_warning_with_its_name_what_it_costs_and_its_command() -> None:
    found = list(leftovers.check(leftovers.Facts(found=tuple(map(_one, KINDS)), is_read=True, is_served=True)))
    assert [one.level for one in found] == ["warn"] * len(KINDS)
    assert all(one.why and one.fix == "`umount /s/pods/u/volumes/v`" and "/s/pods/u" in one.what for one in found)


def test_where_no_service_runs_its_start_is_the_first_step() -> None:
    (found,) = leftovers.check(leftovers.Facts(found=(_one("mount"),), is_read=True))
    assert found.fix.startswith("`fairlead up`")


def test_of_many_ten_are_named_and_the_others_counted() -> None:
    many = tuple(_one("file", f"/s/.x.{number:08x}") for number in range(13))
    *named, last = leftovers.check(leftovers.Facts(found=many, is_read=True))
    assert (len(named), last.what) == (10, "3 more of the kind file are left of what is gone")


def test_what_cannot_be_known_is_said_to_be_unchecked() -> None:
    (found,) = leftovers.check(leftovers.Facts(problem="podman does not answer", is_read=True))
    assert (found.level, "podman does not answer" in found.what) == ("skip", True)


@pytest.mark.skipif(os.geteuid() != 0, reason="root alone may see all of it")
@pytest.mark.parametrize("is_served", [False, True])
async def test_who_may_hold_something_is_read_beside_the_service_that_writes_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, *, is_served: bool
) -> None:
    monkeypatch.setattr(engines, "open_engine", lambda _: engine.FakeEngine())
    monkeypatch.setattr(leftovers, "_AGAIN_S", 0.0)
    plain = settings.Settings()
    config = dataclasses.replace(plain, state=dataclasses.replace(plain.state, folder=tmp_path, run=tmp_path / "run"))
    with sqlite.SQLiteStore(tmp_path / "state.db") as store:
        pod = await store.create(core.Pod(metadata=meta.ObjectMeta(name="train", namespace="default")))
        for name in (pod.metadata.uid, "gone"):
            (tmp_path / "pods" / name).mkdir(parents=True)
        seen = await leftovers.collect(config, is_served=is_served)
    assert (seen.problem, seen.is_read, seen.is_served) == ("", True, is_served)
    assert str(tmp_path / "pods/gone") in [one.what for one in seen.found]
    assert pod.metadata.uid not in str(seen.found)


async def test_a_machine_on_which_no_service_ever_ran_has_nothing_to_say(tmp_path: Path) -> None:
    plain = settings.Settings()
    config = dataclasses.replace(plain, state=dataclasses.replace(plain.state, folder=tmp_path))
    assert not (await leftovers.collect(config, is_served=False)).is_read
