"""Views: pure functions from a folded plan, or from its history, to answers."""
