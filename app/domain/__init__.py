"""The domain model, pure: the search plan, its events, and the commands that change it.

Reading order: `terms` (ids, states, refusals), `schedule` (canonical pieces), `events`, `search_plan` (the folded
events), `commands` and `decide` (accepts or refuses commands), `stage_tree` (the outstanding work).
Clock readings and random ids are arguments.
"""
