"""What shows that the mechanisms are right: exact numbers, a tape, dual numbers, the complex step.  Nothing in core or the mechanisms imports this."""
from .dual import Dual, directional_derivative, dual_gradient
from .exact import Log, fractions, log, random_factors, random_fractions, show, table, text
from .tape import SUPPORTED, grad, vjp
