"""stub."""
def estimate(root, release): return None
