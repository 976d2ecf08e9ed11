"""Queries and commands of a store, apart from HTTP. The API's routes call them, and so does the command line.

Reading order: `services` (the shared parts), `views` (pure functions to answers), `queries` and `chart_data`,
`plan_history`, `submission` and `study_changes`, `files`, `html_report`. Nothing here calls a worker: a write wakes the
scheduler, which reads the log.
"""
