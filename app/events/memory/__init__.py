"""The event log and the rows in memory, for tests and for simulations in virtual time.

`chains` has the tables, which are rolled back when a transaction fails; `rows` has the view of a transaction, and
`log` implements the same interfaces as the log in a database. Contract tests run against both.
"""

from app.events.memory.log import MemoryLog, MemoryRecords

__all__ = ["MemoryLog", "MemoryRecords"]
