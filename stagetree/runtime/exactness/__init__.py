"""Comparing trainings of the same steps: states, and what trainers hold besides."""
