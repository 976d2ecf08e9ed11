"""A program with flags like torchtitan's, under torchrun: `titan.py` beside this file, which knows no stagetree.

stagetree run examples/titan/study.yaml
"""

from stagetree import CommandTrainer


class Titan(CommandTrainer):
    name = "titan"
    command = (
        "torchrun --nproc-per-node {ranks} titan.py --training.seed {seed} --training.steps {stop}"
        " --model.width {width} --checkpoint.initial_load_path={from} --checkpoint.folder {to} --begin {start}"
        " --schedule {schedule} --metrics {metrics} --evaluate={evaluate}"
    )
    defaults = {"width": 32, "ranks": 2}
