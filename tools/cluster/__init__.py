"""A real Kubernetes on this machine, for tests and for trying things: built from pinned modules, gone without a trace.

`build` makes the programs, `machine` the namespaces they run in, `certificate`, `component` and `image` what they are
given, `home` composes them into a cluster with a life of its own, `api` talks to its API server.
"""
