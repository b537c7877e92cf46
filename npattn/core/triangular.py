"""Unit lower triangular systems (I + L) x = b, L strictly lower: forward substitution, exact for fractions.

Never a general solver: pivoting would let later rows change earlier ones.
"""
from .arrays import array_module
from .halves import fill, filled, sizes, squares


def inverse(L):
    """(I + L)^-1 for strictly lower L (..., C, C), row by row in blocks of at most 4, blocks joined by halves.

    What stands on or above the diagonal of L is not read.

                   [E 0]^-1   [ E^-1          0   ]
        I + L   =  [B F]    = [-F^-1 B E^-1   F^-1]

    >>> import numpy as np
    >>> inverse(np.array([[0., 0, 0], [2, 0, 0], [0, 3, 0]])).tolist()
    [[1.0, 0.0, 0.0], [-2.0, 1.0, 0.0], [6.0, -3.0, 1.0]]
    """
    xp, C = array_module(L), L.shape[-1]
    b, N = filled(C, 4)
    L = fill(fill(L, N, 0), N, 0, axis=-1)                                   # N N
    X = xp.zeros_like(L)                                                     # N N
    x, l = squares(X, b), squares(L, b)                                      # (N/b) b b each
    for j in range(b):                                                       # row j is finished: take L[i, j] of it off every row i below
        x[..., j, j] = 1
        below = x[..., j + 1:, :j + 1]
        below -= l[..., j + 1:, j, None] * x[..., j, None, :j + 1]
    for h in sizes(b, N):
        x, l = squares(X, 2 * h), squares(L, 2 * h)                          # (N/2h) 2h 2h each
        x[..., h:, :h] = -(x[..., h:, h:] @ (l[..., h:, :h] @ x[..., :h, :h]))
    return X[..., :C, :C]
