"""What to run next, pure: costs from facts, outstanding work from event to event, shares of slots, placement."""
