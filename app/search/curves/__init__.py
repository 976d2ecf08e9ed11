"""Learning curves, pure: what the metric will be at later steps, from the evaluations so far and from ended trials.

`model` puts it together. `curve` is a curve and its scale, `families` are the shapes, `quadrature` is the posterior of
a curve alone, `drift` what others tell, `learning` what ended trials teach both, `prediction` the answers.
"""

from __future__ import annotations

from app.search.curves.curve import Bend, Curve
from app.search.curves.model import CurveModel
from app.search.curves.prediction import FirstStep, Posterior

__all__ = ["Bend", "Curve", "CurveModel", "FirstStep", "Posterior"]
