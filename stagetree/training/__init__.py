"""The parts of `TorchTrainer`: the order of the data, reading it, and the rates of parameter groups."""
