"""Delta rule: a memory that predicts, and writes what it got wrong.

    e[t] = v[t] - S[t-1]^T k[t]                  predict; the error
    S[t] = S[t-1] + k[t] (beta[t] e[t])^T        write
    o[t] = scale S[t]^T q[t]                     read

Schlag, Irie and Schmidhuber, 2021, arXiv 2102.11174; the triangular system over tokens: Yang, Wang, Zhang, Shen and Kim, 2024,
arXiv 2406.06484.  Unit keys and beta = 1 replace what stood under k by v; if all keys are orthonormal and the first state is empty, that
is linear attention.  beta = 0 changes nothing.  Stable for unit keys and beta from 0 to 2.

q, k (..., T, K), v, o (..., T, V); beta (..., T) write strength, used as given; scale a number, None for K ** -0.5;
state (..., K, V), None for zeros.  For gradients: do like o, dfinal_state like state, None for zeros.
TypeError for what is missing or of a wrong type, ValueError for what does not fit; both name the argument (core.arguments).
"""
from ..core import blocks
from ..core.arguments import start, start_vjp
from ..core.arrays import dot, outer
from ..core.triangular import inverse

AXES = dict(q="T K", k="T K", v="T V", beta="T", state="K V")


def loop(q, k, v, *, beta, scale=None, state=None):
    """The definition, token by token."""
    xp, q, S = start(AXES, q, k, v, beta=beta, scale=scale, state=state)
    b = beta[..., None, None]                                                # T 1 1
    o = [q[..., :0, :] @ S]                                                  # 0 V   so that o has its shape if T = 0
    for t in range(q.shape[-2]):
        e = v[..., t, None, :] - k[..., t, None, :] @ S                      # 1 V
        S = S + outer(k[..., t, None, :], b[..., t, :, :] * e)               # K V
        o.append(q[..., t, None, :] @ S)                                     # 1 V
    return xp.concatenate(o, axis=-2), S                                     # T V, K V


def matrix(q, k, v, *, beta, scale=None, state=None):
    """All tokens at once: the writes d = beta e solve (I + L) d = beta (v - k S), L = beta k k^T below the diagonal.

    After that it is linear attention, with d for v.
    """
    xp, q, S = start(AXES, q, k, v, beta=beta, scale=scale, state=state)
    b = beta[..., None]                                                      # T 1
    kT = k.mT.copy()                                                         # K T   copied: with a view on the right, BLAS takes up to twice as long
    P, M = xp.tril(q @ kT), k @ kT                                           # T T, T T
    X = inverse(b * M)                                                       # T T   reads what is below the diagonal
    d = X @ (b * (v - k @ S))                                                # T V
    return q @ S + P @ d, S + kT @ d                                         # T V, K V


def loop_vjp(do, q, k, v, *, beta, scale=None, state=None, dfinal_state=None):
    """Gradients of sum(o do) + sum(final dfinal_state): the adjoint recurrence, last token first, with d = beta e.

        dS[t]   = dS[t] + q[t] do[t]^T           from the read;   dq[t] = S[t] do[t]
        dd[t]   = dS[t]^T k[t]                   from the write;   dbeta[t] = e[t] . dd[t]
        de[t]   = beta[t] dd[t]                  dv[t] = de[t],   dk[t] = dS[t] d[t] - S[t-1] de[t]
        dS[t-1] = dS[t] - k[t] de[t]^T           from the prediction
    """
    xp, q, S, do, dS, new, back = start_vjp(AXES, do, q, k, v, beta=beta, scale=scale, state=state, dfinal_state=dfinal_state)
    (dq, dk, dv, dbeta), kept = new(), []
    b = beta[..., None, None]                                                # T 1 1
    for t in range(q.shape[-2]):
        e = v[..., t, None, :] - k[..., t, None, :] @ S                      # 1 V
        kept.append((S, e))
        S = S + outer(k[..., t, None, :], b[..., t, :, :] * e)               # K V
        dq[..., t, :] = (do[..., t, None, :] @ S.mT)[..., 0, :]
    for t in reversed(range(q.shape[-2])):
        S, e = kept.pop()                                                    # K V, 1 V   the state that token t met
        bt, kt = b[..., t, :, :], k[..., t, None, :]                         # 1 1, 1 K
        dS = dS + outer(q[..., t, None, :], do[..., t, None, :])             # K V
        dd = kt @ dS                                                         # 1 V
        de = bt * dd                                                         # 1 V
        dk[..., t, :] = (bt * e @ dS.mT - de @ S.mT)[..., 0, :]
        dv[..., t, :] = de[..., 0, :]
        dbeta[..., t] = (e * dd).sum((-1, -2))
        dS = dS - outer(kt, de)                                              # K V
    return back(q=dq, k=dk, v=dv, beta=dbeta, state=dS)


def matrix_vjp(do, q, k, v, *, beta, scale=None, state=None, dfinal_state=None):
    """The same gradients, all tokens at once: linear attention backwards to dd, the triangular system by its transpose."""
    xp, q, S, do, dS, _, back = start_vjp(AXES, do, q, k, v, beta=beta, scale=scale, state=state, dfinal_state=dfinal_state)
    b = beta[..., None]                                                      # T 1
    kT = k.mT.copy()                                                         # K T   copied: with a view on the right, BLAS takes up to twice as long
    P, M = xp.tril(q @ kT), k @ kT                                           # T T, T T
    X = inverse(b * M)                                                       # T T   reads what is below the diagonal
    y = v - k @ S                                                            # T V   the error left by the first state alone
    d = X @ (b * y)                                                          # T V

    dd = X.mT @ (P.mT @ do + k @ dS)                                         # T V   (I + L)^T dd = what d meets later
    de = b * dd                                                              # T V
    dT = d.mT.copy()                                                         # V T   likewise
    dP, dL = do @ dT, xp.tril(-(dd @ dT), -1)                                # T T, T T
    dqk, dkk = xp.tril(dP), b * dL                                           # T T, T T   adjoints of q k^T and k k^T
    read, predict, write = do @ S.mT, de @ S.mT, d @ dS.mT                   # T K each   through the first state, and the last
    return back(q=dqk @ k + read,
                k=dqk.mT @ q + (dkk + dkk.mT) @ k - predict + write,
                v=de,
                beta=dot(dd, y) + dot(dL, M),
                state=q.mT @ do - kT @ de + dS)


chunk = blocks.chunk(matrix)
chunk_vjp = blocks.chunk_vjp(matrix, matrix_vjp)
