"""Says what sandboxes need: gVisor and Kata, on one machine and on a cluster."""
