"""Compiles a checked expression into functions of a frame, and says what running them costs."""
