"""Unit lower triangular systems (I + L) x = b, L strictly lower: forward substitution, exact for fractions.

Never a general solver: pivoting would let later rows change earlier ones.
"""
from .arrays import array_module


def inverse(L):
    """(I + L)^-1 for strictly lower L (..., C, C), row by row, blocks joined by halves.

    What stands on or above the diagonal of L is not read.

        [A 0]^-1   [ A^-1          0   ]
        [B D]    = [-D^-1 B A^-1   D^-1]

    >>> import numpy as np
    >>> inverse(np.array([[0., 0, 0], [2, 0, 0], [0, 3, 0]])).tolist()
    [[1.0, 0.0, 0.0], [-2.0, 1.0, 0.0], [6.0, -3.0, 1.0]]
    """
    C, xp = L.shape[-1], array_module(L)
    X = xp.zeros_like(L)                                                     # C C
    if C <= 8:
        for i in range(C):
            X[..., i, i] = 1
            X[..., i:i + 1, :i] = -(L[..., i:i + 1, :i] @ X[..., :i, :i])
        return X
    m = C // 2
    if C % 2:
        A, D = inverse(L[..., :m, :m]), inverse(L[..., m:, m:])
    else:                                                                    # both halves in one call
        both = inverse(xp.stack([L[..., :m, :m], L[..., m:, m:]], -3))
        A, D = both[..., 0, :, :], both[..., 1, :, :]
    X[..., :m, :m], X[..., m:, m:], X[..., m:, :m] = A, D, -(D @ (L[..., m:, :m] @ A))
    return X


def solve(L, b):
    """x with (I + L) x = b:  L (..., C, C) strictly lower, b (..., C, V)."""
    return inverse(L) @ b


def solve_vjp(dx, L, x):
    """Gradients (dL, db) of sum(x dx) where x = solve(L, b):  db = (I + L)^-T dx,  dL = -db x^T below the diagonal."""
    db = inverse(L).mT @ dx                                                  # C V
    return array_module(L).tril(-(db @ x.mT), -1), db                        # C C, C V
