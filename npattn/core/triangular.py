"""Unit lower triangular systems (I + L) x = b, L strictly lower: forward substitution, exact for fractions.

Never a general solver: pivoting would let later rows change earlier ones.
"""
from .arrays import array_module
from .halves import fill, filled, sizes, squares


def inverse(L):
    """(I + L)^-1 for strictly lower L (..., C, C), row by row in blocks of at most 4, blocks joined by halves.

    What stands on or above the diagonal of L is not read.

        [A 0]^-1   [ A^-1          0   ]
        [B D]    = [-D^-1 B A^-1   D^-1]

    >>> import numpy as np
    >>> inverse(np.array([[0., 0, 0], [2, 0, 0], [0, 3, 0]])).tolist()
    [[1.0, 0.0, 0.0], [-2.0, 1.0, 0.0], [6.0, -3.0, 1.0]]
    """
    xp, C = array_module(L), L.shape[-1]
    b, N = filled(C, 4)
    L = fill(fill(L, N, 0), N, 0, axis=-1)                                   # N N
    X = xp.zeros_like(L)                                                     # N N
    x, l = squares(X, b), squares(L, b)                                      # (N/b) b b each
    for j in range(b):                                                       # row j is finished: off all rows below it
        x[..., j, j], below = 1, x[..., j + 1:, :j + 1]
        below -= l[..., j + 1:, j, None] * x[..., j, None, :j + 1]
    for h in sizes(b, N):
        x, l = squares(X, 2 * h), squares(L, 2 * h)                          # (N/2h) 2h 2h each
        x[..., h:, :h] = -(x[..., h:, h:] @ (l[..., h:, :h] @ x[..., :h, :h]))
    return X[..., :C, :C]


def solve(L, b):
    """x with (I + L) x = b:  L (..., C, C) strictly lower, b (..., C, V)."""
    return inverse(L) @ b


def solve_vjp(dx, L, x):
    """Gradients (dL, db) of sum(x dx) where x = solve(L, b):  db = (I + L)^-T dx,  dL = -db x^T below the diagonal."""
    db = inverse(L).mT @ dx                                                  # C V
    return array_module(L).tril(-(db @ x.mT), -1), db                        # C C, C V
