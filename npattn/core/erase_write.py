"""The master form of memories that fade, erase what they predict under one key, and write under another.

    F[t] = diag(f[t]) S[t-1]                     decay
    u[t] = v[t] - F[t]^T e[t]                    erase: what the decayed state holds under the erase key e, off the value
    S[t] = F[t] + k[t] u[t]^T                    write
    o[t] = S[t]^T q[t]                           read

Every mechanism of this kind is a map onto it, gates of values and keys already multiplied in: the gated delta rule is e = beta k,
v = beta v.  The gradients come back along the same map.  Here stands what all of them share; each shows its own loop.  All tokens at once,

    (I + L) u = v - (a e) S,   L[i, j] = sum over channels of e[i] k[j] f[j+1] ... f[i] below the diagonal,

is a unit lower triangular system; after it, u is to k what v is in the diagonal form.

q, e, k (..., T, K), v, do (..., T, V); q is already scaled.  f (..., T, K), the decay factors e^g themselves, or (..., T, 1), one for all
channels; ones do not fade.  state, dfinal_state (..., K, V).  Leading axes broadcast, and gradients come in the broadcast shape: `back` of
start_vjp sums them.  Nothing is checked here: `start` did it.

Decays: D token to token, by halves, for `scores` (channel_decay); a first state to token, z token to last state, A first state to last.
"""
from .arrays import array_module, dot
from .channel_decay import crossing, products, scores, scores_vjp
from .triangular import inverse


def matrix(q, k, v, *, e, f, state):
    """Returns o (..., T, V) and the last state."""
    D, a, z, A = products(f)                                                 # halves, T K, T K, K 1   of one gate for all: T T, T 1, T 1, 1 1
    P, L = scores(q, k, D), scores(e, k, D)                                  # T T, T T
    u = inverse(L) @ (v - (a * e) @ state)                                   # T V   reads what is below the diagonal of L
    return (a * q) @ state + P @ u, A * state + (z * k).mT @ u               # T V, K V


def matrix_vjp(do, q, k, v, *, e, f, state, dfinal_state):
    """Gradients of sum(o do) + sum(last state dfinal_state), by name; that of the decays is `g`, for their logarithms, shaped like f."""
    D, a, z, A = products(f)                                                 # halves, T K, T K, K 1   of one gate for all: T T, T 1, T 1, 1 1
    P, L = scores(q, k, D), scores(e, k, D)                                  # T T, T T
    X = inverse(L)                                                           # T T   reads what is below the diagonal
    u = X @ (v - (a * e) @ state)                                            # T V

    du = X.mT @ (P.mT @ do + (z * k) @ dfinal_state)                         # T V   (I + L)^T du = what u meets later; dv = du
    dP, dL = do @ u.mT, array_module(q).tril(-(du @ u.mT), -1)               # T T, T T
    dq, dk, dg_qk = scores_vjp(dP, q, k, D)                                  # T K each   through P
    de, dk_e, dg_ek = scores_vjp(dL, e, k, D)                                # T K each   through L
    read, predict = a * (do @ state.mT), a * (du @ state.mT)                 # T K, T K   through the first state
    write = z * (u @ dfinal_state.mT)                                        # T K        and the last
    return dict(q=dq + read,
                k=dk + dk_e + write,
                v=du,
                e=de - predict,
                g=crossing(dg_qk + dg_ek, q * read - e * predict, k * write, dot(A * state, dfinal_state)),
                state=(a * q).mT @ do - (a * e).mT @ du + A * dfinal_state)
