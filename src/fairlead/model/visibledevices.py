"""Translates answers by environment or mounts: the words that a device plugin writes and a runtime reads.

Source: NVIDIA container toolkit documentation, "Environment variables" and "Volume mounts".
"""

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
VOLUME_ROOT = "/var/run/nvidia-container-devices/"
"""A file mounted below names a device by its path."""
