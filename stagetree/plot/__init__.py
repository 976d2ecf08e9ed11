"""Charts of a study: by matplotlib or plotly, and the rung tree as SVG."""

from __future__ import annotations

from stagetree.plot.plots import Plots

__all__ = ["Plots"]
