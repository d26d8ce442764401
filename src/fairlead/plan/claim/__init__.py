"""Decides on claims for devices as the API server and the scheduler of Kubernetes do."""
