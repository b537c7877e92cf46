"""Softmax attention as a weighted mean over the set of keys that a query may see, key by key."""
import numpy as np


def softmax_attention(q, k, v, *, scale, state, causal=True, mask=None, bias=None, window=None):
    keys, values, n, o = [*state[0], *k], [*state[1], *v], len(state[0]), []
    for i, query in enumerate(q):
        scores = {}
        for j, key in enumerate(keys):
            later, far = j > n + i, window is not None and abs(n + i - j) >= window
            if not (later and causal or far or mask is not None and not mask[i][j]):
                scores[j] = scale * (query @ key) + (0 if bias is None else bias[i][j])
        o.append(mean(scores, values, v.shape[1]))
    return o, (np.array(keys).reshape(-1, k.shape[1]), np.array(values).reshape(-1, v.shape[1]))


def mean(scores, values, width):
    """The mean of values[j], weighed by e^scores[j]; zeros if there is nothing to weigh."""
    top = max(scores.values(), default=0)
    weights = {j: np.exp(s - top) for j, s in scores.items() if s > -np.inf}
    return sum((w * values[j] for j, w in weights.items()), np.zeros(width)) / (sum(weights.values()) or 1)
