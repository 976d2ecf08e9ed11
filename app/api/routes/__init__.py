"""The routes, by what they are about. Each parses, calls, and answers; no rule lives here."""
