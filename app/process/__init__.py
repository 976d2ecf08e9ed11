"""What processes of the service need: logs, garbage collection, limits, a folder's lock, a sandbox for computations."""
