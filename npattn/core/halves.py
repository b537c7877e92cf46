"""Tokens cut in halves, again and again: all blocks of one size at once, as views into one array.

What holds between an earlier and a later half is made of products, so a matrix of all tokens takes log2 T rounds, from the smallest blocks to
the whole.  T is filled up to N, so that every block has two halves.  The smallest blocks, of 4 or 8 tokens, are done row by row: that takes
less time than two or three more rounds.
"""
import numpy

from .arrays import array_module


def filled(T, smallest):
    """(b, N): tokens of a smallest block, at most `smallest`; and of all blocks, b times a power of two and at least T.

    >>> filled(64, 8), filled(65, 8), filled(65, 1), filled(0, 8)
    ((8, 64), (5, 80), (1, 128), (1, 1))
    """
    n = 1
    while n * smallest < T:
        n *= 2
    b = max(-(-T // n), 1)
    return b, b * n


def fill(x, N, value, axis=-2):
    """x with tokens of `value` behind, to make N along `axis`; x itself if it has N."""
    if x.shape[axis] == N:
        return x
    shape = list(x.shape)
    shape[axis] = N - x.shape[axis]
    xp = array_module(x)
    return xp.concatenate([x, xp.full(tuple(shape), value, x.dtype)], axis)


def sizes(b, N):
    """The sizes of a half, from the smallest block to half of all.

    >>> list(sizes(5, 40))
    [5, 10, 20]
    """
    while b < N:
        yield b
        b *= 2


def earlier(x, h):
    """The earlier half of every block of 2 h tokens, as a view: (..., N, K) to (..., N / 2h, h, K)."""
    return halves(x, h)[..., 0, :, :]


def later(x, h):
    """The later halves, likewise."""
    return halves(x, h)[..., 1, :, :]


def halves(x, h):
    """Both, as a view: (..., N / 2h, 2, h, K)."""
    return x.reshape(x.shape[:-2] + (x.shape[-2] // (2 * h), 2, h, x.shape[-1]))


def squares(x, h):
    """The squares of h tokens on the diagonal, as a view: (..., N, N) to (..., N / h, h, h).

    >>> import numpy as np
    >>> squares(np.arange(16).reshape(4, 4), 2).tolist()
    [[[0, 1], [4, 5]], [[10, 11], [14, 15]]]
    """
    *lead, down, right = x.strides
    xp, more = array_module(x), dict(subok=True) if isinstance(x, numpy.ndarray) else {}         # arrays that count (npattn.proof) go on counting
    shape, strides = x.shape[:-2] + (x.shape[-1] // h, h, h), (*lead, h * (down + right), down, right)
    return xp.lib.stride_tricks.as_strided(x, shape, strides, **more)
