"""One program for each tool, as a user who knows that tool would write it."""
