"""Gated delta rule, predict first: predicts from the state before it fades.

    e[t] = v[t] - S[t-1]^T k[t]                  predict from the undecayed state; the error
    S[t] = e^g[t] S[t-1] + k[t] (beta[t] e[t])^T decay, write
    o[t] = scale S[t]^T q[t]                     read

The order of textbooks; frameworks decay first (gated_delta_rule; Yang, Kautz and Hatamizadeh, 2024, arXiv 2412.06464).  From the same
state, token t writes beta[t] (1 - e^g[t]) S[t-1]^T k[t] less here: the two agree as long as that is 0 at every token, so always for g = 0,
the delta rule, and wherever the state holds nothing under the key.  In this order too blocks change nothing, if the prediction's decays
stop one token earlier than the read's (`shift`).  A reset, g[t] = -inf, does not cut off what came before: token t still predicts from it,
and writes accordingly.  And what stands under a unit key is multiplied by e^g - beta at every token: it grows where beta > 1 + e^g.

q, k (..., T, K), v, o (..., T, V); g (..., T) natural log of the decay, at most 0; beta (..., T) write strength, used as given;
scale a number, None for K ** -0.5; state (..., K, V), None for zeros.  For gradients: do like o, dfinal_state like state, None for zeros.
TypeError for what is missing or of a wrong type, ValueError for what does not fit; both name the argument (core.arguments).
"""
from ..core import blocks
from ..core.arguments import start, start_vjp
from ..core.arrays import array_module, dot, outer
from ..core.decay import crossing, decay
from ..core.triangular import inverse

AXES = dict(q="T K", k="T K", v="T V", g="T", beta="T", state="K V")


def loop(q, k, v, *, g, beta, scale=None, state=None):
    """The definition, token by token."""
    xp, q, S = start(AXES, q, k, v, g=g, beta=beta, scale=scale, state=state)
    a, b = xp.exp(g)[..., None, None], beta[..., None, None]                 # T 1 1, T 1 1
    o = [q[..., :0, :] @ S]                                                  # 0 V   so that o has its shape if T = 0
    for t in range(q.shape[-2]):
        e = v[..., t, None, :] - k[..., t, None, :] @ S                      # 1 V
        S = a[..., t, :, :] * S + outer(k[..., t, None, :], b[..., t, :, :] * e) # K V
        o.append(q[..., t, None, :] @ S)                                     # 1 V
    return xp.concatenate(o, axis=-2), S                                     # T V, K V


def matrix(q, k, v, *, g, beta, scale=None, state=None):
    """All tokens at once: the writes d = beta e solve (I + L) d = beta (v - p k S), L = beta k k^T E.

    Decays: D[i, j] token j to token i, a first state to token, z token to last state, A first state to last.
    E and p are D and a up to the token before i; E is 0 on the diagonal.
    """
    xp, q, S = start(AXES, q, k, v, g=g, beta=beta, scale=scale, state=state)
    D, a, z, A = decay(g)                                                    # T T, T 1, T 1, 1 1
    E, p = shift(D), shift(a, first=1)                                       # T T, T 1
    b = beta[..., None]                                                      # T 1
    kT = k.mT.copy()                                                         # K T   copied: with a view on the right, BLAS takes up to twice as long
    P, M = q @ kT * D, k @ kT * E                                            # T T, T T
    X = inverse(b * M)                                                       # T T
    d = X @ (b * (v - p * (k @ S)))                                          # T V
    return a * (q @ S) + P @ d, A * S + (kT * z.mT) @ d                      # T V, K V


