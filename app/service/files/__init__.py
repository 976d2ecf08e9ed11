"""What is read from files: weights, what trainers logged, the page."""
