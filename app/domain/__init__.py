"""The language of the product, pure: what a plan is, what may happen to it, and what is refused.

Reading order: `terms` (ids, states, refusals), `schedule` (canonical pieces), `events` (what may happen), `search_plan`
(what has happened, folded), `commands` and `decide` (what is accepted), `stage_tree` (what is left to do).
Nothing here reads a clock, makes a random id or rolls a die: they arrive as arguments.
"""
