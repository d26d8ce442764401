"""Reads, checks and evaluates device selectors in CEL as Kubernetes does: `compile.compile_selector` is the door."""
