"""Runs on: the process that runs a worker's tasks, where that is the scheduler's.

The scheduler: what happened, and what follows from it. It remembers nothing that it could not work out again.

`tick` is one look, made of small parts: `reaper` reads how things stand and ends the chains whose lease has run out,
`frontiers` keeps the outstanding work of each plan, `tuning` asks the tuners, `assignment` gives work to slots, and
`sharing` tells running chains what is new. Each is given its `ports`, which send chains, too: no part knows of Celery.
The work of a plan or a study is done behind a `fence`, so that an error in it concerns no other.

A tick may run twice at once without harm: what it decides goes through `transact`, and a slot is taken in the same
transaction. What was recorded and never reached the broker is sent again: the log is the outbox.
"""
