"""Runs on: the process that runs a worker's tasks, where that is a slot's.

The process of one slot: it holds leases, heartbeat, facts and uploads, and drives the process that trains.

Begin with `execution`, which says what is next in a chain, then `training`, which does it, `group`, which trains,
and `slot`.
"""
