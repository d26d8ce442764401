"""Keeps what decisions read: the pods and nodes of the store, what is assumed beside them, and who refused what."""
