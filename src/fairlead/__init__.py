"""GPUs from silicon into tenants' containers. `DESIGN.md` draws the rooms; `pyproject.toml` enforces them."""

__version__ = "0.1.0"
