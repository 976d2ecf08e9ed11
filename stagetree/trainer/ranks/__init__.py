"""One trial on several devices: its group of ranks, their parts of a batch, and sums with equal bits on any number."""
