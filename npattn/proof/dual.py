"""Dual numbers: a value and its derivative, carried together through unchanged code.

    (x, x') + (y, y') = (x + y, x' + y')            (x, x') (y, y') = (x y, x' y + x y')
    (x, x') / (y, y') = (x / y, (x' - (x / y) y') / y)         e^(x, x') = (e^x, x' e^x)

With fractions as parts no step rounds: the derivative of a rational form is exact, and so is the comparison with a gradient derived by
hand.  A gate is a Log with a fraction as its derivative; its exponential is a fraction with a fraction.  Clifford 1871; Wengert 1964.
"""
from fractions import Fraction

import numpy as np

from .exact import elementwise


class Dual:
    """A value and a derivative, each a Fraction, an integer, a float, a complex number; the value may also be a Log.

    Compares by value alone, so that masks, maxima and selections are those of the values.
    """
    __slots__ = ("value", "derivative")

    def __init__(self, value, derivative=0):
        self.value, self.derivative = value, derivative

    def __add__(self, other):
        return combine(self, other, lambda x, dx, y, dy: (x + y, dx + dy))

    def __sub__(self, other):
        return combine(self, other, lambda x, dx, y, dy: (x - y, dx - dy))

    def __rsub__(self, other):
        return combine(self, other, lambda x, dx, y, dy: (y - x, dy - dx))

    def __mul__(self, other):
        return combine(self, other, lambda x, dx, y, dy: (x * y, dx * y + x * dy if dy else dx * y))      # a Log has no x * 0

    def __truediv__(self, other):
        return combine(self, other, lambda x, dx, y, dy: quotient(x, dx, y, dy))

    def __rtruediv__(self, other):
        return combine(self, other, lambda x, dx, y, dy: quotient(y, dy, x, dx))

    def __pow__(self, n):
        if not isinstance(n, (int, np.integer)):
            return NotImplemented
        if n < 0:
            return 1 / self ** -n                                    # of an integer too a fraction
        return Dual(self.value ** n, n * self.value ** (n - 1) * self.derivative if n else 0 * self.derivative)

    def __neg__(self):
        return Dual(-self.value, -self.derivative)

    def __pos__(self):
        return self

    __radd__, __rmul__ = __add__, __mul__

    def exp(self):
        """What np.exp calls, element by element.  TypeError for a fraction: its exponential is none; see Log."""
        if isinstance(self.value, (int, Fraction)):
            raise TypeError(f"exp of {self.value} is no fraction; for an exact gate use log(factor)")
        y = self.value.exp() if hasattr(self.value, "exp") else np.exp(self.value)
        return Dual(y, self.derivative * y)

    def __eq__(self, other): return compare(self, other, lambda x, y: x == y)
    def __ne__(self, other): return compare(self, other, lambda x, y: x != y)
    def __lt__(self, other): return compare(self, other, lambda x, y: x < y)
    def __le__(self, other): return compare(self, other, lambda x, y: x <= y)
    def __gt__(self, other): return compare(self, other, lambda x, y: x > y)
    def __ge__(self, other): return compare(self, other, lambda x, y: x >= y)

    __hash__ = None

    def __bool__(self):
        return bool(self.value)

    def __repr__(self):
        return f"{self.value} + {self.derivative} d"


def quotient(x, dx, y, dy):
    if isinstance(x, int) and isinstance(y, int):
        x = Fraction(x)                                              # the quotient of two integers is a fraction, not a float
    return x / y, (dx - x / y * dy) / y


def combine(a, b, formula):
    """A Dual from the values and derivatives of a and b.  An array is NumPy's business, which comes back with its elements."""
    if isinstance(b, np.ndarray):
        return NotImplemented
    return Dual(*formula(a.value, a.derivative, value(b), derivative(b)))


def compare(a, b, holds):
    return NotImplemented if isinstance(b, np.ndarray) else holds(a.value, value(b))


def value(x):
    return x.value if isinstance(x, Dual) else x


def derivative(x):
    return x.derivative if isinstance(x, Dual) else 0


def directional_derivative(f, arrays, directions):
    """The derivative of f at `arrays` along `directions`: an object array of the shape of f's result.

    A direction has the shape of its array; None is no direction, and leaves the array as it is.
    """
    make = np.frompyfunc(Dual, 2, 1)
    y = f(*(x if dx is None else np.asarray(make(x, dx), dtype=object) for x, dx in zip(arrays, directions)))
    return elementwise(derivative, y)


def dual_gradient(f, *arrays):
    """The gradient of a scalar f with respect to every array: object arrays of their shapes, one evaluation for each entry.

    >>> from npattn.proof import fractions
    >>> dual_gradient(lambda x: (x * x).sum(), fractions([3, "1/2"]))[0].tolist()
    [Fraction(6, 1), Fraction(1, 1)]
    """
    gradients = []
    for n, x in enumerate(arrays):
        gradient = np.empty(x.shape, dtype=object)
        for i in np.ndindex(x.shape):
            unit = np.full(x.shape, Fraction(0) if x.dtype == object else 0, dtype=object)
            unit[i] = 1
            gradient[i] = directional_derivative(f, arrays, [unit if m == n else None for m in range(len(arrays))])[()]
        gradients.append(gradient)
    return tuple(gradients)
