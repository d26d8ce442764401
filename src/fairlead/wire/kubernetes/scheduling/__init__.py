"""Declares what schedulers read beside pods and nodes, and say to each other."""
