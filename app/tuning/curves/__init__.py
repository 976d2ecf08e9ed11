"""Learning curves, pure: what the metric will be at later steps, from the evaluations so far and from ended trials.

`model` puts it together. `families` are the shapes, `quadrature` the posterior of a curve alone, `drift` what others
tell, `learning` what ended trials teach both, `scale` what a unit is, `posterior` the answers.
"""

from __future__ import annotations

from app.tuning.curves.curve import Bend, Curve
from app.tuning.curves.model import CurveModel
from app.tuning.curves.posterior import FirstStep, Posterior

__all__ = ["Bend", "Curve", "CurveModel", "FirstStep", "Posterior"]
