"""Kinds that describe nodes beside the Node itself."""
