"""Attention over a cache: what its forms do first and last.

Keys and values stand at positions 0 … n + N - 1, the n cached ones before the N new ones; query i stands at n + i.
"""
import numpy

from .arguments import check, check_array, check_fits, fit, leaf_names, scale_of, start
from .arrays import array_module, sum_to
from .kinds import check_exponential
from .states import Cache

OVER_SCORES = ("mask", "bias")                           # options that are arrays over the scores, of queries by keys


def start_cached(axes, q, k, v, *, scale, state):
    """Check, then return (array module, scale times q, all keys, all values, n): cached and new ones together, as new arrays.

    Raises what `arguments.start` raises, and TypeError for objects without an exponential.
    """
    xp, q, S = start(axes, q, k, v, scale=scale, state=state)
    for name, x in dict(q=q, k=k, v=v, state=S.k).items():
        check_exponential(name, x)
    spread = lambda x, lead: x if x.shape[:-2] == lead else xp.copy(xp.broadcast_to(x, lead + x.shape[-2:]), order="C")
    join = lambda old, new: xp.concatenate([old, spread(new, old.shape[:-2])], axis=-2)
    return xp, q, join(S.k, k), join(S.v, v), S.k.shape[-2]                  # n+N K, n+N V


def start_cached_vjp(axes, do, q, k, v, *, scale, state, dfinal_state, bias=None):
    """Check, then return (array module, scale times q, all keys, all values, n, do, dk, dv, back).

    dk, dv           the gradients of all keys and values, new arrays to add to: they begin as `dfinal_state`, the cotangent of the
                     returned cache; of the common type of everything, `bias` too
    back(dq, dk, dv) the gradients by argument name, dq times scale, each of its argument's shape and type; that of no state is an
                     empty cache
    """
    check(axes, dict(q=q, k=k, v=v, do=do, state=state, dfinal_state=dfinal_state))
    xp, scaled, K, V, n = start_cached(axes, q, k, v, scale=scale, state=state)
    check_fits("do", do.shape, numpy.broadcast_shapes(q.shape[:-2], K.shape[:-2]) + (q.shape[-2], v.shape[-1]))
    if bias is not None:
        check_array("bias", bias)
    wide = numpy.result_type(*(x.dtype for x in (scaled, K, do, bias, *(dfinal_state or ())) if x is not None))
    dk, dv = xp.zeros(K.shape, wide), xp.zeros(V.shape, wide)
    if dfinal_state is not None:
        for name, d, given in zip(leaf_names("dfinal_state", axes["state"]), (dk, dv), dfinal_state):
            check_fits(name, given.shape, d.shape)
            d += given

    def back(dq, dk, dv):
        old, new = Cache(dk[..., :n, :], dv[..., :n, :]), Cache(dk[..., n:, :], dv[..., n:, :])
        old = old if state is None else Cache(*map(fit, old, state))
        return dict(q=fit(dq * scale_of(scale, q), q), k=fit(new.k, k), v=fit(new.v, v), state=old)

    return xp, scaled, K, V, n, do, dk, dv, back


def check_over_scores(name, x, shape):
    """`x`, with at least two axes.

    TypeError or ValueError unless `x` is None, or a mask or bias that broadcasts to the `shape` of the scores.
    """
    if x is None:
        return None
    check_kind_over_scores(name, x)
    check_fits(name, x.shape, shape)
    return at_least_2d(x)


def check_kind_over_scores(name, x):
    """TypeError unless a mask is an array of booleans, a bias one of numbers."""
    if name == "mask" and getattr(getattr(x, "dtype", None), "kind", None) != "b":
        raise TypeError(f"mask must be an array of booleans, True = may attend, not {getattr(x, 'dtype', type(x).__name__)}; "
                        "what is added goes to bias")
    if name != "mask":
        check_array(name, x)


def at_least_2d(x):
    """A view of x with the two axes of scores, as broadcasting adds them."""
    return x.reshape((1,) * (2 - x.ndim) + x.shape)


def part(x, i, j):
    """Queries `i` and keys `j`, slices, of an array over scores, or of None; an axis of length 1 stays.

    >>> part(numpy.arange(6).reshape(2, 3), slice(1, 2), slice(0, 2)).tolist()
    [[3, 4]]
    >>> part(numpy.arange(3)[None], slice(1, 2), slice(0, 2)).tolist()
    [[0, 1]]
    """
    return None if x is None else x[(..., *(b if size != 1 else slice(None) for b, size in zip((i, j), x.shape[-2:])))]


def scores(q, k, bias, see):
    """q k^T + bias, then -inf where `see` is False; `bias` and `see` may be None.  A new array."""
    s = q @ k.mT                                                             # T N
    s = s if bias is None else s + bias
    return s if see is None else array_module(s).where(see, s, -numpy.inf)


def add(gradient, part):
    """Add to a view of a gradient, in place, summing over the axes along which its argument was broadcast."""
    gradient += sum_to(part, gradient.shape)
