"""Checks what is held on a machine: leases of GPUs, and what is held for what is gone."""
