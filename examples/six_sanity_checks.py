"""Six checks of linear and sparse attention, as figures: what must be equal is, what must differ does."""
import numpy as np

from npattn import block_topk_attention, delta_rule, linear_attention
from npattn.core import erase_write

rng = np.random.default_rng(0)
T, d = 13, 6
q, k, v = rng.standard_normal((3, T, d))
largest = lambda a, b: np.abs(a - b).max()

print("1  chunks change nothing: linear attention, loop against chunk")
o, S = linear_attention.loop(q, k, v, scale=1)
by_chunk = {C: linear_attention.chunk(q, k, v, scale=1, chunk_size=C)[0] for C in (1, 4, 7, T)}
for C, x in by_chunk.items():
    print(f"      C = {C:2}   largest difference {largest(x, o):.1e}")
    assert largest(x, o) < 1e-12

print("2  nor does it matter which chunk size")
spread = max(largest(x, y) for x in by_chunk.values() for y in by_chunk.values())
print(f"      between any two   {spread:.1e}")
assert spread < 1e-12

print("3  the state has the same size after every token, its norm grows")
state = None
for t in range(T):
    _, state = linear_attention.loop(q[t:t + 1], k[t:t + 1], v[t:t + 1], scale=1, state=state)
    assert state.shape == (d, d)
    if t in (0, T // 2, T - 1):
        print(f"      after {t + 1:2} tokens   shape {state.shape}   norm {np.linalg.norm(state):.2f}")
assert largest(state, S) < 1e-12

print("4  the delta rule without its erase term is accumulation")
# In the master form decay, erase, write the delta rule with beta = 1 has k for its erase key; 0 in its place leaves the term out.
zeros, no_decay, S0 = np.zeros_like(k), np.ones((T, 1)), np.zeros((d, d))
with_erase, _ = erase_write.matrix(q, k, v, e=k, f=no_decay, state=S0)
without, S_without = erase_write.matrix(q, k, v, e=zeros, f=no_decay, state=S0)
print(f"      with it, the delta rule: {largest(with_erase, delta_rule.loop(q, k, v, beta=np.ones(T), scale=1)[0]) / np.abs(with_erase).max():.1e}"
      f"   without: {largest(without, o):.1e}, state {largest(S_without, S):.1e}")
assert np.allclose(with_erase, delta_rule.loop(q, k, v, beta=np.ones(T), scale=1)[0], rtol=1e-9)
assert largest(without, o) < 1e-12 and largest(S_without, S) < 1e-12

print("5  unit keys that are not orthogonal are erased; orthonormal ones are not")
unit = k / np.linalg.norm(k, axis=-1, keepdims=True)
orthonormal = np.linalg.qr(rng.standard_normal((d, d)))[0]
apart = largest(delta_rule.loop(q, unit, v, beta=np.ones(T), scale=1)[0], linear_attention.loop(q, unit, v, scale=1)[0])
equal = largest(delta_rule.loop(q[:d], orthonormal, v[:d], beta=np.ones(d), scale=1)[0], linear_attention.loop(q[:d], orthonormal, v[:d], scale=1)[0])
print(f"      random unit keys {apart:.2f}   orthonormal keys {equal:.1e}")
assert apart > 1e-3 and equal < 1e-5

print("6  block attention keeps topk blocks a row, and its rows sum to one")
for T in (12, 13):                                       # 13 leaves a last block of one token
    q, k = rng.standard_normal((2, T, d))
    kept = block_topk_attention.select(q, k, block_size=4, topk=2, causal=False)
    weights, _ = block_topk_attention.loop(q, k, np.eye(T), block_size=4, topk=2)            # values e_j: the output is the row of weights
    print(f"      T = {T}   blocks a row {sorted(set(kept.sum(-1).tolist()))}   row sums 1 within {largest(weights.sum(-1), 1):.1e}")
    assert (kept.sum(-1) == 2).all() and largest(weights.sum(-1), 1) < 1e-12
    assert (weights[~np.repeat(kept, 4, axis=-1)[:, :T]] == 0).all()
print("all six hold")
