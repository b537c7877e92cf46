"""All blocks side by side: the block forms for arrays on a GPU, where one small block after the other keeps few of its processors busy.

A block of a recurrent mechanism with a state (K, V) is affine in that state, and its value columns never meet.  So one call of `matrix` on all
blocks at once, with the values [v, 0] and the state [0, I], gives for every block n

    o = [o_n, O_n]      final state = [U_n, M_n]

and what is left are single products:

    S[n+1] = M_n S[n] + U_n                     the states between blocks, one after the other
    o      = o_n + O_n S[n]                     all outputs
    dS[n]  = M_n^T dS[n+1] + O_n^T do_n         the gradients of those states, last to first

With the states and their gradients on both sides of every block, `matrix_vjp` does all blocks at once.  GROUP blocks are taken at a time, so that what
is needed beyond the output does not grow with T; the gradients keep S, M and O^T do of each block.
"""
import numpy

from . import blocks
from .arrays import array_module, sum_to

GROUP = 64


def applies(axes, x):
    """Whether a mechanism's blocks are taken side by side: on a device, and where the state is one matrix."""
    return array_module(x) is not numpy and axes["state"] == "K V"


def chunk(matrix, axes, tokens, options, state, T, C):
    """(o, state): as `blocks.chunk`, of the arguments `tokens`, which have a token axis."""
    outputs, xp = [], array_module(tokens["q"])
    for b, C in groups(T, C):
        o, O, U, M = affine(matrix, axes, blocks.cut(tokens, axes, b), options, C)
        S = scan(U, M, state)                                                # n+1 K V
        outputs.append(joined(o + O @ S[..., :-1, :, :]))                    # T V
        state = S[..., -1, :, :]
    return xp.concatenate(outputs, axis=-2), state.copy()


def chunk_vjp(matrix, matrix_vjp, axes, do, tokens, options, state, dfinal_state, T, C):
    """The gradients by name: as `blocks.chunk_vjp`."""
    S, kept, parts, xp = state, [], {}, array_module(tokens["q"])
    for b, C in groups(T, C):
        _, O, U, M = affine(matrix, axes, blocks.cut(tokens, axes, b), options, C)
        S = scan(U, M, S)                                                    # n+1 K V
        dread = sum_to(O.mT @ divided(do[..., b, :], -2, C), S[..., 1:, :, :].shape)         # n K V
        kept.append((b, C, S[..., :-1, :, :], M, dread))
        S = S[..., -1, :, :]
    dS = xp.zeros_like(S) if dfinal_state is None else dfinal_state
    while kept:
        b, C, S, M, dread = kept.pop()
        dS = scan(dread[..., ::-1, :, :], M[..., ::-1, :, :].mT, dS)[..., ::-1, :, :]        # n+1 K V
        inputs = blocks.cut(tokens, axes, b)
        shapes = {name: x.shape for name, x in inputs.items()}
        inputs = {name: divided(x, blocks.token_axis(axes[name]), C) for name, x in inputs.items()}
        d = matrix_vjp(divided(do[..., b, :], -2, C), **inputs, **options, state=S, dfinal_state=dS[..., 1:, :, :])
        for name, shape in shapes.items():
            parts.setdefault(name, []).insert(0, d[name].reshape(shape))
        dS = dS[..., 0, :, :]
    whole = {name: xp.concatenate(x, axis=blocks.token_axis(axes[name])) for name, x in parts.items()}
    return dict(whole, state=dS.copy() if state is None else sum_to(dS, state.shape).astype(state.dtype))


def affine(matrix, axes, tokens, options, C):
    """o_n (..., n, C, V), O_n (..., n, C, K), U_n (..., n, K, V) and M_n (..., n, K, K) of all blocks."""
    v, xp = tokens["v"], array_module(tokens["v"])
    K, V = tokens["k"].shape[-1], v.shape[-1]
    tokens = dict(tokens, v=xp.concatenate([v, xp.zeros(v.shape[:-1] + (K,), v.dtype)], axis=-1))        # T V+K
    tokens = {name: divided(x, blocks.token_axis(axes[name]), C) for name, x in tokens.items()}
    o, S = matrix(**tokens, **options, state=xp.eye(K, V + K, V, dtype=v.dtype))                         # C V+K, K V+K
    return o[..., :V], o[..., V:], S[..., :V], S[..., V:]


def scan(U, M, S):
    """S[0] = S, S[n+1] = M_n S[n] + U_n: (..., n+1, K, V).  S None is zeros."""
    xp, lead = array_module(U), numpy.broadcast_shapes(U.shape[:-3], M.shape[:-3], () if S is None else S.shape[:-2])
    dtype = numpy.result_type(U.dtype, M.dtype, *([] if S is None else [S.dtype]))
    states = xp.zeros(lead + (U.shape[-3] + 1,) + U.shape[-2:], dtype)
    if S is not None:
        states[..., 0, :, :] = S
    for n in range(U.shape[-3]):
        states[..., n + 1, :, :] = M[..., n, :, :] @ states[..., n, :, :] + U[..., n, :, :]
    return states


def groups(T, C):
    """(tokens, tokens in a block): up to GROUP whole blocks at a time, and the short one at the end.

    >>> list(groups(5, 2))
    [(slice(0, 4, None), 2), (slice(4, 5, None), 1)]
    """
    whole = T - T % C
    yield from ((b, C) for b in blocks.blocks(whole, C * GROUP) if whole)
    if T % C or not T:
        yield slice(whole, T), max(T % C, 1)


def divided(x, axis, C):
    """The token axis in blocks: (..., T, K) to (..., n, C, K)."""
    axis += x.ndim
    return x.reshape(x.shape[:axis] + (x.shape[axis] // C, C) + x.shape[axis + 1:])


def joined(x):
    """(..., n, C, V) to (..., n C, V)."""
    return x.reshape(x.shape[:-3] + (x.shape[-3] * x.shape[-2], x.shape[-1]))
