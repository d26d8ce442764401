"""Reads an expression: tokens, nodes, and the macros that become other nodes."""
