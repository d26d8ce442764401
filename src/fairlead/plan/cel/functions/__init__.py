"""Implements the functions that a selector may call, one module a family; `table.py` finds them by overload."""
