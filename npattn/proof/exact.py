"""Exact numbers for NumPy arrays: fractions, and the logarithm of a fraction as a number of its own.

    fractions([[1, "1/2"], [0, -3]])        an object array of Fraction
    log(["1/2", 1, 0])                      an object array of Log: ln 1/2, 0, -inf
    np.exp(log(["1/2", 1, 0]))              1/2, 1, 0: no rounding, since NumPy calls each element's `exp`
    show(x)                                 prints 1/2, not Fraction(1, 2)

A form that never converts types computes with these as with floats.  A gate g <= 0 is the logarithm of a factor in
[0, 1], and only e^g is ever needed: keeping the factor instead of its logarithm makes gated forms exact as well.
"""
import math
from fractions import Fraction

import numpy as np


class Log:
    """ln x for a fraction x >= 0, kept as x; ln 0 is -inf.

    A sum of logarithms is the logarithm of a product, an integer multiple that of a power.  Compares with other
    logarithms, integers and infinities, exactly: ln x > n is x > e^n.  Raises ValueError for x < 0, and
    ZeroDivisionError where -inf has no answer (-ln 0, ln 0 - ln 0, 0 ln 0).
    """
    __slots__ = ("factor",)

    def __init__(self, factor):
        self.factor = as_fraction(factor)
        if self.factor < 0:
            raise ValueError(f"Log: the logarithm of {self.factor} is not real")

    def exp(self):
        return self.factor

    def __add__(self, other):
        if isinstance(other, Log):
            return Log(self.factor * other.factor)
        return self if is_integer(other) and other == 0 else NotImplemented      # Python's sum() starts at 0

    __radd__ = __add__

    def __neg__(self):
        return self * -1

    def __sub__(self, other):
        return self + -other if isinstance(other, Log) or is_integer(other) else NotImplemented

    def __rsub__(self, other):
        return -self + other

    def __mul__(self, n):
        if not is_integer(n):
            return NotImplemented
        if n <= 0 and self.factor == 0:
            raise ZeroDivisionError(f"Log: {n} times ln 0 is not a logarithm")
        return Log(self.factor ** int(n))

    __rmul__ = __mul__

    def __eq__(self, other): return ordered(self, other, {0})
    def __ne__(self, other): return ordered(self, other, {-1, 1, None})
    def __lt__(self, other): return ordered(self, other, {-1})
    def __le__(self, other): return ordered(self, other, {-1, 0})
    def __gt__(self, other): return ordered(self, other, {1})
    def __ge__(self, other): return ordered(self, other, {0, 1})

    __hash__ = None

    def __bool__(self):
        return self.factor != 1

    def __float__(self):
        x = self.factor
        return math.log(x.numerator) - math.log(x.denominator) if x else -math.inf

    def __repr__(self):
        return f"ln {self.factor}" if self.factor not in (0, 1) else "0" if self.factor else "-inf"


def ordered(a, b, signs):
    """Is the sign of a - b among `signs`, for a Log a and a Log, an integer, an infinity or NaN b?  The sign of NaN is None."""
    if isinstance(b, Log):
        sign = (a.factor > b.factor) - (a.factor < b.factor)
    elif isinstance(b, (float, np.floating)) and not math.isfinite(b):
        sign = None if math.isnan(b) else -1 if b > 0 else int(a.factor > 0)
    elif is_integer(b):
        sign = compare_with_power_of_e(a.factor, int(b))
    else:
        return NotImplemented
    return sign in signs


def compare_with_power_of_e(x, n):
    """The sign of x - e^n, from bounds on e that tighten until they decide: e^n is irrational unless n = 0."""
    if n == 0 or x <= 0:
        return (x > 1) - (x < 1)
    low, term, m = Fraction(2), Fraction(1), 1                       # low = 1/0! + ... + 1/m!, term = 1/m!
    while True:
        bounds = low ** n, (low + term / m) ** n                     # e < low + 1 / (m! m)
        if not min(bounds) <= x <= max(bounds):
            return 1 if x > max(bounds) else -1
        m += 1
        term /= m
        low += term


def is_integer(x):
    return isinstance(x, (int, np.integer)) or isinstance(x, (float, np.floating, Fraction)) and x == x // 1


