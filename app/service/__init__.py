"""What the service answers and does, apart from HTTP: routes call it, and the command line on a store without a server.

Reading order: `views` (what is shown, pure), `services` (what all here may use), `reading`, `drawing` and `replaying`
(answers), `plan_history` (what was so before), `feed` (a study's events, read on), `commands` (before and after the
decision on a command), `files` (weights, logs and the page), `report`. Nothing here calls a worker: after a write the
scheduler is woken, and finds the rest in the log.
"""
