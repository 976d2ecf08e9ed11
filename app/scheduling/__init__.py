"""Scheduling, pure: cost estimates, outstanding work, shares of slots, and placement."""
