"""Which trials a study trains: its tuner, where configurations come from, forecasts of curves, and replay. Pure."""
