"""Studies in virtual time: the real scheduler and the real rows, in memory, with virtual slots that train nothing.

`simulator` has the clock and the event queue; `slots` play the workers and their faults; `preview`, `forecast` and
`what_if` use them, as tests do.
"""
