"""Packed sequences: several sequences end to end on the token axis, each with its own state.

Sequence n owns tokens cu_seqlens[n] ... cu_seqlens[n + 1] - 1.  States have N as a new first axis.  The result equals running every slice alone; an empty
sequence keeps its state.
"""
import inspect
from itertools import pairwise

import numpy

from .arguments import check
from .arrays import array_module
from .blocks import at, cut, split
from .states import map_state


def packed(form, q, k, v, *, cu_seqlens, state=None, **others):
    """`form` (a mechanism's loop, matrix or chunk) on every sequence alone: o (..., T, V) and states (N, ..., K, V).

    cu_seqlens: N + 1 integer offsets, the first 0, the last T, never falling; otherwise ValueError.  `state` has N rows; None is zeros.
    """
    axes = axes_of(form)
    tokens, options = split(axes, dict(q=q, k=k, v=v, **others))
    outputs, states, T = [], [], check(axes, tokens)["T"]
    for n, b in enumerate(sequences(cu_seqlens, T, state)):
        o, final = form(**cut(tokens, axes, b), **options, state=row(state, n))
        outputs.append(o)
        states.append(final)
    xp = array_module(q)
    return xp.concatenate(outputs, axis=-2), map_state(lambda *x: xp.stack(x), *states)


def packed_vjp(form_vjp, do, q, k, v, *, cu_seqlens, state=None, dfinal_state=None, **others):
    """`form_vjp` on every sequence alone: gradients by argument name, that of the state with N rows."""
    axes = axes_of(form_vjp)
    tokens, options = split(axes, dict(q=q, k=k, v=v, **others))
    xp, whole, states, T = array_module(q), {}, [], check(axes, dict(tokens, do=do))["T"]
    for n, b in enumerate(sequences(cu_seqlens, T, state, dfinal_state)):
        d = form_vjp(do[..., b, :], **cut(tokens, axes, b), **options, state=row(state, n), dfinal_state=row(dfinal_state, n))
        states.append(d.pop("state"))
        for name, x in d.items():
            whole.setdefault(name, xp.zeros(tokens[name].shape, x.dtype))[at(axes[name], b)] = x
    return dict(whole, state=map_state(lambda *x: xp.stack(x), *states))


def sequences(cu_seqlens, T, *states):
    """The slices of the sequences, after checking the offsets and the number of rows of the states."""
    cu = numpy.asarray(cu_seqlens)
    if cu.ndim != 1 or cu.size < 2 or cu.dtype.kind not in "iu":
        raise ValueError(f"cu_seqlens must be a list of at least two integer offsets, not {cu_seqlens!r}")
    if cu[0] != 0 or cu[-1] != T or (cu[1:] < cu[:-1]).any():
        raise ValueError(f"cu_seqlens must rise from 0 to T = {T}, not {cu.tolist()}")
    for state in states:
        map_state(lambda x: check_rows(x, cu.size - 1), state) if state is not None else None
    return [slice(int(s), int(e)) for s, e in pairwise(cu)]


def check_rows(x, N):
    if x.ndim == 0 or x.shape[0] != N:
        raise ValueError(f"a packed state needs one row for each of the {N} sequences, not {x.shape}")


def row(state, n):
    return None if state is None else map_state(lambda x: x[n], state)


def axes_of(form):
    return inspect.unwrap(form).__globals__["AXES"]
