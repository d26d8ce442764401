"""The verb `dra`."""
