"""Declares the kinds that describe nodes beside the Node itself."""
