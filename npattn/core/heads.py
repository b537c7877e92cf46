"""Grouped heads: value (or query) head h uses key head h // G, each key head G times in a row."""
from .arrays import array_module
from .kinds import count


def group(x, heads, axis=-3):
    """Split the head axis of `x`, H G heads, into (H, G): broadcasting against (H, 1) then pairs every head with its key head.

    `axis` counts from the right: -3 for (..., H G, T, D), -2 for gates (..., H G, T), -1 for (..., H G).

    >>> import numpy as np
    >>> group(np.arange(4.)[:, None, None], 2)[..., 0, 0].tolist()
    [[0.0, 1.0], [2.0, 3.0]]
    """
    heads, axis = count("heads", heads), axis + x.ndim
    if not 0 <= axis < x.ndim or x.shape[axis] % heads:
        raise ValueError(f"group: the head axis of {x.shape} cannot be split into {heads} groups")
    return x.reshape(x.shape[:axis] + (heads, x.shape[axis] // heads) + x.shape[axis + 1:])


def ungroup(x, axis=-3):
    """The inverse of `group`: (..., H, G, T, D) to (..., H G, T, D); `axis` is that of the result."""
    axis += x.ndim - 1
    if not 0 <= axis < x.ndim - 1:
        raise ValueError(f"ungroup: there is no axis {axis - x.ndim + 1} when two axes of {x.shape} are one")
    return x.reshape(x.shape[:axis] + (x.shape[axis] * x.shape[axis + 1],) + x.shape[axis + 2:])


def repeat(x, times, axis=-3):
    """Every head `times` times in a row, as a copy: heads 0, 0, 1, 1 and not 0, 1, 0, 1."""
    return array_module(x).repeat(x, count("times", times), axis=axis)


def repeat_vjp(dx, times, axis=-3):
    """Gradient of `repeat`: the sum over each head's copies."""
    if dx.shape[axis] % count("times", times):
        raise ValueError(f"repeat_vjp: the head axis of {dx.shape} holds no {times} copies of every head")
    return group(dx, dx.shape[axis] // times, axis).sum(axis)
