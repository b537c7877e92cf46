"""All blocks side by side: the block forms for arrays on a GPU, where one small block after the other keeps few of its processors busy.

A block of a recurrent mechanism with a state (K, V) is affine in that state.  So one call of `matrix` on all blocks at once, with a first state
that is not known yet (core/affine.py), gives for every block n

    o = O_n S[n] + o_n      last state = F_n S[n] + U_n

F_n is a matrix (K, K) or, where nothing is erased, a factor for each row.  What is left are single products and sums:

    S[n+1] = F_n S[n] + U_n                     the states between blocks, one after the other
    o      = O_n S[n] + o_n                     all outputs
    dS[n]  = F_n^T dS[n+1] + O_n^T do_n         the gradients of those states, last to first

With the states and their gradients on both sides of every block, `matrix_vjp` does all blocks at once.  GROUP blocks are taken at a time, so
that what is needed beyond the output does not grow with T; the gradients keep S, F and O^T do of each block.

Blocks stand in front of all other axes: (..., T, K) is (n, ..., C, K).
"""
import numpy

from . import blocks
from .affine import UNKNOWN
from .arrays import array_module, sum_to

GROUP = 64


def applies(axes, x):
    """Whether a mechanism's blocks are taken side by side: on a device, and where the state is one matrix."""
    return array_module(x) is not numpy and axes["state"] == "K V"


def chunk(matrix, axes, tokens, options, state, T, C):
    """(o, state): as `blocks.chunk`, of the arguments `tokens`, which have a token axis, and of a whole first state."""
    xp, rank, S, whole = array_module(tokens["q"]), deepest(axes, tokens, state), state, None
    for b, size in groups(T, C):
        o, erases, F, U = affine(matrix, cut(tokens, axes, b, size, rank), options)
        S = scan(erases, F, U, of_rank(S, rank))                             # n+1 ... K V
        read = o.read @ S[:-1]                                               # n ... C V
        if whole is None:
            lead = numpy.broadcast_shapes(read.shape[1:-2], o.c.shape[1:-2])
            whole = xp.empty(lead + (T, read.shape[-1]), numpy.result_type(read.dtype, o.c.dtype))
        xp.add(read, o.c, out=divided(whole[..., b, :], -2, size, rank))
        S = S[-1]                                                            # ... K V
    return whole, S.reshape(state.shape).copy()


def chunk_vjp(matrix, matrix_vjp, axes, do, tokens, options, state, dfinal_state, T, C):
    """(the gradients of `tokens` by name, that of the state): as `blocks.chunk_vjp`, of whole do, state and dfinal_state."""
    xp, rank, S, kept, whole = array_module(tokens["q"]), deepest(axes, tokens, state), state, [], {}
    for b, size in groups(T, C):
        o, erases, F, U = affine(matrix, cut(tokens, axes, b, size, rank), options)
        S = scan(erases, F, U, of_rank(S, rank))                             # n+1 ... K V
        dread = sum_to(o.read.mT @ divided(do[..., b, :], -2, size, rank), S[1:].shape)      # n ... K V   O^T do
        kept.append((b, size, S[:-1], erases, F, dread))
        S = S[-1]                                                            # ... K V
    dS = of_rank(dfinal_state, rank)
    while kept:
        b, size, S, erases, F, dread = kept.pop()
        F = F.mT.copy() if erases else F                                     # one copy, which CuPy would make block by block
        dS = scan(erases, F, dread, dS, backwards=True)                      # n+1 ... K V
        d = matrix_vjp(divided(do[..., b, :], -2, size, rank), **cut(tokens, axes, b, size, rank), **options, state=S, dfinal_state=dS[1:])
        for name, x in tokens.items():
            if name not in whole:
                whole[name] = xp.empty(x.shape, d[name].dtype)
            divided(whole[name][blocks.at(axes[name], b)], blocks.token_axis(axes[name]), size, rank)[...] = d[name]
        dS = dS[0]                                                           # ... K V
    return whole, dS.reshape(state.shape)


def affine(matrix, inputs, options):
    """(o, erases, F, U) of all blocks, before their states are known.

    o is an Affine: O_n is o.read, o_n is o.c.  F is (n, ..., K, K) if the blocks erase, else (n, ..., K, 1) or (n, ..., 1, 1); U (n, ..., K, V).
    """
    o, last = matrix(**inputs, **options, state=UNKNOWN)
    A, M, U, xp = last.A, last.read, last.c, array_module(last.c)
    if not hasattr(A, "shape"):
        A = xp.full((len(U),) + (1,) * (U.ndim - 1), A, (U if M is None else M).dtype)
    if M is None:
        return o, False, A, U
    K = M.shape[-1]
    M.reshape(M.shape[:-2] + (K * K,))[..., ::K + 1] += A[..., 0]            # on the diagonal of M, through a view
    return o, True, M, U


def scan(erases, F, U, S, backwards=False):
    """S[0] = S, S[n+1] = F_n S[n] + U_n; backwards S[N] = S, S[n] = F_n S[n+1] + U_n.

    F and U as `affine` gives them, of N blocks; S (..., K, V).  Returns (N+1, ..., K, V), of S's type or wider.
    """
    xp, N = array_module(U), len(U)
    states = xp.empty((N + 1,) + S.shape, numpy.result_type(S.dtype, F.dtype, U.dtype))
    states[N if backwards else 0] = S
    for n in reversed(range(N)) if backwards else range(N):
        before, after = (states[n + 1], states[n]) if backwards else (states[n], states[n + 1])
        (xp.matmul if erases else xp.multiply)(F[n], before, out=after)
        after += U[n]
    return states


# --- blocks in front -----------------------------------------------------------------------------------------------------

def groups(T, C):
    """(tokens, tokens in a block): up to GROUP whole blocks at a time, and the short one at the end.

    >>> list(groups(5, 2))
    [(slice(0, 4, None), 2), (slice(4, 5, None), 1)]
    """
    whole = T - T % C
    yield from ((b, C) for b in blocks.blocks(whole, C * GROUP) if whole)
    if T % C or not T:
        yield slice(whole, T), max(T % C, 1)


def cut(tokens, axes, b, C, rank):
    """Tokens `b` of every array, in blocks of C.

    k in an array of its own, since CuPy would copy a view of it for every product; and what runs backwards, since CuPy's products take no
    negative stride along an axis of length 1.
    """
    inputs = {name: divided(x, blocks.token_axis(axes[name]), C, rank) for name, x in blocks.cut(tokens, axes, b).items()}
    return {name: x.copy() if name == "k" or min(x.strides) < 0 else x for name, x in inputs.items()}


def divided(x, axis, C, rank):
    """The token axis in blocks, the blocks in front of `rank` leading axes, as a view: (..., T, K) to (n, ..., C, K)."""
    lead, (T, *rest) = x.shape[:axis], x.shape[axis:]
    x = x.reshape((1,) * (rank - len(lead)) + lead + (T // C, C, *rest))
    return array_module(x).moveaxis(x, rank, 0)


def deepest(axes, tokens, state):
    """How many leading axes they have at most."""
    return max(x.ndim - len(axes[name].split()) for name, x in dict(tokens, state=state).items())


def of_rank(S, rank):
    """S (..., K, V) with axes of length 1 in front, to make `rank` leading axes."""
    return S.reshape((1,) * (rank + 2 - S.ndim) + S.shape)
