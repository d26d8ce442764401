"""Decides what containers get beside their GPUs."""
