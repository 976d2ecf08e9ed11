"""stagetree beside other tools: the same trainings, evaluations and slots. `python -m benchmarks.peers` runs them."""
