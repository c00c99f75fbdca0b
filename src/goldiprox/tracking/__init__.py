"""Curves for whoever watches a run: one protocol, TensorBoard, W&B, MLflow and trackio behind it."""

from goldiprox.tracking.backends import BACKENDS as BACKENDS
from goldiprox.tracking.backends import open_tracker as open_tracker
from goldiprox.tracking.backends import require as require
from goldiprox.tracking.protocol import Tracker as Tracker
from goldiprox.tracking.protocol import Trackers as Trackers
from goldiprox.tracking.protocol import curves as curves
from goldiprox.tracking.protocol import numbers as numbers
