"""What a pod may say of its network: ports of the node, names, and who resolves them."""
