"""What was: the plan after each event, and what happened when."""
