"""Guides GPUs from silicon into tenants' containers; `docs/design/map.md` draws the rooms."""

__version__ = "0.1.0"
