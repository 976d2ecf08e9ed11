"""The routes by subject. Each parses a request, calls `app.service`, and answers; rules are elsewhere."""
