"""Predicts learning curves: the metric at later steps, from a trial's evaluations and from ended trials.

Start with `model`. `curve` has curves, their scale and the shapes, `quadrature` the posterior of a single curve,
`drift` the predictions from other curves, `learning` what ended trials teach, `prediction` the answers.
"""

from __future__ import annotations

from app.search.curves.curve import Bend, Curve
from app.search.curves.model import CurveModel
from app.search.curves.prediction import FirstStep, Posterior

__all__ = ["Bend", "Curve", "CurveModel", "FirstStep", "Posterior"]
