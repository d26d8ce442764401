"""Decides what becomes of claims on one machine, where Fairlead does the part of kube-controller-manager."""
