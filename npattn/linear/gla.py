"""Gated linear attention: linear attention in which every key channel fades at its own rate.

    S[t] = diag(e^g[t]) S[t-1] + k[t] v[t]^T     decay, write
    o[t] = scale S[t]^T q[t]                     read

Yang, Wang, Shen, Panda and Kim, 2023, arXiv 2312.06635.  Equal gates in every channel make it simple_gla; g = 0 is linear attention.

q, k (..., T, K), v, o (..., T, V); g (..., T, K) natural log of the decay, at most 0; scale a number, None for K ** -0.5;
state (..., K, V), None for zeros.  For gradients: do like o, dfinal_state like state, None for zeros.
TypeError for what is missing or of a wrong type, ValueError for what does not fit; both name the argument (core.arguments).
"""
from ..core import blocks
from ..core.arguments import start, start_vjp
from ..core.arrays import dot, outer
from ..core.channel_decay import crossing, decay, scores, scores_vjp

AXES = dict(q="T K", k="T K", v="T V", g="T K", state="K V")


def loop(q, k, v, *, g, scale=None, state=None):
    """The definition, token by token."""
    xp, q, S = start(AXES, q, k, v, g=g, scale=scale, state=state)
    a = xp.exp(g)[..., None]                                                 # T K 1
    o = [q[..., :0, :] @ S]                                                  # 0 V   so that o has its shape if T = 0
    for t in range(q.shape[-2]):
        S = a[..., t, :, :] * S + outer(k[..., t, None, :], v[..., t, None, :]) # K V
        o.append(q[..., t, None, :] @ S)                                     # 1 V
    return xp.concatenate(o, axis=-2), S                                     # T V, K V


def matrix(q, k, v, *, g, scale=None, state=None):
    """All tokens at once: o = P v + (a q) S, with P[i, j] = sum over channels of q[i] k[j] e^(g[j+1] + ... + g[i]).

    Decays: D token to token, by halves, for `scores`; a first state to token, z token to last state, A first state to last.
    """
    xp, q, S = start(AXES, q, k, v, g=g, scale=scale, state=state)
    D, a, z, A = decay(g)                                                    # halves, T K, T K, K 1
    P = scores(q, k, D)                                                      # T T
    return (a * q) @ S + P @ v, A * S + (z * k).mT @ v                       # T V, K V


def loop_vjp(do, q, k, v, *, g, scale=None, state=None, dfinal_state=None):
    """Gradients of sum(o do) + sum(final dfinal_state): the adjoint recurrence, last token first.

        dS[t]   = dS[t] + q[t] do[t]^T           from the read;   dq[t] = S[t] do[t]
        dk[t]   = dS[t] v[t],   dv[t] = dS[t]^T k[t]      from the write
        dS[t-1] = diag(e^g[t]) dS[t]             from the decay;   dg[t] = sum over V of dS[t] (diag(e^g[t]) S[t-1])
    """
    xp, q, S, do, dS, new, back = start_vjp(AXES, do, q, k, v, g=g, scale=scale, state=state, dfinal_state=dfinal_state)
    (dq, dk, dv, dg), kept = new(), []
    a = xp.exp(g)[..., None]                                                 # T K 1
    for t in range(q.shape[-2]):
        F = a[..., t, :, :] * S                                              # K V
        S = F + outer(k[..., t, None, :], v[..., t, None, :])                # K V
        dq[..., t, :] = (do[..., t, None, :] @ S.mT)[..., 0, :]
        kept.append(F)
    for t in reversed(range(q.shape[-2])):
        dS = dS + outer(q[..., t, None, :], do[..., t, None, :])             # K V
        dk[..., t, :] = (v[..., t, None, :] @ dS.mT)[..., 0, :]
        dv[..., t, :] = (k[..., t, None, :] @ dS)[..., 0, :]
        dg[..., t, :] = dot(dS, kept.pop())
        dS = a[..., t, :, :] * dS                                            # K V
    return back(q=dq, k=dk, v=dv, g=dg, state=dS)


def matrix_vjp(do, q, k, v, *, g, scale=None, state=None, dfinal_state=None):
    """The same gradients, all tokens at once: the lines of `matrix` backwards."""
    xp, q, S, do, dS, _, back = start_vjp(AXES, do, q, k, v, g=g, scale=scale, state=state, dfinal_state=dfinal_state)
    D, a, z, A = decay(g)                                                    # halves, T K, T K, K 1
    P, dP = scores(q, k, D), do @ v.mT                                       # T T, T T
    dq, dk, dg_qk = scores_vjp(dP, q, k, D)                                  # T K each   through P
    read, write = a * (do @ S.mT), z * (v @ dS.mT)                           # T K, T K   through the first and the last state
    dg = crossing(dg_qk,                                                     # token to token
                  q * read,                                                  # first state to token
                  k * write,                                                 # token to last state
                  dot(A * S, dS))                                            # first state to last state
    return back(q=dq + read,
                k=dk + write,
                v=P.mT @ do + (z * k) @ dS,
                g=dg,
                state=(a * q).mT @ do + A * dS)


chunk = blocks.chunk(matrix)
chunk_vjp = blocks.chunk_vjp(matrix, matrix_vjp)
