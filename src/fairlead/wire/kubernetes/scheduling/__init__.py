"""Declares the objects that schedulers read beside pods and nodes, and the messages between schedulers."""
