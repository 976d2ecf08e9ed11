"""Studies in virtual time: the real scheduler and the real rows, in memory, with virtual slots that train nothing.

`simulator` is the clock and the queue of what is due; `slots` plays the workers, and whatever goes wrong with them;
`preview` and `what_if` are what it is good for beside tests.
"""
