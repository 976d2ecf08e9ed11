"""The scheduler: reads what happened and decides what follows. It keeps no state that it could not compute again.

`tick` is one look, made of small parts: `reaper` ends chains whose lease has expired, `FrontierCache` holds the
outstanding work of each plan, `tuning` asks the tuners, `assignment` gives work to slots, and `sharing` tells running
chains about new requests. Each part uses the `ports`, which also send chains, so no part knows Celery. The work of a
plan or a study is done inside a `fence`, so that an error affects no other.

A tick may run twice at once without harm: its decisions go through `transact`, and a slot is taken in the same
transaction. A recorded chain that never reached the broker is sent again: the log is the outbox.

Runs on: the process that runs a worker's tasks, if it is the scheduler's.
"""
