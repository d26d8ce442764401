"""The constraint of claims: nodes on which the devices that a pod claims can be allocated."""
