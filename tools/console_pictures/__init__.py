"""Takes, keeps, compares and shows pictures of every page of the console: `python -m tools.console_pictures`."""
