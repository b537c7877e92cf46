"""Block top-k attention: softmax over the blocks of keys whose mean scores highest.

    r[b]    = mean of k[j] over block b          block b: positions b B … b B + B - 1 of the keys there are, B = block_size
    c[i, b] = scale q[i] · r[b]                  so the mean of the block's scores
    s[i, j] = scale q[i] · k[j]                  -inf where query i does not keep the block of j
    p[i, j] = e^s[i, j] / sum_j e^s[i, j],   o[i] = sum_j p[i, j] v[j]

Query i keeps the `topk` blocks of highest c, all if there are fewer; of equal ones the lower.  With causal=True it is MoBA (Lu et al.,
2025, arXiv 2502.13189): query i keeps its own block, in which it sees itself and what came before, and the topk - 1 best of the blocks
before that; topk = 1 is the own block alone.  (MoBA's released code has a fast path that with topk = 1 gives full causal attention.)
topk >= the number of blocks is softmax attention.

The choice carries no gradient: r and c only rank.  Where a choice changes, o jumps.  `select` gives the kept blocks.

q (..., T, K), k (..., N, K), v (..., N, V), o (..., T, V): usually N = T; block_size and topk integers of at least 1; scale a number, None
for K ** -0.5.  state: `Cache(k, v)` of the n tokens before, unscaled, (..., n, K) and (..., n, V), None for an empty one; returned with
the N new ones behind them.  For gradients: do like o, dfinal_state like the returned cache, None for zeros.  Query i stands at position
n + i, key j of old and new at j; blocks are counted from the first cached key.  Heads that share keys (MQA, GQA) broadcast,
q (..., H, G, T, K) with k, v (..., H, 1, N, K), and every query head keeps its own blocks.
TypeError for what is missing or of a wrong type, ValueError for what does not fit; both name the argument (core.arguments).
"""
import numpy

from ..core.arguments import check, scale_of
from ..core.arrays import array_module
from ..core.blocks import blocks
from ..core.cached import add, scores, start_cached, start_cached_vjp
from ..core.functions import softmax
from ..core.kinds import count, flag
from ..core.states import Cache
from ..core.tiles import attend, attend_vjp

AXES = dict(q="T K", k="N K", v="N V", state=Cache("n K", "n V"))


def loop(q, k, v, *, block_size, topk, causal=False, scale=None, state=None):
    """The definition, query by query."""
    xp, q, k, v, n = start_cached(AXES, q, k, v, scale=scale, state=state)
    r, o = means(k, block_size), []                                          # blocks K
    for i in blocks(q.shape[-2], 1):
        kept, j = keep(q, r, n, i, block_size, topk, causal), reach(k, n, i, causal)         # 1 blocks
        see = sees(kept, n, i, j, block_size, causal)                        # 1 N
        p = softmax(scores(q[..., i, :], k[..., j, :], None, see))           # 1 N
        o.append(p @ v[..., j, :])                                           # 1 V
    return xp.concatenate(o, axis=-2), Cache(k, v)


def matrix(q, k, v, *, block_size, topk, causal=False, scale=None, state=None):
    """All queries and keys at once, as T by N scores."""
    _, q, k, v, n = start_cached(AXES, q, k, v, scale=scale, state=state)
    kept = keep(q, means(k, block_size), n, whole(q), block_size, topk, causal)      # T blocks
    see = sees(kept, n, whole(q), whole(k), block_size, causal)              # T N
    p = softmax(scores(q, k, None, see))                                     # T N
    return p @ v, Cache(k, v)                                                # T V


def chunk(q, k, v, *, block_size, topk, causal=False, scale=None, state=None, chunk_size=256):
    """Tiles of chunk_size queries by chunk_size keys, online softmax; tiles of which no query keeps a block are left out."""
    _, q, k, v, n = start_cached(AXES, q, k, v, scale=scale, state=state)
    chunk_size = count("chunk_size", chunk_size)
    looked_at = tiles(q, k, n, block_size, topk, causal, chunk_size)
    o, _, _ = attend(q, k, v, None, looked_at, chunk_size)                   # T V
    return o, Cache(k, v)


def select(q, k, *, block_size, topk, causal=False, scale=None, state=None):
    """The kept blocks, booleans (..., T, blocks), as every form chooses them.

    >>> k = numpy.array([[1.], [3], [4], [4], [9]])      # mean keys 2, 4, 9
    >>> select(numpy.array([[1.], [-1]]), k, block_size=2, topk=2).astype(int).tolist()
    [[0, 1, 1], [1, 1, 0]]
    >>> select(numpy.ones((5, 1)), k, block_size=2, topk=2, causal=True).astype(int).tolist()
    [[1, 0, 0], [1, 0, 0], [1, 1, 0], [1, 1, 0], [0, 1, 1]]
    """
    check({name: kind for name, kind in AXES.items() if name != "v"}, dict(q=q, k=k, state=state))
    xp, old = array_module(q, k), k[..., :0, :] if state is None else state.k
    lead = numpy.broadcast_shapes(old.shape[:-2], k.shape[:-2])
    old = old + xp.zeros((), q.dtype)                                        # n K   in the common type
    k = xp.concatenate([xp.broadcast_to(x, lead + x.shape[-2:]) for x in (old, k)], axis=-2)         # n+N K
    return keep(q * scale_of(scale, q), means(k, block_size), old.shape[-2], whole(q), block_size, topk, causal)


