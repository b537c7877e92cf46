"""Normalised linear attention: a weighted mean of the values, with weights q[i] . k[j].

    S[t] = S[t-1] + k[t] v[t]^T                  write
    z[t] = z[t-1] + k[t]                         the sum of the keys
    o[t] = S[t]^T q[t] / (z[t] . q[t] + eps)     read, divided by the sum of the weights

Katharopoulos, Vyas, Pappas and Fleuret, 2020, arXiv 2006.16236.  q and k are feature maps of queries and keys (core.feature_maps),
usually positive; with exp(q . k) in place of q . k it would be softmax attention.

There is no scale: it cancels.  A row that is 0 / 0, one that has met nothing, gives 0 and passes no gradient.  Any other x / 0 is not
hidden: floats give infinities and NumPy's warning, fractions ZeroDivisionError.  flash-linear-attention computes
scale S^T q / (scale z . q + 1e-10): the same as eps = 1e-10 / scale here, with its default scale 1e-10 K^0.5.

q, k (..., T, K), v, o (..., T, V); eps one number, added to the denominator; state Normalized(S (..., K, V), z (..., K)), None for zeros.
For gradients: do like o, dfinal_state like state, None for zeros.
TypeError for what is missing or of a wrong type, ValueError for what does not fit; both name the argument (core.arguments).
"""
from ..core import blocks
from ..core.arguments import start, start_vjp
from ..core.arrays import outer
from ..core.kinds import number
from ..core.states import Normalized

AXES = dict(q="T K", k="T K", v="T V", state=Normalized("K V", "K"))


def loop(q, k, v, *, eps=0, state=None):
    """The definition, token by token."""
    xp, q, (S, z) = start(AXES, q, k, v, scale=1, state=state)
    eps = number("eps", eps, q)
    o = [q[..., :0, :] @ S]                                                  # 0 V   so that o has its shape if T = 0
    for t in range(q.shape[-2]):
        S = S + outer(k[..., t, None, :], v[..., t, None, :])                # K V
        z = z + k[..., t, :]                                                 # K
        o.append(divide(q[..., t, None, :] @ S, q[..., t, None, :] @ z[..., None] + eps))          # 1 V
    return xp.concatenate(o, axis=-2), Normalized(S, z)                      # T V, K V and K


def matrix(q, k, v, *, eps=0, state=None):
    """All tokens at once: the weights P, and their row sums."""
    xp, q, (S, z) = start(AXES, q, k, v, scale=1, state=state)
    kT = k.mT.copy()                                                         # K T   copied: with a view on the right, BLAS takes up to twice as long
    P = xp.tril(q @ kT)                                                      # T T
    n = P.sum(-1, keepdims=True) + q @ z[..., None] + number("eps", eps, q)  # T 1
    return divide(q @ S + P @ v, n), Normalized(S + kT @ v, z + k.sum(-2))   # T V, K V and K


def loop_vjp(do, q, k, v, *, eps=0, state=None, dfinal_state=None):
    """Gradients of sum(o do) + sum(final dfinal_state), with x = S^T q and n = z . q + eps, so that o = x / n.

        dx[t]   = do[t] / n[t],   dn[t] = -dx[t] . o[t]            from the division, forwards with the states of `loop`
        dq[t]   = S[t] dx[t] + z[t] dn[t]                          from the read
        dS[t]   = dS[t] + q[t] dx[t]^T,   dz[t] = dz[t] + q[t] dn[t]        from the read, last token first
        dk[t]   = dS[t] v[t] + dz[t],   dv[t] = dS[t]^T k[t]       from the write
        dS[t-1] = dS[t],   dz[t-1] = dz[t]
    """
    xp, q, (S, z), do, (dS, dz), new, back = start_vjp(AXES, do, q, k, v, scale=1, state=state, dfinal_state=dfinal_state)
    (dq, dk, dv), kept, eps = new(), [], number("eps", eps, q)
    for t in range(q.shape[-2]):
        S = S + outer(k[..., t, None, :], v[..., t, None, :])                # K V
        z = z + k[..., t, :]                                                 # K
        dx, dn = divide_vjp(do[..., t, None, :], q[..., t, None, :] @ S, q[..., t, None, :] @ z[..., None] + eps)  # 1 V, 1 1
        dq[..., t, :] = (dx @ S.mT)[..., 0, :] + dn[..., 0] * z
        kept.append((dx, dn))
    for t in reversed(range(q.shape[-2])):
        dx, dn = kept.pop()
        dS = dS + outer(q[..., t, None, :], dx)                              # K V
        dz = dz + q[..., t, :] * dn[..., 0]                                  # K
        dk[..., t, :] = (v[..., t, None, :] @ dS.mT)[..., 0, :] + dz
        dv[..., t, :] = (k[..., t, None, :] @ dS)[..., 0, :]
    return back(q=dq, k=dk, v=dv, state=Normalized(dS, dz))


def matrix_vjp(do, q, k, v, *, eps=0, state=None, dfinal_state=None):
    """The same gradients, all tokens at once: a weight is used twice in its row, by the sum of the values and by the sum of the weights."""
    xp, q, (S, z), do, (dS, dz), _, back = start_vjp(AXES, do, q, k, v, scale=1, state=state, dfinal_state=dfinal_state)
    P = xp.tril(q @ k.mT)                                                    # T T
    n = P.sum(-1, keepdims=True) + q @ z[..., None] + number("eps", eps, q)  # T 1
    dx, dn = divide_vjp(do, q @ S + P @ v, n)                                # T V, T 1
    dqk = xp.tril(dx @ v.mT + dn)                                            # T T   adjoint of q k^T
    read = dx @ S.mT + dn * z[..., None, :]                                  # T K   through the first state
    write = v @ dS.mT + dz[..., None, :]                                     # T K   through the last state
    return back(q=dqk @ k + read,
                k=dqk.mT @ q + write,
                v=P.mT @ dx + k @ dS,
                state=Normalized(dS + q.mT @ dx, dz + (q * dn).sum(-2)))


def divide(x, n):
    """x / n by rows, 0 for a row that is 0 / 0:  x (..., T, V), n (..., T, 1).

    >>> import numpy as np
    >>> print(divide(np.array([[1., 3], [0, 0]]), np.array([[2.], [0]])))
    [[0.5 1.5]
     [0.  0. ]]
    """
    none = nothing(x, n)                                                     # T 1
    return x * ~none / (n + none)                                            # T V   x is 0 there; the factor stops its derivative too


def divide_vjp(do, x, n):
    """(dx, dn): do / n and -do . o / n, both 0 for a row that is 0 / 0."""
    none = nothing(x, n)                                                     # T 1
    n = n + none                                                             # T 1
    dx = do * ~none / n                                                      # T V
    return dx, -(dx * x / n).sum(-1, keepdims=True)                          # T V, T 1


def nothing(x, n):
    """The rows that are 0 / 0."""
    return (n == 0) & (x == 0).all(-1, keepdims=True)


chunk = blocks.chunk(matrix)
chunk_vjp = blocks.chunk_vjp(matrix, matrix_vjp)
