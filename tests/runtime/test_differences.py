"""What of all that differs between two trainers may be the cause of a difference, and what only follows from it."""

from __future__ import annotations

import torch

from stagetree.runtime.exactness.differences import causes, leaves

STATE = leaves({"trainer": {"net": {"0.weight": torch.zeros(1)}, "count": 1, "opt": {"param_groups": [{"lr": 0.1}]}}})


def test_values_in_the_state_are_no_cause() -> None:
    """The message named `where`, which the script saves: its number had only followed from the fault."""
    names = ["self.count", "count (a global of train.py)", "self.opt.param_groups", "self.net._modules", "self.sched"]
    assert causes(names, STATE) == ["self.sched"]


def test_attributes_of_objects_in_the_state_may_be_causes() -> None:
    names = [
        "self.average._parameters",
        "self.opt.updates",
        "opt.slow (a variable of main())",
        "T.count_late (of the class)",
    ]
    assert causes(names, STATE) == names
