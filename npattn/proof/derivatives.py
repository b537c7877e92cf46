"""The derivatives of NumPy's functions, one formula a line: from g, the gradient with respect to the result y, the gradient of each argument.

Formulas and plain arrays only; what walks through a computation is the tape.  A selection selects: what was not chosen gets a zero, not
zero times something, so no NaN crosses over; a tie is shared evenly.  The table's manner is that of HIPS/autograd.
"""
from fractions import Fraction
from math import prod

import numpy as np
from numpy.lib.stride_tricks import sliding_window_view


def zeros(shape, dtype):
    """Zeros that keep what is added to them exact: in object arrays fractions, as the quotient of two integers would be a float."""
    return np.full(shape, Fraction(0) if dtype == object else 0, dtype)


def chosen(g, alone, tied):
    return np.where(alone, g, np.where(tied, g / 2, 0))


def left_factor(g, a, b):
    """g b^T, from y = a b.  A vector is a row on the left and a column on the right."""
    return product_of_matrices(g, a, b, lambda g, a, b: g @ b.mT)


def right_factor(g, a, b):
    """a^T g, from y = a b."""
    part = product_of_matrices(g, a, b, lambda g, a, b: a.mT @ g)
    return part[..., 0] if b.ndim == 1 else part


def product_of_matrices(g, a, b, formula):
    a = a[None, :] if a.ndim == 1 else a
    b = b[:, None] if b.ndim == 1 else b
    lead = np.broadcast_shapes(a.shape[:-2], b.shape[:-2])
    return formula(g.reshape(lead + (a.shape[-2], b.shape[-1])), a, b)


def unless_both_infinite(y):
    return np.where(y == -np.inf, 0, y)


# A formula (g, y, *arguments) for each argument; what broadcasting repeated is summed afterwards.
ELEMENTWISE = {
    np.positive:   [lambda g, y, x: g],
    np.negative:   [lambda g, y, x: -g],
    np.absolute:   [lambda g, y, x: g * np.sign(x)],
    np.reciprocal: [lambda g, y, x: -g * y * y],
    np.square:     [lambda g, y, x: 2 * g * x],
    np.sqrt:       [lambda g, y, x: g / (2 * y)],
    np.exp:        [lambda g, y, x: g * y],
    np.expm1:      [lambda g, y, x: g * (y + 1)],
    np.log:        [lambda g, y, x: g / x],
    np.log1p:      [lambda g, y, x: g / (1 + x)],
    np.sin:        [lambda g, y, x: g * np.cos(x)],
    np.cos:        [lambda g, y, x: -g * np.sin(x)],
    np.tanh:       [lambda g, y, x: g * (1 - y * y)],
    np.arctanh:    [lambda g, y, x: g / (1 - x * x)],
    np.add:        [lambda g, y, a, b: g, lambda g, y, a, b: g],
    np.subtract:   [lambda g, y, a, b: g, lambda g, y, a, b: -g],
    np.multiply:   [lambda g, y, a, b: g * b, lambda g, y, a, b: g * a],
    np.divide:     [lambda g, y, a, b: g / b, lambda g, y, a, b: -g * y / b],
    np.power:      [lambda g, y, a, n: g * n * a ** np.where(np.equal(n, 0), 1, np.subtract(n, 1)),
                    lambda g, y, a, n: g * y * np.log(np.where(y == 0, 1, a))],
    np.logaddexp:  [lambda g, y, a, b: g * np.exp(a - unless_both_infinite(y)), lambda g, y, a, b: g * np.exp(b - unless_both_infinite(y))],
    np.maximum:    [lambda g, y, a, b: chosen(g, a > b, a == b), lambda g, y, a, b: chosen(g, b > a, a == b)],
    np.minimum:    [lambda g, y, a, b: chosen(g, a < b, a == b), lambda g, y, a, b: chosen(g, b < a, a == b)],
    np.where:      [None, lambda g, y, mask, a, b: np.where(mask, g, 0), lambda g, y, mask, a, b: np.where(mask, 0, g)],
    np.matmul:     [lambda g, y, a, b: left_factor(g, a, b), lambda g, y, a, b: right_factor(g, a, b)],
}


def others(x, axis):
    """The product over `axis` of every entry but this one, without dividing: an entry may be 0."""
    axes = range(x.ndim) if axis is None else axis if isinstance(axis, tuple) else (axis,)
    last = range(-len(axes), 0)
    x = np.moveaxis(x, axes, last)
    flat = x.reshape(x.shape[:x.ndim - len(axes)] + (prod(x.shape[x.ndim - len(axes):]),))
    y = before(flat) * np.flip(before(np.flip(flat, -1)), -1)
    return np.moveaxis(y.reshape(x.shape), last, axes)


def before(x):
    """y[..., t] = x[..., 0] ... x[..., t-1]."""
    return np.cumprod(np.concatenate([np.ones_like(x[..., :1]), x[..., :-1]], -1), -1)


def largest(g, hit, axis):
    return np.where(hit, g / hit.sum(axis, keepdims=True), 0)


# Functions of (x, axis, keepdims): a formula (g, y, x, axis) in which g and y have kept the axes that were reduced.
REDUCING = {
    np.sum:  lambda g, y, x, axis: g,
    np.mean: lambda g, y, x, axis: g * y.size / x.size,
    np.prod: lambda g, y, x, axis: g * others(x, axis),
    np.max:  lambda g, y, x, axis: largest(g, x == y, axis),
    np.min:  lambda g, y, x, axis: largest(g, x == y, axis),
}


def reverse_cumsum(g, axis):
    return np.flip(np.cumsum(np.flip(g, axis), axis), axis)


def cumprod_gradient(g, x, axis):
    """dx[t] = x[0] ... x[t-1] r[t],  r[t] = g[t] + x[t+1] r[t+1]: without dividing."""
    g, x = np.moveaxis(g, axis, -1), np.moveaxis(x, axis, -1)
    r = [g[..., x.shape[-1]:]]
    for t in reversed(range(x.shape[-1])):
        r.append(g[..., t:t + 1] + (x[..., t + 1:t + 2] * r[-1] if len(r) > 1 else 0))
    return np.moveaxis(before(x) * np.concatenate(r[::-1], -1), -1, axis)


# Functions of (x, axis) that keep x's shape: a formula (g, y, x, axis).
ALONG = {
    np.cumsum:  lambda g, y, x, axis: reverse_cumsum(g, axis),
    np.cumprod: lambda g, y, x, axis: cumprod_gradient(g, x, axis),
}

# Functions that only move, repeat or drop entries of their first argument (an array, or a list of arrays), or put zeros in their place.
# Applied to the entries' numbers 1, 2, 3 ..., they tell where every entry went; 0 is a zero.
MOVING = {np.broadcast_to, np.concatenate, np.copy, np.diagonal, np.expand_dims, np.flip, np.matrix_transpose, np.moveaxis, np.ravel,
          np.repeat, np.reshape, np.roll, np.split, np.squeeze, np.stack, np.swapaxes, np.take, np.take_along_axis, np.tile, np.transpose,
          np.tril, np.triu, sliding_window_view}

# Functions whose results carry no gradient: comparisons, positions, shapes and types.
PLAIN = {np.equal, np.not_equal, np.less, np.less_equal, np.greater, np.greater_equal, np.isfinite, np.isinf, np.isnan, np.logical_and,
         np.logical_not, np.logical_or, np.sign, np.all, np.any, np.argmax, np.argmin, np.argsort, np.array_equal, np.count_nonzero,
         np.full_like, np.iscomplexobj, np.ndim, np.ones_like, np.result_type, np.shape, np.size, np.zeros_like}
