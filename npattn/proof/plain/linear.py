"""Linear attention as sums over tokens: what the memory holds after token i is written out, from the first token on.

    memory(i) = f[0] ... f[i] S  +  sum over j <= i of f[j+1] ... f[i] k[j] v[j]^T          f = e^g, by key channel
"""
import numpy as np


def linear_attention(q, k, v, *, scale, state):
    return reads(q, k, v, np.ones_like(k), scale, state)


def simple_gla(q, k, v, *, g, scale, state):
    return reads(q, k, v, np.exp(g)[:, None] * np.ones_like(k), scale, state)


def gla(q, k, v, *, g, scale, state):
    return reads(q, k, v, np.exp(g), scale, state)


def normalized_linear_attention(q, k, v, *, state, eps=0):
    """A weighted mean: the weights are q[i] · k[j], and what the state holds counts as one token more."""
    (S, z), o = state, []
    for i in range(len(q)):
        weights = [q[i] @ k[j] for j in range(i + 1)]
        total = sum(weights) + q[i] @ z + eps
        row = sum(w * x for w, x in zip(weights, v)) + q[i] @ S
        o.append(row / total if total != 0 else row)
    return o, (S + sum(np.outer(a, b) for a, b in zip(k, v)), z + k.sum(0))


def reads(q, k, v, f, scale, S):
    def memory(i):
        return f[:i + 1].prod(0)[:, None] * S + sum(f[j + 1:i + 1].prod(0)[:, None] * np.outer(k[j], v[j]) for j in range(i + 1))

    return [scale * (q[i] @ memory(i)) for i in range(len(q))], memory(len(q) - 1)
