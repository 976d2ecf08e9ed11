"""A program that is called once for each stage: `train.py` beside this file, which knows nothing of stagetree.

stagetree run examples/program/study.yaml
"""

from stagetree import CommandTrainer


class Program(CommandTrainer):
    name = "program"
    command = (
        "python train.py --from {from} --to {to} --start {start} --stop {stop} --schedule {schedule}"
        " --metrics {metrics} --evaluate {evaluate} --seed {seed} --device {device} --width {width}"
    )
    defaults = {"width": 32}
    checkpoint = "checkpoint.pt"
