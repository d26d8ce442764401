"""Composes what the service of one machine has beside its agent: each module one part."""
