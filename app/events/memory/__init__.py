"""All that the service remembers, in memory: for tests, and for simulations in virtual time.

`chains` has the tables, whose rows come back when a transaction fails; `rows` has the view of a transaction, and `log`
stands behind the same doors as its like on a database. Contract tests hold both to one meaning.
"""

from app.events.memory.log import MemoryLog, MemoryRecords

__all__ = ["MemoryLog", "MemoryRecords"]
