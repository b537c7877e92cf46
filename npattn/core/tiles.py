"""Softmax attention tile by tile: some queries against some keys at a time, never T by N scores.

Forward, for a tile of queries, over its tiles of keys (online softmax, Milakov and Gimelshein, 2018, arXiv 1805.02867):

    m' = max(m, max_j s[j])                      the highest score so far
    z  = e^(m - m') z + sum_j e^(s[j] - m')      what the weights sum to
    a  = e^(m - m') a + sum_j e^(s[j] - m') v[j]
    o  = a / z   after the last tile;            log-sum-exp: m + ln z

Backward (FlashAttention-2, Dao, 2023, arXiv 2307.08691), from m, z and o, the scores of each tile made again:

    p = e^(s - m) / z,   ds = p (do v^T - rowsum(do o)),   dq += ds k,   dk += ds^T q,   dv += p^T do

The log-sum-exp is kept as its two parts: no exponent is ever above 0, and large scores round nothing away.  m is a constant to the
gradient, which it cancels from; it goes by the real part, so that complex arrays, and with them the complex step, work.  A query that sees
no key has m = -inf and z = 0, and is divided by z + (z == 0) = 1: its output and gradients are 0, its log-sum-exp is -inf.

`tiles(i)` gives, for the queries of slice i, pairs (j, see): a slice of keys and where to look, booleans over queries and keys, None for
everywhere.
"""
import numpy

from .arrays import array_module
from .blocks import blocks
from .cached import add, part, scores
from .functions import finite


def attend(q, k, v, bias, tiles, size):
    """(o, m, z) for tiles of `size` queries: q (..., T, K) scaled, k (..., N, K), v (..., N, V), bias over the scores or None."""
    xp, lead = array_module(q, k, v), numpy.broadcast_shapes(q.shape[:-2], k.shape[:-2], v.shape[:-2])
    dtype = numpy.result_type(*(x.dtype for x in (q, k, v, bias) if x is not None))
    new = lambda T, D, fill=0: xp.full(lead + (T, D), fill, dtype)
    o, m, z = new(q.shape[-2], v.shape[-1]), new(q.shape[-2], 1, -numpy.inf).real, new(q.shape[-2], 1)
    for i in blocks(q.shape[-2], size):
        mi, zi, a = m[..., i, :], z[..., i, :], o[..., i, :]                 # i 1, i 1, i V
        for j, see in tiles(i):
            s = scores(q[..., i, :], k[..., j, :], part(bias, i, j), see)    # i j
            top = xp.maximum(mi, s.real.max(-1, keepdims=True))              # i 1
            base = finite(top)
            s -= base
            e, fade = xp.exp(s, out=s), xp.exp(mi - base)                    # i j, i 1
            mi, zi, a = top, fade * zi + e.sum(-1, keepdims=True), fade * a + e @ v[..., j, :]
        m[..., i, :], z[..., i, :], o[..., i, :] = mi, zi, a / (zi + (zi == 0))
    return o, m, z


def attend_vjp(do, q, k, v, bias, tiles, size, dk, dv, dbias):
    """dq for the q that was given; adds to dk, dv and, where there is a bias, dbias (of the bias's shape)."""
    xp = array_module(q, k, v)
    o, m, z = attend(q, k, v, bias, tiles, size)
    dq = xp.zeros(o.shape[:-1] + q.shape[-1:], numpy.result_type(o.dtype, do.dtype))
    for i in blocks(q.shape[-2], size):
        qi, base, zi = q[..., i, :], finite(m[..., i, :]), z[..., i, :]      # i K, i 1, i 1
        w = do[..., i, :] / (zi + (zi == 0))                                 # i V   do / z for do: then e^(s - m) stands for p
        delta = (w * o[..., i, :]).sum(-1, keepdims=True)                    # i 1
        for j, see in tiles(i):
            e = scores(qi, k[..., j, :], part(bias, i, j), see)              # i j
            e -= base
            xp.exp(e, out=e)
            add(dv[..., j, :], e.mT @ w)
            ds = w @ v[..., j, :].mT                                         # i j
            ds -= delta
            ds *= e
            dq[..., i, :] += ds @ k[..., j, :]
            add(dk[..., j, :], ds.mT @ qi)
            if bias is not None:
                add(part(dbias, i, j), ds)
    return dq


def log_sum_exp(m, z):
    """m + ln z, -inf where nothing was seen: (..., T) from (..., T, 1)."""
    xp = array_module(m, z)
    return xp.where(z == 0, -numpy.inf, m + xp.log(z + (z == 0)))[..., 0]
