"""Checks what is promised for later: reservations, and workloads that controllers keep."""