def loop_vjp(do, q, k, v, *, block_size, topk, causal=False, scale=None, state=None, dfinal_state=None):
    """Gradients of sum(o do) + sum(final dfinal_state), query by query; those of softmax attention over what was kept.

        ds[i, j] = p[i, j] (do[i] · v[j] - sum_j p[i, j] do[i] · v[j])           0 where j was not kept
        dq[i] = scale sum_j ds[i, j] k[j],   dk[j] = sum_i ds[i, j] scale q[i],   dv[j] = sum_i p[i, j] do[i]
    """
    xp, q, k, v, n, do, dk, dv, back = start_cached_vjp(AXES, do, q, k, v, scale=scale, state=state, dfinal_state=dfinal_state)
    r, dq = means(k, block_size), []                                         # blocks K
    for i in blocks(q.shape[-2], 1):
        kept, j = keep(q, r, n, i, block_size, topk, causal), reach(k, n, i, causal)         # 1 blocks
        qi, kj, vj, doi = q[..., i, :], k[..., j, :], v[..., j, :], do[..., i, :]
        see = sees(kept, n, i, j, block_size, causal)                        # 1 N
        p = softmax(scores(qi, kj, None, see))                               # 1 N
        dp = doi @ vj.mT                                                     # 1 N
        ds = p * (dp - (p * dp).sum(-1, keepdims=True))                      # 1 N
        dq.append(ds @ kj)                                                   # 1 K
        add(dk[..., j, :], ds.mT @ qi)
        add(dv[..., j, :], p.mT @ doi)
    return back(xp.concatenate(dq, axis=-2), dk, dv)


def matrix_vjp(do, q, k, v, *, block_size, topk, causal=False, scale=None, state=None, dfinal_state=None):
    """The same gradients from T by N weights: sum_j p[i, j] do[i] · v[j] is do[i] · o[i]."""
    _, q, k, v, n, do, dk, dv, back = start_cached_vjp(AXES, do, q, k, v, scale=scale, state=state, dfinal_state=dfinal_state)
    kept = keep(q, means(k, block_size), n, whole(q), block_size, topk, causal)      # T blocks
    see = sees(kept, n, whole(q), whole(k), block_size, causal)              # T N
    p = softmax(scores(q, k, None, see))                                     # T N
    ds = p * (do @ v.mT - (do * (p @ v)).sum(-1, keepdims=True))             # T N
    add(dk, ds.mT @ q)
    add(dv, p.mT @ do)
    return back(ds @ k, dk, dv)


def chunk_vjp(do, q, k, v, *, block_size, topk, causal=False, scale=None, state=None, dfinal_state=None, chunk_size=256):
    """The same gradients, tile by tile: choice and scores are made again, only the log-sum-exp and o are kept."""
    _, q, k, v, n, do, dk, dv, back = start_cached_vjp(AXES, do, q, k, v, scale=scale, state=state, dfinal_state=dfinal_state)
    chunk_size = count("chunk_size", chunk_size)
    looked_at = tiles(q, k, n, block_size, topk, causal, chunk_size)
    dq = attend_vjp(do, q, k, v, None, looked_at, chunk_size, dk, dv, None)  # T K   adds to dk and dv
    return back(dq, dk, dv)


# --- the choice --------------------------------------------------------------------------------------------------

def means(k, block_size):
    """The mean key of every block, over the keys that there are: (..., blocks, K)."""
    parts = [k[..., b, :] for b in blocks(k.shape[-2], count("block_size", block_size))]
    return array_module(k).concatenate([x.sum(-2, keepdims=True) / x.shape[-2] for x in parts], axis=-2) if k.shape[-2] else k


def keep(q, r, n, i, block_size, topk, causal):
    """The blocks that queries `i`, a slice of the scaled q, keep: booleans (..., queries, blocks).

    Products are added channel by channel, not by a matrix product, whose rounding depends on how many rows it has: every form, and every
    split of a sequence into calls, must find the same order, ties included.  NaN is lowest of all, level with what is not there yet.
    """
    xp, q, topk = array_module(q, r), q[..., i, :], count("topk", topk)
    none = xp.zeros((q.shape[-2], r.shape[-2]), q.dtype)
    c = sum((q[..., :, x, None] * r[..., None, :, x] for x in range(q.shape[-1])), none).real            # T blocks
    c = xp.where(c == c, c, -xp.inf)
    if not flag("causal", causal):
        return rank(xp, c) < topk
    own = (n + xp.arange(i.start, i.stop)[:, None]) // block_size            # T 1
    b = xp.arange(r.shape[-2])                                               # blocks
    return (rank(xp, xp.where(b < own, c, -xp.inf)) < topk - 1) & (b < own) | (b == own)


def rank(xp, c):
    """How many blocks of the row come before this one: 0 for the highest; of equal ones the lower first."""
    return xp.argsort(xp.argsort(-c, axis=-1, kind="stable"), axis=-1)


def sees(kept, n, i, j, block_size, causal):
    """Where queries `i` look among keys `j`, slices: booleans (..., queries, keys)."""
    xp = array_module(kept)
    keys = xp.arange(j.start, j.stop)
    see = kept[..., keys // block_size]
    return see & (keys <= n + xp.arange(i.start, i.stop)[:, None]) if causal else see


def reach(k, n, i, causal):
    """The keys that one of queries `i` may see by its position: what comes later is not touched."""
    return slice(0, min(k.shape[-2], n + i.stop)) if causal else whole(k)


def tiles(q, k, n, block_size, topk, causal, size):
    """For `core.tiles`: the tiles of `size` keys in which one of queries i keeps a block."""
    r = means(k, block_size)

    def of(i):
        kept = keep(q, r, n, i, block_size, topk, causal)
        for j in blocks(reach(k, n, i, causal).stop, size):
            see = sees(kept, n, i, j, block_size, causal)
            if see.any():
                yield j, see

    return of


def whole(x):
    return slice(0, x.shape[-2])
