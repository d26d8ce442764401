"""Defines the variable and the folder of mounts by which a device plugin names devices to a runtime.

Source: NVIDIA container toolkit documentation, "Environment variables" and "Volume mounts".
"""

VARIABLE = "NVIDIA_VISIBLE_DEVICES"
VOLUME_ROOT = "/var/run/nvidia-container-devices/"
"""A file mounted below names a device by its path."""
