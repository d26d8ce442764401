"""Checks every layer of Fairlead on a machine with a GPU (`tools/gpu/check`), and packs the check for one (`pack`).

`parts` has one module a layer. Each part runs as a process of its own (`runner`), writes down each comparison as it is
made (`outcome`), and is ended after its limit; the others go on. `recording` keeps what the driver answered, so that
simulated silicon can be held to it later.
"""
