"""A slot: holds leases, sends heartbeats, records facts, uploads checkpoints, and drives the trainer's process.

Read `execution` first (what comes next in a chain), then `training` (does it), `group` (trains), and `slot`.

Runs on: the process that runs a worker's tasks, if it is a slot's.
"""
