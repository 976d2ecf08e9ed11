"""What did happen: the append-only log and the rows that stand beside it. SQL lives here and nowhere else.

`app.domain.events` says what may happen; this package stores what did. Reading order: `codec` (event to JSON and back),
`database` and `tables`, `log` (positions without gaps, in commit order), `plans` (folded, in memory), `rows` (who may
write for a chain; slots; how studies stand), `records` (both behind one door, and the only way to write), `memory`
(all of it without a database, for tests and simulations).
"""
