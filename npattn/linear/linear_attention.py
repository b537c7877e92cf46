"""Linear attention: a memory that adds and forgets nothing.

    S[t] = S[t-1] + k[t] v[t]^T                  write
    o[t] = scale S[t]^T q[t]                     read

Katharopoulos, Vyas, Pappas and Fleuret, 2020, arXiv 2006.16236, without the normaliser.  A feature map, if any, is applied to q and k
before.  It is simple_gla with g = 0, and the delta rule on orthonormal keys with beta = 1 and an empty first state.

q, k (..., T, K), v, o (..., T, V); scale a number, None for K ** -0.5; state (..., K, V), None for zeros.
For gradients: do like o, dfinal_state like state, None for zeros.
TypeError for what is missing or of a wrong type, ValueError for what does not fit; both name the argument (core.arguments).
"""
from ..core import blocks
from ..core.arguments import start, start_vjp
from ..core.arrays import outer

AXES = dict(q="T K", k="T K", v="T V", state="K V")


def loop(q, k, v, *, scale=None, state=None):
    """The definition, token by token."""
    xp, q, S = start(AXES, q, k, v, scale=scale, state=state)
    o = [q[..., :0, :] @ S]                                                  # 0 V   so that o has its shape if T = 0
    for t in range(q.shape[-2]):
        S = S + outer(k[..., t, None, :], v[..., t, None, :])                # K V
        o.append(q[..., t, None, :] @ S)                                     # 1 V
    return xp.concatenate(o, axis=-2), S                                     # T V, K V


def matrix(q, k, v, *, scale=None, state=None):
    """All tokens at once: every token reads the first state, and what the tokens up to itself wrote."""
    xp, q, S = start(AXES, q, k, v, scale=scale, state=state)
    kT = k.mT.copy()                                                         # K T   copied: with a view on the right, BLAS takes up to twice as long
    P = xp.tril(q @ kT)                                                      # T T
    return q @ S + P @ v, S + kT @ v                                         # T V, K V


def loop_vjp(do, q, k, v, *, scale=None, state=None, dfinal_state=None):
    """Gradients of sum(o do) + sum(final dfinal_state): dq on the way forwards, where the states are, the rest on the way back.

        dq[t]   = S[t] do[t]                     from the read, with the states of `loop`
        dS[t]   = dS[t] + q[t] do[t]^T           from the read, last token first
        dk[t]   = dS[t] v[t],   dv[t] = dS[t]^T k[t]      from the write
        dS[t-1] = dS[t]                          nothing is forgotten, backwards either
    """
    xp, q, S, do, dS, new, back = start_vjp(AXES, do, q, k, v, scale=scale, state=state, dfinal_state=dfinal_state)
    dq, dk, dv = new()
    for t in range(q.shape[-2]):
        S = S + outer(k[..., t, None, :], v[..., t, None, :])                # K V
        dq[..., t, :] = (do[..., t, None, :] @ S.mT)[..., 0, :]
    for t in reversed(range(q.shape[-2])):
        dS = dS + outer(q[..., t, None, :], do[..., t, None, :])             # K V
        dk[..., t, :] = (v[..., t, None, :] @ dS.mT)[..., 0, :]
        dv[..., t, :] = (k[..., t, None, :] @ dS)[..., 0, :]
    return back(q=dq, k=dk, v=dv, state=dS)


def matrix_vjp(do, q, k, v, *, scale=None, state=None, dfinal_state=None):
    """The same gradients, all tokens at once: a token's k and v gather from itself and later tokens, by transposes."""
    xp, q, S, do, dS, _, back = start_vjp(AXES, do, q, k, v, scale=scale, state=state, dfinal_state=dfinal_state)
    P, dqk = xp.tril(q @ k.mT), xp.tril(do @ v.mT)                           # T T, T T   dqk: adjoint of q k^T
    read, write = do @ S.mT, v @ dS.mT                                       # T K, T K   through the first and the last state
    return back(q=dqk @ k + read,
                k=dqk.mT @ q + write,
                v=P.mT @ do + k @ dS,
                state=q.mT @ do + dS)


chunk = blocks.chunk(matrix)
chunk_vjp = blocks.chunk_vjp(matrix, matrix_vjp)
