"""GPUs from silicon into tenants' containers. `docs/design/map.md` draws the rooms; `pyproject.toml` enforces them."""

__version__ = "0.1.0"
