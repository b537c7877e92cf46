"""Products of decay factors with one gate for each key channel, and the gradient of every gate.

    P[i, j] = sum over c of q[i, c] k[j, c] e^(g[j+1, c] + ... + g[i, c])          for j <= i, else 0

The decays differ from channel to channel, so they stay inside the sum over channels; split at the first token, as e^(to i) e^-(to j),
they overflow.  Split in the middle they do not.  Cut the tokens into an earlier and a later half; every path from one to the other passes
the cut:

    P[i, j] = (q[i] a[i]) . (k[j] z[j])          a = cut to token i of the later half,  z = token j of the earlier half to the cut

and so on inside each half, down to single tokens.  Products of factors at most 1, never differences of sums: exact for e^g = 0 and for
fractions, nothing overflows, and no token touches an earlier row.  All blocks of one size are done at once, in log2 T rounds; T is filled
up to N, a power of two, with tokens that do nothing (q = k = 0, decay 1).  The N / 2h blocks of one round, of 2 h tokens each, stand along
an axis of their own before the tokens: (N/2h) h K is an array (..., N / 2h, h, K).

Gates g (..., T, 1) are one gate for all channels: then the products stand outside the sum, D is the matrix of core.decay, and every
function here does the short form of the same.
"""
import numpy

from . import decay as scalar
from .arrays import array_module, dot
from .halves import earlier, fill, filled, later, sizes


def decay(g):
    """The products that a matrix form needs, for log gates g (..., T, K).

        D       the halves, for `scores`: a pair (z, a) for each size h = 1, 2, 4, ... of a half, (..., N / 2h, h, K) each;
                if K = 1, a matrix (..., T, T)
        a[i]    = e^(g[0] + ... + g[i])                             first state to token i    (..., T, K)
        z[j]    = e^(g[j+1] + ... + g[T-1])                         token j to last state     (..., T, K)
        A       = e^(g[0] + ... + g[T-1])                           first state to last       (..., K, 1)

    >>> import numpy as np
    >>> D, a, z, A = decay(np.log([[1, .5], [.5, .5], [.25, 1]]))
    >>> print(a, z, A.T, sep="\\n")
    [[1.    0.5  ]
     [0.5   0.25 ]
     [0.125 0.25 ]]
    [[0.125 0.5  ]
     [0.25  1.   ]
     [1.    1.   ]]
    [[0.125 0.25 ]]
    """
    return products(array_module(g).exp(g))


def products(f):
    """`decay` from the factors f = e^g themselves, (..., T, K) or (..., T, 1)."""
    if f.shape[-1] == 1:
        return scalar.products(f[..., 0])
    xp, T, N, D = array_module(f), f.shape[-2], filled(f.shape[-2], 1)[1], []
    a = fill(f, N, 1).copy()                                                 # N K   cut to token, for blocks of one token
    z = xp.ones_like(a)                                                      # N K   token to the next cut
    for h in sizes(1, N):
        a0, a1, z0 = earlier(a, h), later(a, h), earlier(z, h)               # (N/2h) h K each
        D.append((z0.copy(), a1.copy()))
        z0 *= a1[..., -1:, :]                                                # now for blocks of 2 h
        a1 *= a0[..., -1:, :]
    return D, a[..., :T, :], z[..., :T, :], a[..., -1:, :].mT


def scores(q, k, D):
    """P (..., T, T), lower triangular: q, k (..., T, K) and the D of `decay`."""
    if not isinstance(D, list):
        return q @ k.mT * D
    xp, T, N = array_module(q), q.shape[-2], 1 << len(D)
    q, k = fill(q, N, 0), fill(k, N, 0)
    P = dot(q, k)[..., None, None]                                           # N 1 1   blocks of one token
    for z, a in D:
        h, blocks = a.shape[-2], P
        X = (later(q, h) * a) @ (earlier(k, h) * z).mT                       # (N/2h) h h     later rows, earlier columns
        P = xp.zeros(X.shape[:-2] + (2 * h, 2 * h), X.dtype)                 # (N/2h) 2h 2h   two blocks become one
        P[..., :h, :h], P[..., h:, h:] = blocks[..., ::2, :, :], blocks[..., 1::2, :, :]
        P[..., h:, :h] = X
    return P[..., 0, :T, :T]