def as_fraction(x):
    """A Fraction from an integer, a Fraction or a string such as "1/2"; TypeError for a float, which seldom is what it looks like."""
    if isinstance(x, (str, Fraction)):
        return Fraction(x)
    if isinstance(x, (int, np.integer)):
        return Fraction(int(x))                                      # int: a NumPy integer would overflow
    raise TypeError(f'fractions: {x!r} is a {type(x).__name__}; write integers, fractions or strings such as "1/2"')


def elementwise(make, x):
    """An object array of make(entry), of the shape of the nested list or array x."""
    x = np.asarray(x, dtype=object)
    out = np.empty(x.shape, dtype=object)
    for i in np.ndindex(x.shape):
        out[i] = make(x[i])
    return out


def fractions(x):
    """An object array of Fraction from nested lists of integers, strings and fractions, or from such an array."""
    return elementwise(as_fraction, x)


def log(x):
    """An object array of logarithms of non-negative fractions, given as for `fractions`: gates from their factors."""
    return elementwise(Log, x)


# --- random rationals, small enough to be read ------------------------------------------------------------------

def random_fractions(rng, shape, largest=4, denominators=(1, 2, 3, 4)):
    """Fractions n / d with |n| <= largest and d among the denominators; `rng` is a numpy.random.Generator."""
    n, d = rng.integers(-largest, largest + 1, shape), rng.choice(denominators, shape)
    return ratio(n, d)


def random_factors(rng, shape, resets=1):
    """Decay factors in [0, 1]: `resets` of them 0 and one 1 where there is room, the others strictly between.

    log(random_factors(rng, (..., T))) are random gates: more resets would leave little for a gradient to cross.
    """
    d = rng.integers(2, 6, shape)
    out = ratio(rng.integers(1, d), d).reshape(-1)
    ends = [1] + [0] * resets
    where = rng.permutation(out.size)[:len(ends)]
    out[where] = fractions(ends[:len(where)]) if out.size > 1 else out[where]
    return out.reshape(shape)


def ratio(n, d):
    return np.asarray(fractions(n) / fractions(d), dtype=object)


# --- printing ---------------------------------------------------------------------------------------------------

def text(x):
    """An array as lines: columns aligned to the right, one row a line; leading axes as headings [0], [1], ...

    >>> print(text(fractions([[1, "1/2"], [0, -3]])))
    1  1/2
    0   -3
    """
    if isinstance(x, tuple) and hasattr(x, "_fields"):               # a state of several arrays
        return "\n".join(f"{name} =\n{text(part)}" for name, part in zip(x._fields, x))
    x = np.asarray(x) if hasattr(x, "dtype") else np.asarray(x, dtype=object)
    if x.ndim > 2:
        return "\n".join(f"[{', '.join(map(str, i))}]\n{text(x[i])}" for i in np.ndindex(x.shape[:-2]))
    return columns([[entry(e) for e in row] for row in np.atleast_2d(x)])


def entry(x):
    """One number: floats and complex numbers to six digits, everything else as itself."""
    return f"{x:.6g}" if isinstance(x, (float, complex, np.inexact)) else str(x)


def columns(rows, between="  "):
    """Rows of strings as lines with columns aligned to the right."""
    widths = [max(map(len, column)) for column in zip(*rows)]
    return "\n".join(between.join(cell.rjust(w) for cell, w in zip(row, widths)) for row in rows)


def show(*xs):
    """Prints numbers and arrays as `text` lays them out.

    >>> show(log(["1/2", 1, 0]))
    ln 1/2  0  -inf
    """
    for x in xs:
        print(text(x))


def table(steps):
    """Prints one row a token: `steps` maps a heading to a sequence with one number or array for each token.

    >>> table({"t": [1, 2], "S": fractions([[[1, 0], [0, 0]], [["1/2", 0], [0, 1]]]), "o": fractions([1, "1/2"])})
    t |      S |   o
    1 |   1  0 |   1
      |   0  0 |
    2 | 1/2  0 | 1/2
      |   0  1 |
    """
    rows = [[str(heading) for heading in steps]]
    for cells in zip(*steps.values()):
        blocks = [text(cell).split("\n") for cell in cells]
        height = max(map(len, blocks))
        rows += zip(*(block + [""] * (height - len(block)) for block in blocks))
    print("\n".join(line.rstrip() for line in columns(rows, " | ").split("\n")))
