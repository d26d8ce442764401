"""Serves the routes of named volumes and what they answer."""
