"""The HTTP side: requests go in as commands, and `app.service` answers them.

Reading order: `access` (the caller, and what it may do), `services` (what a route may use), `writing` (the way a
command takes), `requests` and `errors` (what is refused, and how it is said), `streaming` (a study's events, as they
happen), `sharing` (what many ask for, worked out once), then `routes`.
"""
