"""Searches the devices of a node for those that answer the claims of a pod."""
