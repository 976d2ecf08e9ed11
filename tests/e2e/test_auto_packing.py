"""A study that leaves the width of its packs to be chosen, on real processes."""

from __future__ import annotations

import pytest
from stacks import Service
from toys import switch, trials


@pytest.mark.slow
def test_a_width_is_measured_and_chosen_before_anything_is_trained(stack: Service) -> None:
    hps = [{"lr": switch(0.1, 0.2 / (1 + number), 2), "bs": 4} for number in range(6)]
    how = {"trainer": "packable", "metric": "val_loss", "mode": "min", "packing": "auto"}
    done = stack.run(trials("chosen", *((hp, 6) for hp in hps), **how))
    assert done["state"] == "completed" and done["steps"]["executed"] == done["steps"]["unique"]
    types = [event["type"] for event in stack.client.events(done["study"])]
    assert types.count("PackingChosen") == 1
    assert types.index("ChainAssigned") < types.index("PackingProfiled") < types.index("PackingChosen")
    assert types.index("PackingChosen") < types.index("StageCompleted")
    assert stack.client.replay(done["study"])["identical"]
    packing = stack.client.study(done["study"])["packing"]
    assert packing["chosen"].startswith(("no packs were", f"packs of {packing['width']} were"))
    again = trials("chosen", *((hp, 6) for hp in hps), **how, seed=1)
    found = stack.client.preview(again, slots=2)
    assert found["packing"] == {"width": packing["width"], "device": "the CPU"}
