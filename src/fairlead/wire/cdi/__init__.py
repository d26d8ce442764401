"""Adapts the CDI library: its errors in Fairlead's classes, and stamps of the specs that Fairlead writes."""
