"""HTTP: requests become commands and queries of `app.service`.

Reading order: `access` (callers and their rights), `services` (the parts of a route), `strict` (the reading of requests
and the writing of commands), `bodies`, `errors`, `streaming` (live events of a study), then `routes`.
"""
