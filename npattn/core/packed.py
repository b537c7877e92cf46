"""Packed sequences: several sequences end to end on the token axis, each with its own state.

Sequence n owns tokens cu_seqlens[n] ... cu_seqlens[n + 1] - 1.  The result equals running every slice alone; an empty sequence keeps its
state.

States of N sequences have N as a new first axis.  Caches grow by as many tokens as their sequence has, and so cannot be stacked: they are
a list of N `Cache`, given (a tuple will do, and None for an empty one) and returned.

mask and bias lie over all scores, (..., T, T): the rows are the tokens, the columns the keys, and of both each sequence's own block is
read; what stands between two sequences is never looked at.  Where there are caches, the columns of a sequence are its cached keys, then
its own, end to end: as many in all as there are keys, old and new.  An axis of length 1 stands for all.
"""
import inspect
from itertools import accumulate, pairwise

import numpy

from .arguments import check, expected, leaf_names
from .arrays import array_module
from .blocks import at, cut, split
from .cached import OVER_SCORES, add, at_least_2d, check_kind_over_scores, part
from .kinds import check_array
from .states import Cache, leaves, map_state


def packed(form, q, k, v, *, cu_seqlens, state=None, **others):
    """`form` (a mechanism's loop, matrix or chunk) on every sequence alone: o (..., T, V) and states (N, ..., K, V), or a list of N caches.

    cu_seqlens: N + 1 integer offsets, the first 0, the last T, never falling; otherwise ValueError.  `state` has N rows, or is a list of
    N caches; None is zeros, or empty caches.  ValueError as well for keys that are not as many as queries, and for a mask or bias that does
    not fit.
    """
    axes = axes_of(form)
    tokens, options = split(axes, dict(q=q, k=k, v=v, **others))
    spans = sequences(cu_seqlens, check_tokens(axes, tokens))
    states = alone("state", axes, state, len(spans))
    outputs, finals = [], []
    for b, columns, S in zip(spans, key_columns(spans, states, options), states):
        o, final = form(**cut(tokens, axes, b), **own(options, b, columns), state=S)
        outputs.append(o)
        finals.append(final)
    if len({o.shape[:-2] for o in outputs}) > 1:
        raise ValueError("state: a cache has leading axes that the tokens have not, so the outputs differ: "
                         + ", ".join(str(o.shape) for o in outputs))
    return array_module(q).concatenate(outputs, axis=-2), together(axes, finals)


def packed_vjp(form_vjp, do, q, k, v, *, cu_seqlens, state=None, dfinal_state=None, **others):
    """`form_vjp` on every sequence alone: gradients by argument name, each of its argument's shape; states as in `packed`."""
    axes = axes_of(form_vjp)
    tokens, options = split(axes, dict(q=q, k=k, v=v, **others))
    spans = sequences(cu_seqlens, check_tokens(axes, dict(tokens, do=do)))
    states, ends = (alone(name, axes, x, len(spans)) for name, x in dict(state=state, dfinal_state=dfinal_state).items())
    xp, whole, dstates = array_module(q), {}, []
    for b, columns, S, dS in zip(spans, key_columns(spans, states, options), states, ends):
        d = form_vjp(do[..., b, :], **cut(tokens, axes, b), **own(options, b, columns), state=S, dfinal_state=dS)
        dstates.append(d.pop("state"))
        for name, x in d.items():
            given = tokens[name] if name in tokens else options[name]
            y = whole.setdefault(name, xp.zeros(given.shape, x.dtype))
            if name in axes:
                y[at(axes[name], b)] = x
            else:                                                            # one bias for several sequences: their sum
                add(part(at_least_2d(y), b, columns), at_least_2d(x))
    return dict(whole, state=together(axes, dstates))


# --- tokens ------------------------------------------------------------------------------------------------------

