"""Routes of named volumes and what they answer."""
