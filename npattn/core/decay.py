"""Products of scalar decay factors over stretches of tokens, and the gradient of every gate.

Products of factors, never differences of cumulative sums: exact for e^g = 0 and for fractions, and nothing overflows.
Per-channel gates: see channel_decay.
"""
from .arrays import array_module


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
    """`decay` from the factors f = e^g themselves, by halves.

    A path from the first half to the second is z of the one times a of the other.
    """
    xp, T = array_module(f), f.shape[-1]
    if T <= 8:
        f_or_1 = xp.where(xp.tri(T, k=-1, dtype=bool), f[..., :, None], xp.ones((), f.dtype))
        D = xp.tril(xp.cumprod(f_or_1, axis=-2))                             # T T
        z = D[..., -1:, :].mT.reshape(f.shape + (1,))                        # T 1   (the shape matters when T = 0)
        return D, xp.cumprod(f, axis=-1)[..., None], z, f.prod(-1, keepdims=True)[..., None]
    m = T // 2
    if T % 2:
        one, two = products(f[..., :m]), products(f[..., m:])
    else:                                                                    # both halves in one call
        one, two = zip(*((x[..., 0, :, :], x[..., 1, :, :]) for x in products(f.reshape(f.shape[:-1] + (2, m)))))
    (D1, a1, z1, A1), (D2, a2, z2, A2) = one, two
    D = xp.zeros(f.shape + (T,), f.dtype)                                    # T T
    D[..., :m, :m], D[..., m:, m:], D[..., m:, :m] = D1, D2, a2 * z1.mT
    return D, xp.concatenate([a1, A1 * a2], -2), xp.concatenate([z1 * A2, z2], -2), A1 * A2


def crossing(W, first, last, through):
    """dg (..., T): what flows along every path that crosses a gate.

        dg[t] = sum of W[i, j] over i >= t > j          token j to token i         W (..., T, T)
              + sum of first[i] over i >= t             first state to token i     (..., T)
              + sum of last[j] over j < t               token j to last state      (..., T)
              + through                                 first state to last        (..., 1)

    Sums of the paths themselves, not differences of larger sums: exactly 0 at a reset, where every crossing path carries a factor 0.
    """
    xp, T = array_module(W), W.shape[-1]
    one = xp.ones((T, T), W.dtype)
    ahead = xp.triu(one) @ W                                                 # T T   [t, j]: sum over i >= t
    ends = first[..., None, :] @ xp.tril(one) + last[..., None, :] @ xp.triu(one, 1)               # 1 T
    return xp.tril(ahead, -1).sum(-1) + ends[..., 0, :] + through


def decay_vjp(dD, da, dz, dA, g):
    """dg from the gradients of the four products."""
    D, a, z, A = decay(g)
    return crossing(dD * D, (da * a)[..., 0], (dz * z)[..., 0], (dA * A)[..., 0])
