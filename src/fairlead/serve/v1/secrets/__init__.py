"""Serves the routes of Secrets and what they answer: names of keys and digests, never a value."""
