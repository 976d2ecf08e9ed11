"""What people are shown: pure functions from a folded plan, or from what happened when, to JSON."""
