"""npattn: linear and sparse attention from scratch in NumPy, exact and explained."""
from .delta import gated_delta_rule
