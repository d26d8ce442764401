"""Parses and emits the configuration files of NVIDIA's node programs."""
