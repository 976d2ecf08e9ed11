"""What is asked to be done: the way that every command takes, and those that do more than write an event."""
