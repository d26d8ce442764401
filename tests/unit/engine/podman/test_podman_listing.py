"""One container whose network namespace is gone does not take the others out of podman's listing."""

from __future__ import annotations

import asyncio
import json
from pathlib import Path
from typing import Any, cast

import pytest

from fairlead import command, errors
from fairlead.engine.podman import cli, listing

GOOD, BAD, WORSE = "a" * 64, "b" * 64, "c" * 64


class Podman:
    """Podman as it answers (4.3.1) where some containers' network namespaces are gone."""

    def __init__(self, folder: Path, broken: set[str]) -> None:
        self.bundle_folder = folder
        self.broken = broken
        everything = [GOOD, BAD, WORSE]
        (folder / "containers.json").write_text(json.dumps([{"id": one, "names": ["x"]} for one in everything]))

    async def host(self) -> Podman:
        return self

    async def run(self, *arguments: str) -> command.Result:
        if arguments[0] == "ps":
            asked = [one.removeprefix("--filter=id=") for one in arguments if one.startswith("--filter=id=")]
            shown = asked or [GOOD, BAD, WORSE]
            for one in shown:
                if one in self.broken:
                    path = f"/run/netns/{one[:4]}"
                    said = f'Error: joining network namespace of container {one}: unknown FS magic on "{path}": 1021994'
                    return _result(125, b"", said.encode())
            return _result(
                0, json.dumps([{"Id": one, "Names": [one[:1]], "State": "running"} for one in shown]).encode()
            )
        one = arguments[-1]
        seen: dict[str, Any] = {
            "Id": one,
            "Name": one[:1],
            "ImageName": "box",
            "State": {"Status": "running", "Pid": 7, "StartedAt": "2026-11-22T13:00:00.5Z"},
            "Config": {"Labels": {"mine": "yes" if one == BAD else "no"}},
        }
        return _result(0, json.dumps([seen]).encode())


def _result(code: int, out: bytes, err: bytes = b"") -> command.Result:
    return command.Result(code=code, stdout=out, stderr=err)


async def _names(podman: Podman, **labels: str) -> list[str]:
    return [row.names[0] for row in await listing.list_rows(cast("cli.Podman", podman), labels)]


@pytest.mark.parametrize("broken", [{BAD}, {BAD, WORSE}, {GOOD, BAD, WORSE}])
async def test_all_are_listed_whichever_are_broken(tmp_path: Path, broken: set[str]) -> None:
    assert sorted(await _names(Podman(tmp_path, broken))) == ["a", "b", "c"]


async def test_a_broken_container_of_somebody_else_is_not_ours(tmp_path: Path) -> None:
    assert "b" in await _names(Podman(tmp_path, {BAD, WORSE}), mine="yes")
    assert "c" not in await _names(Podman(tmp_path, {BAD, WORSE}), mine="yes")


async def test_a_broken_container_of_ours_still_has_its_process(tmp_path: Path) -> None:
    rows = await listing.list_rows(cast("cli.Podman", Podman(tmp_path, {BAD})), {})

    found = next(row for row in rows if row.id == BAD)
    assert (found.state, found.pid, found.started_at) == ("running", 7, 1795352400)


async def test_only_those_that_stay_broken_are_named(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    podman = Podman(tmp_path, {BAD, WORSE})

    async def pass_time(_s: float) -> None:
        podman.broken = {WORSE}

    monkeypatch.setattr(asyncio, "sleep", pass_time)

    assert await listing.find_broken(cast("cli.Podman", podman)) == ("c",)


async def test_any_other_failure_is_an_error(tmp_path: Path) -> None:
    class Failing(Podman):
        async def run(self, *arguments: str) -> command.Result:
            return _result(125, b"", b"Error: database is locked")

    with pytest.raises(errors.Unavailable, match="database is locked"):
        await _names(Failing(tmp_path, set()))
