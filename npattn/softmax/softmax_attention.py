"""Softmax attention: every token weighs all earlier ones, and keeps them.

    s[i, j] = scale q[i] · k[j] + bias[i, j]     score; -inf where query i may not see key j
    p[i, j] = e^s[i, j] / sum_j e^s[i, j]        all 0 if query i sees nothing
    o[i]    = sum_j p[i, j] v[j]                 and lse[i] = ln sum_j e^s[i, j], for `merge`

Vaswani et al., 2017, arXiv 1706.03762.  By tiles of queries and keys: Dao, 2023, arXiv 2307.08691; the equations are in core/tiles.py.
Linear attention is this with q · k for e^s and without the division.

q (..., T, K), k (..., N, K), v (..., N, V), o (..., T, V): usually N = T; scale a number, None for K ** -0.5.  state: `Cache(k, v)` of the
n tokens before, unscaled, (..., n, K) and (..., n, V), None for an empty one; returned with the N new ones behind them.  For gradients:
do like o, dfinal_state like the returned cache, None for zeros.  Query i stands at position n + i, key j of old and new at j (without a
cache both count from the top left), and all that hides goes by positions:

    causal    j <= i                             True unless said otherwise
    window    |i - j| < window                   so with `causal` the token itself and the window - 1 before it; the cache is never cut
    mask      booleans, True = may see           broadcasts to (..., T, n + N), as does
    bias      added to the scaled score          -inf hides too; has a gradient, of its own shape

None for window, mask or bias: there is none.  Heads that share keys (MQA, GQA) broadcast: q (..., H, G, T, K) with k, v (..., H, 1, N, K).
TypeError for what is missing or of a wrong type, ValueError for what does not fit; both name the argument (core.arguments).
"""
from math import inf

import numpy

from ..core.arguments import fit
from ..core.arrays import array_module
from ..core.blocks import blocks
from ..core.cached import add, check_over_scores, part, scores, start_cached, start_cached_vjp
from ..core.functions import finite, highest, softmax
from ..core.kinds import check_exponential, check_plain, count, flag
from ..core.states import Cache
from ..core.tiles import attend, attend_vjp, log_sum_exp

AXES = dict(q="T K", k="N K", v="N V", state=Cache("n K", "n V"))


# --- all forms, with the log-sum-exp -----------------------------------------------------------------------------

def loop_lse(q, k, v, *, causal=True, mask=None, bias=None, window=None, scale=None, state=None):
    """The definition, query by query: o, state, lse (..., T)."""
    xp, q, k, v, n = start_cached(AXES, q, k, v, scale=scale, state=state)
    keys, see, bias = sight(q, k, n, causal, mask, bias, window)
    o, lse = [], []
    for i in blocks(q.shape[-2], 1):
        j = keys(i)
        s = scores(q[..., i, :], k[..., j, :], part(bias, i, j), see(i, j))  # 1 N
        m = finite(highest(s.real, -1, -inf))                                # 1 1
        e = xp.exp(s - m)                                                    # 1 N
        z = e.sum(-1, keepdims=True)                                         # 1 1
        o.append(e @ v[..., j, :] / (z + (z == 0)))                          # 1 V   0 / 1 for a query that sees nothing
        lse.append(log_sum_exp(m, z))                                        # 1
    return xp.concatenate(o, axis=-2), Cache(k, v), xp.concatenate(lse, axis=-1)


def matrix_lse(q, k, v, *, causal=True, mask=None, bias=None, window=None, scale=None, state=None):
    """All queries and keys at once, as T by N scores: o, state, lse (..., T)."""
    xp, q, k, v, n = start_cached(AXES, q, k, v, scale=scale, state=state)
    _, see, bias = sight(q, k, n, causal, mask, bias, window)
    s = scores(q, k, bias, see(whole(q), whole(k)))                          # T N
    m = finite(highest(s.real, -1, -inf))                                    # T 1
    e = xp.exp(s - m)                                                        # T N
    z = e.sum(-1, keepdims=True)                                             # T 1
    o = e @ v / (z + (z == 0))                                               # T V   0 / 1 for a query that sees nothing
    return o, Cache(k, v), log_sum_exp(m, z)                                 # T V, n+N K and n+N V, T


