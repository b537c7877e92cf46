"""Grouped heads: value (or query) head h uses key head h // G, each key head G times in a row."""
from .arrays import array_module


def group(x, heads, axis=-3):
    """Split the head axis of `x`, H G heads, into (H, G): broadcasting against (H, 1) then pairs every head with its key head.

    `axis` counts from the right: -3 for (..., H G, T, D), -2 for gates (..., H G, T), -1 for (..., H G).

    >>> import numpy as np
    >>> group(np.arange(4.)[:, None, None], 2)[..., 0, 0].tolist()
    [[0.0, 1.0], [2.0, 3.0]]
    """
    axis += x.ndim
    if x.ndim <= axis or axis < 0 or heads < 1 or x.shape[axis] % heads:
        raise ValueError(f"group: the head axis of {x.shape} cannot be split into {heads} groups")
    return x.reshape(x.shape[:axis] + (heads, x.shape[axis] // heads) + x.shape[axis + 1:])


def ungroup(x, axis=-3):
    """The inverse of `group`: (..., H, G, T, D) to (..., H G, T, D); `axis` is that of the result."""
    axis += x.ndim - 1
    return x.reshape(x.shape[:axis] + (x.shape[axis] * x.shape[axis + 1],) + x.shape[axis + 2:])


def repeat(x, times, axis=-3):
    """Every head `times` times in a row, as a copy: heads 0, 0, 1, 1 and not 0, 1, 0, 1."""
    return array_module(x).repeat(x, times, axis=axis)


def repeat_vjp(dx, times, axis=-3):
    """Gradient of `repeat`: the sum over each head's copies."""
    return group(dx, dx.shape[axis] // times, axis).sum(axis)