def sequences(cu_seqlens, T):
    """The slices of the sequences, after checking the offsets."""
    try:
        cu = numpy.asarray(cu_seqlens)
    except Exception:                                    # whatever keeps it from being one array of the host
        cu = numpy.zeros(())
    if cu.ndim != 1 or cu.size < 2 or cu.dtype.kind not in "iu":
        raise ValueError(f"cu_seqlens must be a list of at least two integer offsets, not {' '.join(repr(cu_seqlens).split())}")
    if cu[0] != 0 or cu[-1] != T or (cu[1:] < cu[:-1]).any():
        raise ValueError(f"cu_seqlens must rise from 0 to T = {T}, not {cu.tolist()}")
    return [slice(int(s), int(e)) for s, e in pairwise(cu)]


def check_tokens(axes, arguments):
    """How many tokens there are: as many keys as queries, since both are cut at the same places."""
    sizes = check(axes, arguments)
    if sizes.get("N", sizes["T"]) != sizes["T"]:
        raise ValueError(f"packed sequences have as many keys as queries, not {sizes['N']} and {sizes['T']}")
    return sizes["T"]


# --- states ------------------------------------------------------------------------------------------------------

def alone(name, axes, state, N):
    """The states of the N sequences, as a list."""
    if state is None:
        return [None] * N
    if isinstance(axes["state"], Cache):
        if isinstance(state, Cache) or not isinstance(state, (list, tuple)) or len(state) != N:
            what = f"{len(state)} of them" if type(state) in (list, tuple) else type(state).__name__
            raise ValueError(f"a packed {name} of caches is a list with one Cache for each of the {N} sequences, not {what}")
        for n, cache in enumerate(state):
            check_parts(f"{name}[{n}]", axes["state"], cache)
        return list(state)
    check_parts(name, axes["state"], state)
    for leaf, x in zip(leaf_names(name, axes["state"]), leaves(state)):
        if x.ndim == 0 or x.shape[0] != N:
            raise ValueError(f"a packed {leaf} needs one row for each of the {N} sequences, not {x.shape}")
    return [map_state(lambda x: x[n], state) for n in range(N)]


def check_parts(name, kind, state):
    """TypeError unless `state` is None or of the kind, with arrays for parts."""
    if state is not None and type(state) is not type(kind) and (isinstance(state, tuple) or isinstance(kind, tuple)):
        raise TypeError(f"{name} must be {expected(kind)}, not {type(state).__name__}")
    for leaf, x in zip(leaf_names(name, kind), leaves(state)):
        check_array(leaf, x)


def together(axes, states):
    """The states of all sequences, stacked where they have one shape."""
    return states if isinstance(axes["state"], Cache) else map_state(lambda *x: array_module(*x).stack(x), *states)


# --- what lies over the scores -----------------------------------------------------------------------------------

def key_columns(spans, states, options):
    """The columns of each sequence's keys, cached ones first, in a mask or bias; after checking that these fit."""
    ends = list(accumulate((b.stop - b.start + cached(S) for b, S in zip(spans, states)), initial=0))
    for name, x in options.items():
        if name in OVER_SCORES and x is not None:
            check_kind_over_scores(name, x)
            if any(n not in (1, whole) for n, whole in zip(x.shape[::-1], (ends[-1], spans[-1].stop))):
                raise ValueError(f"{name} {x.shape} does not fit the scores of all packed sequences, (..., {spans[-1].stop}, {ends[-1]})")
    return [slice(*pair) for pair in pairwise(ends)]


def cached(S):
    """How many tokens a cache holds; 0 for None and for states of other kinds, which no mask lies over."""
    return S.k.shape[-2] if isinstance(S, Cache) else 0


def own(options, rows, columns):
    """The options of one sequence: of a mask and a bias, its block."""
    return {name: part(at_least_2d(x), rows, columns) if name in OVER_SCORES and x is not None else x for name, x in options.items()}


def axes_of(form):
    """The axes of the arguments of a mechanism's form; TypeError for what is none."""
    axes = getattr(inspect.unwrap(form), "__globals__", {}).get("AXES") if callable(form) else None
    if axes is None:
        raise TypeError(f"{getattr(form, '__name__', type(form).__name__)} is no form of a mechanism: loop, matrix, chunk or the vjp of one")
    return axes
