"""Guides GPUs from silicon into tenants' containers; `docs/design/map.md` draws the rooms.

`Client` and `AsyncClient` are loaded when they are first asked for: every start of a container imports this package.
"""

__version__ = "0.1.0"

# What type checkers read stands in __init__.pyi: an import here, even one that never runs, would be one of the room's.
__all__ = ["AsyncClient", "AsyncContainer", "Client", "Container", "__version__"]

_LATE = {
    "AsyncClient": "fairlead.client.asynchronous",
    "AsyncContainer": "fairlead.client.asynchronous",
    "Client": "fairlead.client.client",
    "Container": "fairlead.client.container",
}


def __getattr__(name: str) -> object:
    """Load what programs import from here. Raises: AttributeError."""
    if name not in _LATE:
        message = f"module 'fairlead' has no attribute {name!r}"
        raise AttributeError(message)
    return getattr(__import__(_LATE[name], fromlist=(name,)), name)
