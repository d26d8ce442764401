"""Looks at sandboxes on this node: whether gVisor and Kata are there, and what their containers were given."""
