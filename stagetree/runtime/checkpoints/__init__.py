"""States and weights as files: the format, its layout, and memory for it."""
