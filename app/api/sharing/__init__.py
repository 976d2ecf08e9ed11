"""What many ask for at the same time, worked out once for all of them."""
