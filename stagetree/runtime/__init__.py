"""What runs in the process that trains: it knows trainers, torch and numpy, and nothing of the service.

A user's own modules share this process, so it must not hold any that they may have too: no `app`, Celery or SQLAlchemy.
"""