def chunk_lse(q, k, v, *, causal=True, mask=None, bias=None, window=None, scale=None, state=None, chunk_size=256):
    """Tiles of chunk_size queries by chunk_size keys, online softmax: o, state, lse (..., T)."""
    _, q, k, v, n = start_cached(AXES, q, k, v, scale=scale, state=state)
    keys, see, bias = sight(q, k, n, causal, mask, bias, window)
    size = count("chunk_size", chunk_size)
    o, m, z = attend(q, k, v, bias, tiles(keys, see, size), size)
    return o, Cache(k, v), log_sum_exp(m, z)


# --- and without it ----------------------------------------------------------------------------------------------

def loop(q, k, v, *, causal=True, mask=None, bias=None, window=None, scale=None, state=None):
    """The definition, query by query: o, state."""
    return loop_lse(q, k, v, causal=causal, mask=mask, bias=bias, window=window, scale=scale, state=state)[:2]


def matrix(q, k, v, *, causal=True, mask=None, bias=None, window=None, scale=None, state=None):
    """All queries and keys at once, as T by N scores: o, state."""
    return matrix_lse(q, k, v, causal=causal, mask=mask, bias=bias, window=window, scale=scale, state=state)[:2]


def chunk(q, k, v, *, causal=True, mask=None, bias=None, window=None, scale=None, state=None, chunk_size=256):
    """Tiles of chunk_size queries by chunk_size keys, online softmax: o, state.  What is hidden by `causal` or `window` is not computed.

    256 was fastest in float32 with 8 heads of 64, level with 512: products large enough, scores still in cache.  64 takes 1.8 times as
    long.
    """
    return chunk_lse(q, k, v, causal=causal, mask=mask, bias=bias, window=window, scale=scale, state=state, chunk_size=chunk_size)[:2]


# --- gradients ---------------------------------------------------------------------------------------------------

def loop_vjp(do, q, k, v, *, causal=True, mask=None, bias=None, window=None, scale=None, state=None, dfinal_state=None):
    """Gradients of sum(o do) + sum(final dfinal_state), query by query.

        ds[i, j] = p[i, j] (do[i] · v[j] - sum_j p[i, j] do[i] · v[j])           the softmax backwards;   dbias = ds
        dq[i] = scale sum_j ds[i, j] k[j],   dk[j] = sum_i ds[i, j] scale q[i],   dv[j] = sum_i p[i, j] do[i]
    """
    xp, q, k, v, n, do, dk, dv, back = start_cached_vjp(AXES, do, q, k, v, scale=scale, state=state, dfinal_state=dfinal_state, bias=bias)
    keys, see, B = sight(q, k, n, causal, mask, bias, window)                # B: the bias with two axes
    dq, dB = [], xp.zeros(B.shape, dk.dtype) if bias is not None else None
    for i in blocks(q.shape[-2], 1):
        j = keys(i)
        qi, kj, vj, doi = q[..., i, :], k[..., j, :], v[..., j, :], do[..., i, :]
        p = softmax(scores(qi, kj, part(B, i, j), see(i, j)))                # 1 N
        dp = doi @ vj.mT                                                     # 1 N
        ds = p * (dp - (p * dp).sum(-1, keepdims=True))                      # 1 N
        dq.append(ds @ kj)                                                   # 1 K
        add(dk[..., j, :], ds.mT @ qi)
        add(dv[..., j, :], p.mT @ doi)
        if bias is not None:
            add(part(dB, i, j), ds)
    return with_bias(back(xp.concatenate(dq, axis=-2), dk, dv), dB, bias)


def matrix_vjp(do, q, k, v, *, causal=True, mask=None, bias=None, window=None, scale=None, state=None, dfinal_state=None):
    """The same gradients from T by N weights: ds = p (do v^T - rowsum(do o)), because sum_j p[i, j] do[i] · v[j] is do[i] · o[i]."""
    _, q, k, v, n, do, dk, dv, back = start_cached_vjp(AXES, do, q, k, v, scale=scale, state=state, dfinal_state=dfinal_state, bias=bias)
    _, see, B = sight(q, k, n, causal, mask, bias, window)
    p = softmax(scores(q, k, B, see(whole(q), whole(k))))                    # T N
    ds = p * (do @ v.mT - (do * (p @ v)).sum(-1, keepdims=True))             # T N
    add(dk, ds.mT @ q)
    add(dv, p.mT @ do)
    return with_bias(back(ds @ k, dk, dv), ds, bias)


