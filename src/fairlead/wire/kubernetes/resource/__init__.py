"""Declares the objects of Dynamic Resource Allocation, group resource.k8s.io, as version v1 writes them."""
