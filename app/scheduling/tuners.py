"""The former place of `app.tuning.tuners`, for tuner files of users.

The digest of such a file is on record in each study that it tunes, so its import cannot be edited while a study runs.
"""

from __future__ import annotations

from app.tuning.tuners import *  # noqa: F403
