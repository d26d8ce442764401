"""Keeps pods with NVLink from nodes whose Fabric Manager is of another version than the driver in their machine."""
