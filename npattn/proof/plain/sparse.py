"""Sparse attention: the set of keys that a query keeps is made first, then it is softmax attention over that set."""
import numpy as np

from .softmax import mean


def block_topk_attention(q, k, v, *, scale, state, block_size, topk, causal=False):
    keys, values, n, o = [*state[0], *k], [*state[1], *v], len(state[0]), []
    blocks = [range(start, min(start + block_size, len(keys))) for start in range(0, len(keys), block_size)]
    for i, query in enumerate(q):
        score = [scale * (query @ key) for key in keys]
        own = (n + i) // block_size
        others = [b for b in range(len(blocks)) if not causal or b < own]
        means = [sum(score[j] for j in block) / len(block) for block in blocks]
        others.sort(key=lambda b: (-means[b], b))                            # highest mean score first; of equal ones the lower
        kept = [*others[:topk - 1], own] if causal else others[:topk]
        seen = [j for b in kept if b < len(blocks) for j in blocks[b] if not causal or j <= n + i]
        o.append(mean({j: score[j] for j in seen}, values, v.shape[1]))
    return o, (np.array(keys).reshape(-1, k.shape[1]), np.array(values).reshape(-1, v.shape[1]))
