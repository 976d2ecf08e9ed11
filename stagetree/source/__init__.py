"""The source of a trainer: its files and their version, and a notebook's cells as a folder that a worker can run."""
