"""Looks at the host: device nodes (`node`), and who could change a file (`trust`)."""
