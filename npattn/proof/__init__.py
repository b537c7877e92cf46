"""What shows that the mechanisms are right: exact numbers, a tape, dual numbers, the complex step.

Nothing in core or the mechanisms imports this.
"""
from .differences import central_differences, complex_step
from .dual import Dual, directional_derivative, dual_gradient
from .exact import Log, fractions, log, random_factors, random_fractions, show, table, text
from .gradients import PROOFS, check_gradients, check_mechanism
from .tape import SUPPORTED, grad, vjp
