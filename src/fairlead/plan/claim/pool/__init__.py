"""Says which devices a node can use, in which order, and what claims have of them already."""
