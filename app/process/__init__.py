"""What every process of the service needs: logs, garbage collection, limits, and a sandbox for computations."""
