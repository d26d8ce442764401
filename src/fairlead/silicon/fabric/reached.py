"""Opens the way to a Fabric Manager that the settings name: through the agent of its Service VM, or by its library."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

from fairlead import errors
from fairlead.frozen import frozen
from fairlead.model.fabric import AGENT_PORT
from fairlead.settings.groups import FabricSettings
from fairlead.silicon.fabric import address, agentclient, nvfm, servicevm
from fairlead.silicon.fabric.connection import Connection
from fairlead.silicon.fabric.port import FabricManager

T = TypeVar("T")
_LONGEST_S = 3600


@frozen
class Reached:
    """A Manager, and how it is reached; nothing is connected before the first call."""

    name: str
    """As a person writes its address."""
    is_agent: bool
    connection: Connection
    timeout_s: float

    def call(self, call: Callable[[FabricManager], T]) -> T:
        """Wait for one call. Raises: Unavailable: there is no answer in time; what the call raises."""
        return self.connection.run_here(call, timeout_s=self.timeout_s)


def reach(settings: FabricSettings, secret: Path) -> Reached:
    """Return the Manager of the settings. Args: secret: the agent's. Raises: Invalid; Unavailable: no secret."""
    if agent := agent_of(settings):
        return through_agent(settings, agent, secret)
    return by_library(settings, settings.manager, settings.library)


def agent_of(settings: FabricSettings) -> str:
    """Return where the settings have the agent; empty: the Manager is reached by its library."""
    return settings.agent or (f"nvswitch:{AGENT_PORT}" if settings.vm_image else "")


def through_agent(settings: FabricSettings, agent: str, secret: Path) -> Reached:
    """Return the Manager behind an agent. Raises: Invalid: no address; Unavailable: no secret."""
    port, timeout_s = servicevm.port_of(agent), _checked(settings.timeout_s)
    where = None if port is not None else address.parse_agent(agent)
    shared = agentclient.read_secret(secret)

    def connect() -> FabricManager:
        # Such a machine has another context id each time it starts.
        there = where or address.parse(f"{servicevm.find_cid(Path('/'))}:{port}")
        return agentclient.AgentClient(there, shared, timeout_s=timeout_s)

    made = Connection(agent, connect)
    return Reached(name=agent, is_agent=True, connection=made, timeout_s=timeout_s)


def by_library(settings: FabricSettings, manager: str, library: str) -> Reached:
    """Return the Manager of an address. Raises: Invalid: it is none."""
    where, timeout_s = address.parse(manager), _checked(settings.timeout_s)
    made = Connection(str(where), lambda: nvfm.NVFM(library, where, timeout_s=timeout_s))
    return Reached(name=str(where), is_agent=False, connection=made, timeout_s=timeout_s)


def _checked(timeout_s: float) -> float:
    if not 0 < timeout_s <= _LONGEST_S:
        message = f"fabric.timeout_s is {timeout_s:g}: more than 0 and at most {_LONGEST_S}"
        raise errors.Invalid(message, reason="SettingInvalid")
    return timeout_s
