"""Delta rules as products of matrices: what token t does to the memory is to multiply it by a K × K matrix A, and to add beta k v^T.

    memory(i) = A[i] ... A[0] S  +  sum over j <= i of A[i] ... A[j+1] beta[j] k[j] v[j]^T

    A = (I - beta k k^T) diag(f)        decay first, f = e^g by key channel
    A = diag(f) - beta k k^T            predict first: what is taken off has not faded
"""
import numpy as np


def delta_rule(q, k, v, *, beta, scale, state):
    return reads(q, k, v, beta, [erase(k, beta, t) for t in range(len(k))], scale, state)


def gated_delta_rule(q, k, v, *, g, beta, scale, state):
    return reads(q, k, v, beta, [np.exp(g[t]) * erase(k, beta, t) for t in range(len(k))], scale, state)


def kda(q, k, v, *, g, beta, scale, state):
    return reads(q, k, v, beta, [erase(k, beta, t) * np.exp(g[t]) for t in range(len(k))], scale, state)


def gated_delta_rule_predict_first(q, k, v, *, g, beta, scale, state):
    identity = np.eye(k.shape[1], dtype=k.dtype)
    return reads(q, k, v, beta, [np.exp(g[t]) * identity - beta[t] * np.outer(k[t], k[t]) for t in range(len(k))], scale, state)


def erase(k, beta, t):
    return np.eye(k.shape[1], dtype=k.dtype) - beta[t] * np.outer(k[t], k[t])


def reads(q, k, v, beta, A, scale, S):
    def memory(i):
        held, through = 0 * S, np.eye(k.shape[1], dtype=k.dtype)             # K V, K K: the product of A from i down to behind j
        for j in range(i, -1, -1):
            held = held + through @ np.outer(beta[j] * k[j], v[j])
            through = through @ A[j]
        return held + through @ S

    return [scale * (q[i] @ memory(i)) for i in range(len(q))], memory(len(q) - 1)
