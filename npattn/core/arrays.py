"""The array module of an argument, inner and outer products of vectors, and sums that undo broadcasting."""
import sys

import numpy


def array_module(*arrays):
    """`cupy` if any argument is a CuPy array, else `numpy`.  CuPy is never imported: who has an array of it has done so."""
    for x in arrays:
        if type(x) is not numpy.ndarray and type(x).__module__.partition(".")[0] == "cupy":
            return sys.modules["cupy"]
    return numpy


def dot(x, y):
    """x . y, over the last axis: (x * y).sum(-1), without an array of the products in between.

    >>> dot(numpy.array([[1., 2], [3, 4]]), numpy.array([10., 100])).tolist()
    [210.0, 430.0]
    """
    if all(type(z) is numpy.ndarray and z.dtype.kind in "fc" for z in (x, y)):
        return numpy.einsum("...k,...k->...", x, y)
    return (x * y).sum(-1)


def outer(x, y):
    """x^T y (..., K, V) of two rows, x (..., 1, K) and y (..., 1, V).

    BLAS writes a large one in a quarter to a half of the time of x.mT * y.  But NumPy hands it no product over an axis of length 1, so a row
    of zeros is put under each.

    >>> outer(numpy.array([[1., 2]]), numpy.array([[10., 100]])).tolist()
    [[10.0, 100.0], [20.0, 200.0]]
    """
    plain = all(type(z) is numpy.ndarray and z.dtype.char in "fd" for z in (x, y))
    if not plain or x.shape[-1] * y.shape[-1] < LARGE:
        return x.mT * y
    X, Y = (numpy.zeros(z.shape[:-2] + (2, z.shape[-1]), z.dtype) for z in (x, y))
    X[..., :1, :], Y[..., :1, :] = x, y
    return X.mT @ Y


LARGE = 64 * 64                                          # numbers in one product from which that pays


def sum_to(x, shape):
    """Sum a gradient over the axes along which an argument of `shape` was broadcast.

    >>> sum_to(numpy.ones((2, 3, 4)), (3, 1)).tolist()
    [[8.0], [8.0], [8.0]]
    """
    ahead = x.ndim - len(shape)
    axes = tuple(range(ahead)) + tuple(ahead + i for i, n in enumerate(shape) if n == 1 and x.shape[ahead + i] != 1)
    return x.sum(axes, keepdims=True).reshape(shape) if axes else x
