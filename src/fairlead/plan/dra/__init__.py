"""Decides what DRA drivers and schedulers learn of GPUs."""
