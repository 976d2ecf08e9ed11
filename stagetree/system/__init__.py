"""Everything that Linux has and other systems lack, one file a subject, each with a fallback.

The system is tried, and not known by its name. No other module reads /proc or /sys, or calls
prctl, inotify, memfd, pidfd and the like. A test takes them away.
"""
