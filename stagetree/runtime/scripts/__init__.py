"""Trainers that are scripts with a loop of their own, in this process or launched as several ranks."""
