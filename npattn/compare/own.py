"""Heads that are wrong on their own scale, however small they are beside the largest entry of the array.

    e[b, h] = max |got - expected| / max |expected|         over batch row b and head h alone

Below 100 times the level of the array a head passes: within one head, too, entries differ in size, and nothing promises that each head is
as good as the best.  In low precision that would be more than a head of zeros is off, which is 1; so 0.3 at most.

A head may be small because its terms cancel (the gradient of a peaked softmax, of a gate that has no effect).  It is then rounded on
the scale of the terms, which no one sees in the result.  So that is measured: the mechanism itself is run in float32, and what this is
off, in units of float32, is what cancellation costs; four times as many units of the type of the outputs pass.  A head that is exactly zero
has no scale of its own; the array's must do.
"""
from dataclasses import replace

import numpy as np

from .measure import LEVELS
from .problem import evaluate

# half a unit in the last place
UNITS = dict(float64=2.0 ** -53, float32=2.0 ** -24, tf32=2.0 ** -11, float16=2.0 ** -11, bfloat16=2.0 ** -8)


def sizes(expected, real=None):
    """The largest |expected| of every batch row and head, (B, heads); what is not finite and padding do not count.

    >>> print(sizes(np.array([[[1., -4], [np.inf, 0]]])))
    [[4. 0.]]
    """
    counted = np.isfinite(expected)
    if real is not None:
        counted = counted & np.expand_dims(real, (1, *range(3, expected.ndim)))
    return np.where(counted, np.abs(expected), 0).max(axis=tuple(range(2, expected.ndim)), initial=0)


def own(e, size):
    """The relative error of every head on its own scale, from the Error of the array and `sizes`; -1 where all is zero, or padding.

    >>> from npattn.compare.measure import error
    >>> b = np.array([[[8., 2], [0, 0.25], [0, 0]]])
    >>> print(own(error(b + 0.125, b), sizes(b)))
    [[ 0.015625  0.5      -1.      ]]
    """
    worst = e.each.max(axis=tuple(range(2, e.each.ndim)), initial=-1)
    with np.errstate(all="ignore"):
        return np.where((size > 0) & (worst >= 0), worst * (size.max(initial=0) / np.where(size > 0, size, 1)), -1)


def wrong_heads(problem, rows, expected, real, precision=None):
    """{output: ((batch row, head, error on its own scale, its largest |expected|), …)}, of heads that the array's measure lets pass.

    `precision` goes before the types of the rows: what the implementation rounds inside.
    """
    found, low = {}, None
    for row in rows:
        kind = precision or row.inputs or row.precision
        size = sizes(expected[row.name], real[row.name])
        e, whole = own(row.error, size), size.max(initial=0)
        least = 2.0 ** -23 / np.where(size > 0, size, 1) if row.precision == "float16" else 0     # two steps between its smallest numbers
        limit = np.maximum(min(100 * max(row.level, LEVELS.get(kind, 0)), 0.3), least)
        bad = (e > limit) & (e * size <= row.level * whole)  # what is wrong by the array's measure needs no second word
        if not bad.any():
            continue
        if low is None:
            low = in_float32(problem, any(row.name.startswith("d") for row in rows))
        if row.name in low:
            with np.errstate(all="ignore"):
                off = np.abs(low[row.name].astype(np.float64) - expected[row.name])
                cancels = sizes(off, real[row.name]) / np.where(size > 0, size, 1)
            bad &= e > 4 * cancels * (UNITS[kind] / UNITS["float32"])
        if bad.any():
            found[row.name] = tuple((int(b), int(h), e[b, h].item(), size[b, h].item()) for b, h in np.argwhere(bad))
    return found


def words(rows, outputs):
    """Sentences for a picture: which outputs only small heads are wrong in, and what they hold."""
    for row in rows:
        if row.near and row.heads:
            zero = all(not outputs[row.name][b, h].any() for b, h, *_ in row.heads)
            yield (f"{row.name} is right by its largest entry, and wrong in {len(row.heads)} of {row.shape[0] * row.shape[1]} heads "
                   "(of all batch rows) that are small beside it" + ("; they are zero there." if zero else "."))


def in_float32(problem, gradients):
    """What the mechanism itself returns in float32."""
    arrays = {name: x if x.dtype == bool else x.astype(np.float32) for name, x in problem.arrays.items()}
    with np.errstate(all="ignore"):
        return evaluate(replace(problem, arrays=arrays), gradients=gradients)
