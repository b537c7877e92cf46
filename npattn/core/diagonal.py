"""The master form of memories that fade channel by channel, and add.

    S[t] = diag(f[t]) S[t-1] + k[t] v[t]^T       decay, write
    o[t] = S[t]^T q[t]                           read

Every mechanism of this kind is a map onto it: what it calls key, value and decay goes in, and the gradients come back along the same map.
Here stands what all of them share, all tokens at once; each shows its own loop.

q, k (..., T, K), v, do (..., T, V); q is already scaled.  f (..., T, K), the decay factors e^g themselves, or (..., T, 1), one for all
channels; ones do not fade.  state, dfinal_state (..., K, V).  Leading axes broadcast, and gradients come in the broadcast shape: `back` of
start_vjp sums them.  Nothing is checked here: `start` did it.

Decays: D token to token, by halves, for `scores` (channel_decay); a first state to token, z token to last state, A first state to last.
"""
from .arrays import dot
from .channel_decay import crossing, products, scores, scores_vjp


def matrix(q, k, v, *, f, state):
    """Returns o (..., T, V) and the last state."""
    D, a, z, A = products(f)                                                 # halves, T K, T K, K 1   of one gate for all: T T, T 1, T 1, 1 1
    P = scores(q, k, D)                                                      # T T
    return (a * q) @ state + P @ v, A * state + (z * k).mT @ v               # T V, K V


def matrix_vjp(do, q, k, v, *, f, state, dfinal_state):
    """Gradients of sum(o do) + sum(last state dfinal_state), by name; that of the decays is `g`, for their logarithms, shaped like f."""
    D, a, z, A = products(f)                                                 # halves, T K, T K, K 1   of one gate for all: T T, T 1, T 1, 1 1
    P, dP = scores(q, k, D), do @ v.mT                                       # T T, T T
    dq, dk, dg_qk = scores_vjp(dP, q, k, D)                                  # T K each   through P
    read, write = a * (do @ state.mT), z * (v @ dfinal_state.mT)             # T K, T K   through the first and the last state
    return dict(q=dq + read,
                k=dk + write,
                v=P.mT @ do + (z * k) @ dfinal_state,
                g=crossing(dg_qk, q * read, k * write, dot(A * state, dfinal_state)),
                state=(a * q).mT @ do + A * dfinal_state)
