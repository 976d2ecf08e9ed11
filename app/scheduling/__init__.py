"""What to run next, pure: costs from facts, the outstanding work from event to event, policies, placement, tuners."""
