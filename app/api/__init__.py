"""The HTTP side: studies go in as commands, and what has become of them is read from the folded plans.

Reading order: `views` (what is shown, pure), `services` (what a route may use), `reading` (what reading routes answer),
`commands` (the way a command takes), `requests` and `errors` (what is refused, and how it is said), `streaming` (a
study's events, read on and on), `history` (what was so before), `files` (weights, logs and the page), `sharing` (what
many ask for, worked out once), then `routes`. Nothing here calls a worker: after a write the scheduler is woken, and
finds the rest in the log.
"""
