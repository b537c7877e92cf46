"""The array module of an argument, and sums that undo broadcasting."""
import sys

import numpy


def array_module(*arrays):
    """`cupy` if any argument is a CuPy array, else `numpy`.  CuPy is never imported: who has an array of it has done so."""
    for x in arrays:
        if type(x).__module__.partition(".")[0] == "cupy":
            return sys.modules["cupy"]
    return numpy


def sum_to(x, shape):
    """Sum a gradient over the axes along which an argument of `shape` was broadcast.

    >>> sum_to(numpy.ones((2, 3, 4)), (3, 1)).tolist()
    [[8.0], [8.0], [8.0]]
    """
    ahead = x.ndim - len(shape)
    axes = tuple(range(ahead)) + tuple(ahead + i for i, n in enumerate(shape) if n == 1 and x.shape[ahead + i] != 1)
    return x.sum(axes, keepdims=True).reshape(shape) if axes else x