def scores_vjp(dP, q, k, D):
    """Gradients (dq, dk, dg) of sum(P dP) for P = scores(q, k, D); dg (..., T, K) or (..., T, 1) is only what flows from token to token.

    A gate in a later half is crossed on the way from the cut to token i, for all i from the gate on; one in an earlier half on the way from
    token j to the cut, for all j before the gate.  Sums of the paths themselves: exactly 0 at a reset, and nothing from beyond it.
    """
    if not isinstance(D, list):
        W = dP * D
        none = (W * 0).sum(-1)
        return W @ k, W.mT @ q, scalar.crossing(W * (q @ k.mT), none, none, none[..., :1])[..., None]
    xp, T, N = array_module(q), q.shape[-2], 1 << len(D)
    lead = numpy.broadcast_shapes(q.shape[:-2], k.shape[:-2], dP.shape[:-2], *(a.shape[:-3] for _, a in D))
    dtype = numpy.result_type(q.dtype, k.dtype, dP.dtype, *(a.dtype for _, a in D))
    dq, dk, dg = (xp.zeros(lead + (N, q.shape[-1]), dtype) for _ in range(3))                        # N K each
    q, k = fill(q, N, 0), fill(k, N, 0)                                      # N K each
    dX = fill(fill(dP, N, 0), N, 0, axis=-1)[..., None, :, :]                # 1 N N          one block of all tokens
    for z, a in reversed(D):                                                 # (N/2h) h K each; the largest halves first
        h = a.shape[-2]
        q1, k0 = later(q, h), earlier(k, h)                                  # (N/2h) h K each
        dX10 = dX[..., h:, :h]                                               # (N/2h) h h     later rows, earlier columns
        dq1, dk0 = dX10 @ (k0 * z) * a, dX10.mT @ (q1 * a) * z               # (N/2h) h K each
        into_q, into_k, into_g1, into_g0 = later(dq, h), earlier(dk, h), later(dg, h), earlier(dg, h)
        into_q += dq1
        into_k += dk0
        ones = xp.tril(xp.ones((h, h), dtype))                               # h h
        into_g1 += ones.mT @ (q1 * dq1)                                      # (N/2h) h K     all i from the gate on
        into_g0 += xp.tril(ones, -1) @ (k0 * dk0)                            # (N/2h) h K     all j before the gate
        both = xp.stack([dX[..., :h, :h], dX[..., h:, h:]], -3)              # (N/2h) 2 h h   each block becomes two
        dX = both.reshape(dX.shape[:-3] + (N // h, h, h))                    # (N/h) h h
    dq, dk = dq + dX[..., 0] * k, dk + dX[..., 0] * q                        # N K each       blocks of one token: the diagonal
    return dq[..., :T, :], dk[..., :T, :], dg[..., :T, :]


def crossing(dg, first, last, through):
    """`dg` of scores_vjp plus what flows along the paths that begin or end in a state.

        dg[t] = dg[t] + sum of first[i] over i >= t  +  sum of last[j] over j < t  +  through

    first (..., T, K): first state to token i;  last (..., T, K): token j to last state;  through (..., K): first state to last.
    """
    if dg.shape[-1] == 1:
        first, last, through = (x.sum(-1, keepdims=True) for x in (first, last, through))
    xp, T = array_module(dg), dg.shape[-2]
    ones = xp.tril(xp.ones((T, T), dg.dtype))
    return dg + ones.mT @ first + xp.tril(ones, -1) @ last + through[..., None, :]
