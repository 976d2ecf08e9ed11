"""All that the service remembers, in memory: for tests, and for simulations in virtual time.

`tables` holds rows and takes back what a transaction that failed has changed; `rows` is what a transaction sees; `log`
and `records` stand behind the same doors as their likes on a database. Contract tests hold both to one meaning.
"""

from app.events.memory.log import MemoryLog, MemoryRecords

__all__ = ["MemoryLog", "MemoryRecords"]