def loop_vjp(do, q, k, v, *, g, beta, scale=None, state=None, dfinal_state=None):
    """Gradients of sum(o do) + sum(final dfinal_state): the adjoint recurrence, last token first, with d = beta e.

        dS[t]   = dS[t] + q[t] do[t]^T           from the read;   dq[t] = S[t] do[t]
        dd[t]   = dS[t]^T k[t]                   from the write;   dbeta[t] = e[t] . dd[t]
        de[t]   = beta[t] dd[t]                  dv[t] = de[t],   dk[t] = dS[t] d[t] - S[t-1] de[t]
        dS[t-1] = e^g[t] dS[t] - k[t] de[t]^T    from the decay and the prediction;   dg[t] = sum(dS[t] e^g[t] S[t-1])
    """
    xp, q, S, do, dS, new, back = start_vjp(AXES, do, q, k, v, g=g, beta=beta, scale=scale, state=state, dfinal_state=dfinal_state)
    (dq, dk, dv, dg, dbeta), kept = new(), []
    a, b = xp.exp(g)[..., None, None], beta[..., None, None]                 # T 1 1, T 1 1
    for t in range(q.shape[-2]):
        e = v[..., t, None, :] - k[..., t, None, :] @ S                      # 1 V
        kept.append((S, e))
        S = a[..., t, :, :] * S + outer(k[..., t, None, :], b[..., t, :, :] * e) # K V
        dq[..., t, :] = (do[..., t, None, :] @ S.mT)[..., 0, :]
    for t in reversed(range(q.shape[-2])):
        S, e = kept.pop()                                                    # K V, 1 V   the state that token t met
        at, bt, kt = a[..., t, :, :], b[..., t, :, :], k[..., t, None, :]    # 1 1, 1 1, 1 K
        dS = dS + outer(q[..., t, None, :], do[..., t, None, :])             # K V
        dd = kt @ dS                                                         # 1 V
        de = bt * dd                                                         # 1 V
        dk[..., t, :] = (bt * e @ dS.mT - de @ S.mT)[..., 0, :]
        dv[..., t, :] = de[..., 0, :]
        dg[..., t] = (dS * (at * S)).sum((-1, -2))
        dbeta[..., t] = (e * dd).sum((-1, -2))
        dS = at * dS - outer(kt, de)                                         # K V
    return back(q=dq, k=dk, v=dv, g=dg, beta=dbeta, state=dS)


def matrix_vjp(do, q, k, v, *, g, beta, scale=None, state=None, dfinal_state=None):
    """The same gradients, all tokens at once: the lines of `matrix` backwards, the triangular system by its transpose.

    A path into the prediction of token i crosses the gates up to i - 1: to `crossing` it ends at i - 1, hence `shift_vjp`.
    """
    xp, q, S, do, dS, _, back = start_vjp(AXES, do, q, k, v, g=g, beta=beta, scale=scale, state=state, dfinal_state=dfinal_state)
    D, a, z, A = decay(g)                                                    # T T, T 1, T 1, 1 1
    E, p = shift(D), shift(a, first=1)                                       # T T, T 1
    b = beta[..., None]                                                      # T 1
    kT = k.mT.copy()                                                         # K T   copied: with a view on the right, BLAS takes up to twice as long
    P, M = q @ kT * D, k @ kT * E                                            # T T, T T
    X = inverse(b * M)                                                       # T T
    y = v - p * (k @ S)                                                      # T V   the error left by the first state alone
    d = X @ (b * y)                                                          # T V

    dd = X.mT @ (P.mT @ do + z * (k @ dS))                                   # T V   (I + L)^T dd = what d meets later
    de = b * dd                                                              # T V
    dT = d.mT.copy()                                                         # V T   likewise
    dP, dL = do @ dT, -(dd @ dT)                                             # T T, T T
    dM = b * dL                                                              # T T
    dqk, dkk = dP * D, dM * E                                                # T T, T T   adjoints of q k^T and k k^T
    do0, de0 = a * do, p * de                                                # T V, T V   as they come to the first state
    read, predict, write = do0 @ S.mT, de0 @ S.mT, z * (d @ dS.mT)           # T K each   through the first state, and the last
    dg = crossing(dP * P + shift_vjp(dM * M),                                # token to token
                  dot(q, read) - shift_vjp(k * predict).sum(-1),             # first state to token: sum of do a (q S), which is q . read
                  dot(k, write),                                             # token to last state
                  (A * S * dS).sum((-1, -2), keepdims=True)[..., 0])         # first state to last state
    return back(q=dqk @ k + read,
                k=dqk.mT @ q + (dkk + dkk.mT) @ k - predict + write,
                v=de,
                g=dg,
                beta=dot(dd, y) + dot(dL, M),
                state=q.mT @ do0 - kT @ de0 + A * dS)


def shift(x, first=0):
    """Row i becomes row i - 1, row 0 is filled with `first`: the same products of decays, one token earlier.

    >>> import numpy as np
    >>> print(shift(np.array([[1., 0, 0], [2, 1, 0], [6, 3, 1]])))
    [[0. 0. 0.]
     [1. 0. 0.]
     [2. 1. 0.]]
    """
    xp = array_module(x)
    return xp.concatenate([xp.full_like(x[..., :1, :], first), x[..., :-1, :]], axis=-2)


def shift_vjp(dy):
    """Row i goes back to row i - 1; row 0, which no gate decays, is dropped."""
    xp = array_module(dy)
    return xp.concatenate([dy[..., 1:, :], xp.zeros_like(dy[..., :1, :])], axis=-2)


chunk = blocks.chunk(matrix)
chunk_vjp = blocks.chunk_vjp(matrix, matrix_vjp)
