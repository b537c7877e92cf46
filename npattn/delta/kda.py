"""Kimi Delta Attention: the delta rule on a memory in which every key channel fades at its own rate.

    F[t] = diag(e^g[t]) S[t-1]                   decay
    e[t] = v[t] - F[t]^T k[t]                    predict from the decayed state; the error
    S[t] = F[t] + k[t] (beta[t] e[t])^T          write
    o[t] = scale S[t]^T q[t]                     read

Kimi Team, 2025, arXiv 2510.26692: Kimi Linear.  Equal gates in every channel make it the gated delta rule; g = 0 the delta rule;
beta = 0 only fades.

q, k (..., T, K), v, o (..., T, V); g (..., T, K) natural log of the decay, at most 0; beta (..., T) write strength, used as given;
scale a number, None for K ** -0.5; state (..., K, V), None for zeros.  For gradients: do like o, dfinal_state like state, None for zeros.
TypeError for what is missing or of a wrong type, ValueError for what does not fit; both name the argument (core.arguments).
"""
from ..core import blocks
from ..core.arguments import start, start_vjp
from ..core.arrays import dot, outer
from ..core.channel_decay import crossing, decay, scores, scores_vjp
from ..core.triangular import inverse

AXES = dict(q="T K", k="T K", v="T V", g="T K", beta="T", state="K V")


def loop(q, k, v, *, g, beta, scale=None, state=None):
    """The definition, token by token."""
    xp, q, S = start(AXES, q, k, v, g=g, beta=beta, scale=scale, state=state)
    a, b = xp.exp(g)[..., None], beta[..., None, None]                       # T K 1, T 1 1
    o = [q[..., :0, :] @ S]                                                  # 0 V   so that o has its shape if T = 0
    for t in range(q.shape[-2]):
        F = a[..., t, :, :] * S                                              # K V
        e = v[..., t, None, :] - k[..., t, None, :] @ F                      # 1 V
        S = F + outer(k[..., t, None, :], b[..., t, :, :] * e)               # K V
        o.append(q[..., t, None, :] @ S)                                     # 1 V
    return xp.concatenate(o, axis=-2), S                                     # T V, K V


def matrix(q, k, v, *, g, beta, scale=None, state=None):
    """All tokens at once: the writes d = beta e solve (I + L) d = beta (v - (a k) S), L = beta M below the diagonal,
    M[i, j] = k[i] . k[j], decayed from j to i.

    Decays: D token to token, by halves, for `scores`; a first state to token, z token to last state, A first state to last.
    """
    xp, q, S = start(AXES, q, k, v, g=g, beta=beta, scale=scale, state=state)
    D, a, z, A = decay(g)                                                    # halves, T K, T K, K 1
    b = beta[..., None]                                                      # T 1
    P, M = scores(q, k, D), scores(k, k, D)                                  # T T, T T
    X = inverse(b * M)                                                       # T T   reads what is below the diagonal
    d = X @ (b * (v - (a * k) @ S))                                          # T V
    return (a * q) @ S + P @ d, A * S + (z * k).mT @ d                       # T V, K V


def loop_vjp(do, q, k, v, *, g, beta, scale=None, state=None, dfinal_state=None):
    """Gradients of sum(o do) + sum(final dfinal_state): the adjoint recurrence, last token first, with d = beta e.

        dS[t]   = dS[t] + q[t] do[t]^T           from the read;   dq[t] = S[t] do[t]
        dd[t]   = dS[t]^T k[t]                   from the write;   dbeta[t] = e[t] . dd[t]
        de[t]   = beta[t] dd[t]                  dv[t] = de[t],   dk[t] = dS[t] d[t] - F[t] de[t]
        dF[t]   = dS[t] - k[t] de[t]^T           from the write and the prediction;   dg[t] = sum over V of dF[t] F[t]
        dS[t-1] = diag(e^g[t]) dF[t]             from the decay
    """
    xp, q, S, do, dS, new, back = start_vjp(AXES, do, q, k, v, g=g, beta=beta, scale=scale, state=state, dfinal_state=dfinal_state)
    (dq, dk, dv, dg, dbeta), kept = new(), []
    a, b = xp.exp(g)[..., None], beta[..., None, None]                       # T K 1, T 1 1
    for t in range(q.shape[-2]):
        F = a[..., t, :, :] * S                                              # K V
        e = v[..., t, None, :] - k[..., t, None, :] @ F                      # 1 V
        kept.append((F, e))
        S = F + outer(k[..., t, None, :], b[..., t, :, :] * e)               # K V
        dq[..., t, :] = (do[..., t, None, :] @ S.mT)[..., 0, :]
    for t in reversed(range(q.shape[-2])):
        F, e = kept.pop()                                                    # K V, 1 V
        bt, kt = b[..., t, :, :], k[..., t, None, :]                         # 1 1, 1 K
        dS = dS + outer(q[..., t, None, :], do[..., t, None, :])             # K V
        dd = kt @ dS                                                         # 1 V
        de = bt * dd                                                         # 1 V
        dF = dS - outer(kt, de)                                              # K V
        dk[..., t, :] = (bt * e @ dS.mT - de @ F.mT)[..., 0, :]
        dv[..., t, :] = de[..., 0, :]
        dg[..., t, :] = dot(dF, F)
        dbeta[..., t] = (e * dd).sum((-1, -2))
        dS = a[..., t, :, :] * dF                                            # K V
    return back(q=dq, k=dk, v=dv, g=dg, beta=dbeta, state=dS)


def matrix_vjp(do, q, k, v, *, g, beta, scale=None, state=None, dfinal_state=None):
    """The same gradients, all tokens at once: the lines of `matrix` backwards, the triangular system by its transpose."""
    xp, q, S, do, dS, _, back = start_vjp(AXES, do, q, k, v, g=g, beta=beta, scale=scale, state=state, dfinal_state=dfinal_state)
    D, a, z, A = decay(g)                                                    # halves, T K, T K, K 1
    b = beta[..., None]                                                      # T 1
    P, M = scores(q, k, D), scores(k, k, D)                                  # T T, T T
    X = inverse(b * M)                                                       # T T   reads what is below the diagonal
    y = v - (a * k) @ S                                                      # T V   the error left by the first state alone
    d = X @ (b * y)                                                          # T V

    dd = X.mT @ (P.mT @ do + (z * k) @ dS)                                   # T V   (I + L)^T dd = what d meets later
    de = b * dd                                                              # T V
    dP, dL = do @ d.mT, xp.tril(-(dd @ d.mT), -1)                            # T T, T T
    dq, dk, dg_qk = scores_vjp(dP, q, k, D)                                  # T K each   through P
    dk_i, dk_j, dg_kk = scores_vjp(b * dL, k, k, D)                          # T K each   through M: k as row and as column
    read, predict, write = a * (do @ S.mT), a * (de @ S.mT), z * (d @ dS.mT) # T K each   through the first state, and the last
    dg = crossing(dg_qk + dg_kk,                                             # token to token
                  q * read - k * predict,                                    # first state to token
                  k * write,                                                 # token to last state
                  dot(A * S, dS))                                            # first state to last state
    return back(q=dq + read,
                k=dk + dk_i + dk_j - predict + write,
                v=de,
                g=dg,
                beta=dot(dd, y) + dot(dL, M),
                state=(a * q).mT @ do - (a * k).mT @ de + A * dS)


chunk = blocks.chunk(matrix)
chunk_vjp = blocks.chunk_vjp(matrix, matrix_vjp)
