"""Orders the pods that wait, and finds out which of them are worth another look."""
