"""Copies the state folder into one file while the service runs, and puts it back."""
