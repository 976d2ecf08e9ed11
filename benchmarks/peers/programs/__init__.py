"""One program for each tool, as somebody who knows that tool would write it."""
