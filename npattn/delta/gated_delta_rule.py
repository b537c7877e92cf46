"""Gated delta rule: a memory that fades, predicts, and writes what it got wrong.

    F[t] = e^g[t] S[t-1]                         decay
    e[t] = v[t] - F[t]^T k[t]                    predict from the decayed state; the error
    S[t] = F[t] + k[t] (beta[t] e[t])^T          write
    o[t] = scale S[t]^T q[t]                     read

Yang, Kautz and Hatamizadeh, 2024, arXiv 2412.06464: Gated DeltaNet, the mixer of Qwen3-Next and Qwen3.5.
g = 0 is the delta rule; beta = 0 only fades; equal gates in every channel make KDA the same.

q, k (..., T, K), v (..., T, V); g (..., T) natural log of the decay, at most 0; beta (..., T) write strength, used as given; state (..., K, V).
"""
from ..core import blocks
from ..core.arguments import start, start_vjp
from ..core.decay import crossing, decay
from ..core.triangular import inverse

AXES = dict(q="T K", k="T K", v="T V", g="T", beta="T", state="K V")


def loop(q, k, v, *, g, beta, scale=None, state=None):
    """The definition, token by token."""
    xp, q, S = start(AXES, q, k, v, g=g, beta=beta, scale=scale, state=state)
    o, a, b = [q[..., :0, :] @ S], xp.exp(g)[..., None, None], beta[..., None, None]
    for t in range(q.shape[-2]):
        F = a[..., t, :, :] * S                                              # K V
        e = v[..., t, None, :] - k[..., t, None, :] @ F                      # 1 V
        S = F + k[..., t, :, None] * (b[..., t, :, :] * e)                   # K V
        o.append(q[..., t, None, :] @ S)                                     # 1 V
    return xp.concatenate(o, axis=-2), S                                     # T V, K V


def matrix(q, k, v, *, g, beta, scale=None, state=None):
    """All tokens at once: the errors solve (I + L) d = beta (v - a k S), L = beta k k^T D below the diagonal, and d = beta e."""
    xp, q, S = start(AXES, q, k, v, g=g, beta=beta, scale=scale, state=state)
    D, a, z, A = decay(g)                                                    # T T, T 1, T 1, 1 1
    b = beta[..., None]                                                      # T 1
    X = inverse(b * (k @ k.mT * D))                                          # T T   reads what is below the diagonal
    d = X @ (b * (v - a * (k @ S)))                                          # T V
    o = a * (q @ S) + (q @ k.mT * D) @ d                                     # T V
    return o, A * S + (z * k).mT @ d                                         # T V, K V


def loop_vjp(do, q, k, v, *, g, beta, scale=None, state=None, dfinal_state=None):
    """Gradients of sum(o do) + sum(final dfinal_state): the adjoint recurrence, last token first.

        dS[t]   = dS[t] + q[t] do[t]^T           from the read;   dq[t] = S[t] do[t]
        dd[t]   = dS[t]^T k[t]                   from the write of d = beta e;   dbeta[t] = e[t] . dd[t]
        de[t]   = beta[t] dd[t]                  dv[t] = de[t],   dk[t] = dS[t] d[t] - F[t] de[t]
        dF[t]   = dS[t] - k[t] de[t]^T           from the write and the prediction;   dg[t] = sum(dF[t] F[t])
        dS[t-1] = e^g[t] dF[t]                   from the decay
    """
    xp, q, S, do, dS, new, back = start_vjp(AXES, do, q, k, v, g=g, beta=beta, scale=scale, state=state, dfinal_state=dfinal_state)
    a, b, kept = xp.exp(g)[..., None, None], beta[..., None, None], []
    for t in range(q.shape[-2]):
        F = a[..., t, :, :] * S                                              # K V
        e = v[..., t, None, :] - k[..., t, None, :] @ F                      # 1 V
        S = F + k[..., t, :, None] * (b[..., t, :, :] * e)                   # K V
        kept.append((F, e, S))
    dq, dk, dv, dg, dbeta = new()
    for t in reversed(range(q.shape[-2])):
        F, e, S = kept.pop()
        bt, kt, dot = b[..., t, :, :], k[..., t, None, :], do[..., t, None, :]
        dS = dS + q[..., t, :, None] * dot                                   # K V
        dd = kt @ dS                                                         # 1 V
        de = bt * dd                                                         # 1 V
        dF = dS - kt.mT * de                                                 # K V
        dq[..., t, :] = (dot @ S.mT)[..., 0, :]
        dk[..., t, :] = (bt * e @ dS.mT - de @ F.mT)[..., 0, :]
        dv[..., t, :] = de[..., 0, :]
        dbeta[..., t] = (e * dd).sum((-1, -2))
        dg[..., t] = (dF * F).sum((-1, -2))
        dS = a[..., t, :, :] * dF                                            # K V
    return back(q=dq, k=dk, v=dv, g=dg, beta=dbeta, state=dS)


def matrix_vjp(do, q, k, v, *, g, beta, scale=None, state=None, dfinal_state=None):
    """The same gradients, all tokens at once: the lines of `matrix` backwards, the triangular system by its transpose."""
    xp, q, S, do, dS, _, back = start_vjp(AXES, do, q, k, v, g=g, beta=beta, scale=scale, state=state, dfinal_state=dfinal_state)
    D, a, z, A = decay(g)
    b = beta[..., None]                                                      # T 1
    P, M = q @ k.mT * D, xp.tril(k @ k.mT * D, -1)                           # T T
    X = inverse(b * M)                                                       # T T
    y = v - a * (k @ S)                                                      # T V   the error left by the first state alone
    d = X @ (b * y)                                                          # T V

    dd = X.mT @ (P.mT @ do + z * (k @ dS))                                   # T V   (I + L)^T dd = what d meets later
    de = b * dd                                                              # T V
    dP, dL = do @ d.mT, -(dd @ d.mT)                                         # T T
    dqk, dkk = dP * D, xp.tril(b * dL * D, -1)                               # T T   adjoints of q k^T and k k^T
    dqS, dkS, dkz = a * do @ S.mT, a * de @ S.mT, z * (d @ dS.mT)            # T K, T K, T K   through the two states

    dg = crossing(dP * P + b * dL * M,                                       # token to token
                  (q * dqS - k * dkS).sum(-1),                               # first state to token
                  (k * dkz).sum(-1),                                         # token to last state
                  (A * S * dS).sum((-1, -2), keepdims=True)[..., 0])         # first state to last state
    return back(q=dqk @ k + dqS,
                k=dqk.mT @ q + (dkk + dkk.mT) @ k - dkS + dkz,
                v=de,
                g=dg,
                beta=(dd * y).sum(-1) + (dL * M).sum(-1),
                state=q.mT @ (a * do) - k.mT @ (a * de) + A * dS)


chunk = blocks.chunk(matrix)
chunk_vjp = blocks.chunk_vjp(matrix, matrix_vjp)
