"""Products of scalar decay factors over stretches of tokens, and the gradient of every gate.

Products of factors, never differences of cumulative sums: exact for e^g = 0 and for fractions, and nothing overflows.
Per-channel gates: see channel_decay.
"""
from .arrays import array_module, dot
from .halves import earlier, fill, filled, later, sizes, squares


def decay(g):
    """The four products that a matrix form needs, for log gates g (..., T).

        D[i, j] = e^(g[j+1] + ... + g[i]) for j <= i, else 0        token j to token i        (..., T, T)
        a[i]    = e^(g[0] + ... + g[i])                             first state to token i    (..., T, 1)
        z[j]    = e^(g[j+1] + ... + g[T-1])                         token j to last state     (..., T, 1)
        A       = e^(g[0] + ... + g[T-1])                           first state to last       (..., 1, 1)

    >>> import numpy as np
    >>> print(decay(np.log([1, .5, 1, .5]))[0])
    [[1.   0.   0.   0.  ]
     [0.5  1.   0.   0.  ]
     [0.5  1.   1.   0.  ]
     [0.25 0.5  0.5  1.  ]]
    """
    return products(array_module(g).exp(g))


def products(f):
    """`decay` from the factors f = e^g themselves, (..., T): row by row in blocks of at most 8 tokens, blocks joined by halves (core.halves).

    A path from the earlier half to the later one is z of the one times a of the other.
    """
    xp, T = array_module(f), f.shape[-1]
    b, N = filled(T, 8)
    f = fill(f, N, 1, axis=-1)[..., None]                                    # N 1
    D = xp.zeros(f.shape[:-1] + (N,), f.dtype)                               # N N
    d, rows = squares(D, b), f.reshape(f.shape[:-2] + (N // b, b, 1))        # (N/b) b b, (N/b) b 1
    for i in range(b):
        d[..., i, i] = 1
        d[..., i, :i] = rows[..., i, :] * d[..., i - 1, :i]
    a = (rows[..., :1, :] * d[..., :1]).reshape(f.shape)                     # N 1   start of its block to token
    z = d[..., -1, :].copy().reshape(f.shape)                                # N 1   token to end of its block; a copy, written to below
    for h in sizes(b, N):
        a0, a1, z0 = earlier(a, h), later(a, h), earlier(z, h)               # (N/2h) h 1 each
        squares(D, 2 * h)[..., h:, :h] = a1 * z0.mT                          # (N/2h) h h
        z0 *= a1[..., -1:, :]                                                # now of blocks of 2 h
        a1 *= a0[..., -1:, :]
    return D[..., :T, :T], a[..., :T, :], z[..., :T, :], a[..., -1:, :]


def crossing(W, first, last, through):
    """dg (..., T): what flows along every path that crosses a gate.

        dg[t] = sum of W[i, j] over i >= t > j          token j to token i         W (..., T, T)
              + sum of first[i] over i >= t             first state to token i     (..., T)
              + sum of last[j] over j < t               token j to last state      (..., T)
              + through                                 first state to last        (..., 1)

    Sums of the paths themselves, not differences of larger sums: exactly 0 at a reset, where every crossing path carries a factor 0.
    """
    xp, T = array_module(W), W.shape[-1]
    ones = xp.ones((T, T), W.dtype)
    below = xp.tril(ones, -1)                                                # T T
    ahead = xp.triu(ones) @ W                                                # T T   [t, j]: sum over i >= t
    ends = first[..., None, :] @ xp.tril(ones) + last[..., None, :] @ below.mT                     # 1 T
    return dot(ahead, below) + ends[..., 0, :] + through
