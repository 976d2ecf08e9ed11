"""The whole service on one machine: Redis, the API, the scheduler and one worker a slot, as children of this process.

These are a cluster's processes with a private Redis socket, SQLite and a folder. They end with this process, however it
ends. Their files are private to this user, and nothing in the working folder is imported by accident.
"""
