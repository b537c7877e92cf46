"""Counting: arrays that compute what NumPy's arrays compute, and write down how much that was.

    count(form, *args, **kwargs)         runs a form on counting arrays: its operations and the bytes of the largest array on the way

Whatever a form does with numbers, NumPy does by its universal functions, and hands them over (`__array_ufunc__`): a product of matrices m k
by k n is m n k multiplications and m n (k - 1) additions, a sum of n numbers n - 1 additions, everything else one operation for each number
of the result.  Numbers that are 0 are multiplied like any other.  Not counted: comparisons, maxima, signs, selections, copies.
"""
from typing import NamedTuple

import numpy as np

from ..core.states import map_state

KINDS = {np.multiply: "multiplications", np.matmul: "multiplications", np.add: "additions", np.subtract: "additions",
         np.divide: "divisions", np.exp: "exponentials"}


class Operations(NamedTuple):
    multiplications: int
    additions: int
    divisions: int
    exponentials: int
    largest: int                                         # bytes of the largest result of an operation


class Counting(np.ndarray):
    """An array that adds up, in the dict `tally`, what is done with it and with all that comes of it."""

    def __array_finalize__(self, source):
        self.tally = getattr(source, "tally", None)

    def __array_ufunc__(self, ufunc, method, *inputs, out=(), **kwargs):
        y = getattr(ufunc, method)(*map(plain, inputs), **kwargs, **dict(out=tuple(map(plain, out))) if out else {})
        note(self.tally, ufunc, method, inputs, y, kwargs)
        return out[0] if out else counting(y, self.tally)

    def __array_function__(self, function, types, args, kwargs):
        y = super().__array_function__(function, types, args, kwargs)
        return type(y)(counting(part, self.tally) for part in y) if isinstance(y, (list, tuple)) else counting(y, self.tally)


def count(form, *args, **kwargs):
    """The operations of form(*args, **kwargs), whose arrays, and states of arrays, count.

    >>> count(lambda a, b: np.exp(a @ b), np.ones((2, 3)), np.ones((3, 5)))
    Operations(multiplications=30, additions=20, divisions=0, exponentials=10, largest=80)
    """
    tally = dict.fromkeys(Operations._fields, 0)
    put = lambda x: map_state(lambda part: counting(part, tally), x)
    form(*map(put, args), **{name: put(x) for name, x in kwargs.items()})
    return Operations(**tally)


def counting(x, tally):
    """`x` as a counting array; what is no array, as it is."""
    if not isinstance(x, np.ndarray) and not isinstance(x, np.generic):
        return x
    y = np.asarray(x).view(Counting)
    y.tally = tally
    return y


def plain(x):
    return x.view(np.ndarray) if isinstance(x, Counting) else x


def note(tally, ufunc, method, inputs, y, kwargs):
    """Enter one operation."""
    n = np.size(y)
    tally["largest"] = max(tally["largest"], getattr(y, "nbytes", 0))
    if ufunc is np.matmul:
        k = inputs[0].shape[-1]
        tally["multiplications"] += n * k
        tally["additions"] += n * max(k - 1, 0)
    elif ufunc in KINDS:
        if method == "reduce":
            n = inputs[0].size - n
        elif method == "accumulate":
            n -= n // max(inputs[0].shape[kwargs.get("axis", 0)], 1)
        tally[KINDS[ufunc]] += n
