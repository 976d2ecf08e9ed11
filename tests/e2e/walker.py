"""A trainer that is a program: `walk.py`, which starts in a moment."""

from stagetree import CommandTrainer


class Walk(CommandTrainer):
    name = "walk"
    command = "python -S walk.py {from} {to} {start} {stop} {schedule} {metrics} {evaluate} {seed} {scale} {seconds}"
    defaults = {"scale": 1.0, "seconds": 0.0}
