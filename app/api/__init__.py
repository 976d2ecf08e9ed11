"""The HTTP side: studies go in as commands, and what has become of them is read from the folded plans.

Reading order: `views` (what is shown, pure), `services` (what a route may use), `writing` (the way a command takes),
`errors` and `bodies` (what is refused, and how it is said), `feed` (a study's events, read on and on), then `routes`.
Nothing here calls a worker: after a write the scheduler is woken, and finds the rest in the log.
"""
