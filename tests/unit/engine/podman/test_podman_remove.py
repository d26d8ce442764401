"""Removing a container that ends by itself at the same moment (4.3's words)."""

from __future__ import annotations

from pathlib import Path

import pytest

from fairlead import command, errors, settings
from fairlead.engine import port
from fairlead.engine.podman import cli, engine
from fairlead.engine.podman import host as podman_host

_ENDED = "cannot remove container 36 as it could not be stopped: container state improper: stopped"


class Scripted(cli.Podman):
    """A podman that refuses to remove with the given words, one after the other, then removes."""

    def __init__(self, *says: str) -> None:
        super().__init__(settings.Settings().engine)
        self.says, self.removals = list(says), 0

    async def run(
        self, *arguments: str, timeout_s: float = 1.0, stdin: int | None = None, folder: Path = Path("/")
    ) -> command.Result:
        assert arguments[0] == "rm"
        self.removals += 1
        if self.says:
            return command.Result(code=2, stdout=b"", stderr=f"Error: {self.says.pop(0)}\n".encode())
        return command.Result(code=0, stdout=b"", stderr=b"")

    async def host(self) -> podman_host.Host:
        info = port.EngineInfo(name="podman", version="4.3.1", runtime="runc", cdi_ceiling="0.5.0", cgroup_version=2)
        return podman_host.Host(
            info=info,
            conmon="/usr/bin/conmon",
            globals=(),
            ulimits=(),
            network="bridge",
            may_fall_back=False,
            pid_folder=Path("/nowhere"),
            bundle_folder=Path("/nowhere"),
        )


def made(podman: Scripted) -> engine.PodmanEngine:
    found = engine.PodmanEngine(settings.Settings().engine)
    found._podman = podman
    return found


async def test_a_container_that_ends_while_podman_ends_it_is_removed_at_the_second_try() -> None:
    podman = Scripted(_ENDED)
    await made(podman).remove("web")
    assert podman.removals == 2


@pytest.mark.parametrize(("says", "removals"), [((_ENDED, _ENDED), 2), (("container 36 has dependent containers",), 1)])
async def test_what_stands_in_the_way_still_is_said(says: tuple[str, ...], removals: int) -> None:
    podman = Scripted(*says)
    with pytest.raises(errors.Conflict):
        await made(podman).remove("web")
    assert podman.removals == removals