def chunk_vjp(do, q, k, v, *, causal=True, mask=None, bias=None, window=None, scale=None, state=None, dfinal_state=None, chunk_size=256):
    """The same gradients, tile by tile: scores are made again, only the log-sum-exp and o are kept."""
    xp, q, k, v, n, do, dk, dv, back = start_cached_vjp(AXES, do, q, k, v, scale=scale, state=state, dfinal_state=dfinal_state, bias=bias)
    keys, see, B = sight(q, k, n, causal, mask, bias, window)
    dB, size = xp.zeros(B.shape, dk.dtype) if bias is not None else None, count("chunk_size", chunk_size)
    dq = attend_vjp(do, q, k, v, B, tiles(keys, see, size), size, dk, dv, dB)
    return with_bias(back(dq, dk, dv), dB, bias)


# --- parts of a softmax ------------------------------------------------------------------------------------------

def merge(one, other):
    """(o, lse) of one set of keys and (o, lse) of another, for the same queries: (o, lse) of all.

        lse = ln(e^lse1 + e^lse2),   o = e^(lse1 - lse) o1 + e^(lse2 - lse) o2

    In any order and grouping, as functools.reduce does it; (0, -inf) changes nothing.  o (..., T, V), lse (..., T).
    """
    (o1, lse1), (o2, lse2) = one, other
    xp = array_module(o1, o2)
    m = finite(xp.maximum(lse1.real, lse2.real))[..., None]                  # T 1
    e1, e2 = xp.exp(lse1[..., None] - m), xp.exp(lse2[..., None] - m)        # T 1, T 1
    z = e1 + e2                                                              # T 1
    o = (e1 * o1 + e2 * o2) / (z + (z == 0))                                 # T V   0 / 1 where neither saw anything
    return o, log_sum_exp(m, z)                                              # T V, T


# --- who sees whom -----------------------------------------------------------------------------------------------

def sight(q, k, n, causal, mask, bias, window):
    """(keys, see, bias), for slices i of queries and j of keys.

    keys(i) is the slice of keys that queries i can reach by position; see(i, j) is True where they may look, None for everywhere.
    """
    xp, T, N = array_module(q, k), q.shape[-2], k.shape[-2]
    shape = numpy.broadcast_shapes(q.shape[:-2], k.shape[:-2]) + (T, N)
    mask, bias = check_over_scores("mask", mask, shape), check_over_scores("bias", bias, shape)
    for name, x in dict(mask=mask, bias=bias).items():
        if x is not None:
            check_plain(name, x)
            check_exponential(name, x)
            if array_module(x) is not xp:
                raise TypeError(f"arrays of NumPy and of CuPy cannot be mixed: {name} {type(x).__module__}, q {type(q).__module__}")
    most = inf if window is None else count("window", window) - 1            # the farthest back
    least = 0 if flag("causal", causal) else -most                           # and the nearest, below 0 ahead

    def keys(i):
        first = min(max(n + i.start - most, 0), N)
        return slice(first, max(min(n + i.stop - least, N), first))

    def see(i, j):
        within = part(mask, i, j)
        if n + i.start - (j.stop - 1) < least or n + i.stop - 1 - j.start > most:            # else position hides nothing
            back = n + xp.arange(i.start, i.stop)[:, None] - xp.arange(j.start, j.stop)      # i j
            near = (back >= least) & (back <= most)
            within = near if within is None else near & within
        return within

    return keys, see, bias


def tiles(keys, see, size):
    """For `core.tiles`: the reach of queries i in tiles of `size` keys."""
    def of(i):
        reach = keys(i)
        for start in range(reach.start, reach.stop, size):
            j = slice(start, min(start + size, reach.stop))
            yield j, see(i, j)

    return of


def whole(x):
    return slice(0, x.shape[-2])


def with_bias(gradients, dbias, bias):
    return gradients if bias is None else dict(gradients, bias=fit(dbias, bias))
