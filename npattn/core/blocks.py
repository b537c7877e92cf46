"""The matrix form block by block, the state carried: one lift for every recurrent mechanism.

Blocks of 32 to 64 tokens stay in cache, so the readable form is the fast form; time is linear in T, and the memory beyond the output does
not grow with it; gradients keep one state a block.  On a GPU all blocks are taken side by side instead: core/side_by_side.py.
What has become NaN or infinite in a block reaches all of its tokens, the earlier ones too, since 0 NaN is NaN; never an earlier block.
"""
import functools
import inspect

from . import side_by_side
from .arguments import check, first_state, fit, leaf_names, start_vjp
from .arrays import array_module, sum_to
from .kinds import count
from .states import leaves


def chunk(matrix):
    """`matrix` on blocks of `chunk_size` tokens: the same arguments, the same results, for every block size."""
    axes, check_names = matrix.__globals__["AXES"], named("chunk", matrix)

    def chunk(q, k, v, *, chunk_size=64, state=None, **others):
        """`matrix` on chunk_size tokens at a time, the state carried from block to block."""
        check_names(others)
        tokens, options = split(axes, dict(q=q, k=k, v=v, **others))
        chunk_size, whole = count("chunk_size", chunk_size), None
        sizes = check(axes, dict(tokens, state=state))
        T = sizes["T"]
        if T > chunk_size and side_by_side.applies(axes, q):
            state, _ = first_state(axes, tokens, state, sizes)
            return side_by_side.chunk(matrix, axes, tokens, options, state, T, chunk_size)
        for b in blocks(T, chunk_size):
            o, state = matrix(**cut(tokens, axes, b), **options, state=state)
            if whole is None:
                if T <= chunk_size:
                    return o, state
                whole = array_module(o).empty(o.shape[:-2] + (T,) + o.shape[-1:], o.dtype)
            whole[..., b, :] = o
        return whole, state

    return lifted(chunk, matrix)


def chunk_vjp(matrix, matrix_vjp):
    """`matrix_vjp` on blocks, last to first: states are kept at block boundaries only, the rest is recomputed inside."""
    axes, check_names = matrix.__globals__["AXES"], named("chunk_vjp", matrix)

    def chunk_vjp(do, q, k, v, *, chunk_size=64, state=None, dfinal_state=None, **others):
        """`matrix_vjp` on chunk_size tokens at a time, last block first; one state is kept for each, the rest recomputed inside."""
        check_names(others)
        tokens, options = split(axes, dict(q=q, k=k, v=v, **others))
        chunk_size = count("chunk_size", chunk_size)
        T = check(axes, dict(tokens, do=do, state=state, dfinal_state=dfinal_state))["T"]
        if T > chunk_size and side_by_side.applies(axes, q):
            _, _, S, do, dS, _, _ = start_vjp(axes, do, **tokens, scale=options.get("scale"), state=state, dfinal_state=dfinal_state)
            d, dS = side_by_side.chunk_vjp(matrix, matrix_vjp, axes, do, tokens, options, S, sum_to(dS, S.shape), T, chunk_size)
            return dict(d, state=fit(dS, S if state is None else state))
        steps, states = list(blocks(T, chunk_size)), [state]
        deepest = max(x.ndim for x in (*tokens.values(), *leaves(state)))
        for b in steps[:-1]:
            states.append(matrix(**dict(cut(tokens, axes, b), q=unread(q, b, deepest)), **options, state=states[-1])[1])
        whole = {}
        for b in reversed(steps):
            d = matrix_vjp(do[..., b, :], **cut(tokens, axes, b), **options, state=states.pop(), dfinal_state=dfinal_state)
            dfinal_state = d.pop("state")
            if T <= chunk_size:
                return dict(d, state=dfinal_state)
            for name, x in d.items():
                if name not in whole:
                    whole[name] = array_module(x).empty(tokens[name].shape, x.dtype)
                whole[name][at(axes[name], b)] = x
        return dict(whole, state=dfinal_state)

    return lifted(chunk_vjp, matrix_vjp)


def blocks(T, size):
    """The slices of 0 … T, `size` tokens each, the last perhaps shorter; one empty slice if there is no token.

    >>> list(blocks(5, 2)), list(blocks(0, 2))
    ([slice(0, 2, None), slice(2, 4, None), slice(4, 5, None)], [slice(0, 0, None)])
    """
    return (slice(s, min(s + size, T)) for s in range(0, max(T, 1), size))


def at(kind, b):
    """The index that takes tokens `b` of an argument whose last axes are `kind`, such as "T K"."""
    return (..., b) + (slice(None),) * (-1 - token_axis(kind))


def token_axis(kind):
    """The axis of the tokens, counted from the right: T, or N where keys may be more or fewer than queries.

    >>> token_axis("T"), token_axis("N K")
    (-1, -2)
    """
    letters = kind.split()
    return next(axis for axis in range(-len(letters), 0) if letters[axis] in ("T", "N"))


def unread(q, b, n):
    """No queries at all, (0, 1, ..., tokens, K) with n axes of length 1: with them a form computes the state alone, which no query changes."""
    return array_module(q).empty((0,) + (1,) * n + (b.stop - b.start, q.shape[-1]), q.dtype)


def split(axes, arguments):
    """(arrays with a token axis, options such as scale)."""
    tokens = {name: x for name, x in arguments.items() if name in axes}
    return tokens, {name: x for name, x in arguments.items() if name not in axes}


def cut(tokens, axes, b):
    """Tokens `b` of every array."""
    return {name: x[at(axes[name], b)] for name, x in tokens.items()}


def named(name, of):
    """A check that keywords are those of `of`: TypeError, as Python's own, but with the `name` of the form that was called."""
    keywords = [p for p in inspect.signature(of).parameters.values() if p.kind is p.KEYWORD_ONLY]
    known, needed = {p.name for p in keywords}, [p.name for p in keywords if p.default is p.empty]

    def check_names(given):
        missing = [x for x in needed if x not in given]
        if missing:
            raise TypeError(f"{name}() is missing {' and '.join(map(repr, missing))}")
        for x in given:
            if x not in known:
                raise TypeError(f"{name}() got an unexpected keyword argument {x!r}")

    return check_names


def lifted(form, of):
    """Give `form` the signature of `of` plus chunk_size, its place in that module, and a docstring that says what goes in."""
    functools.update_wrapper(form, of, assigned=("__module__",))
    parameters = inspect.signature(of).parameters
    size = inspect.Parameter("chunk_size", inspect.Parameter.KEYWORD_ONLY, default=64)
    form.__qualname__ = form.__name__
    form.__signature__ = inspect.Signature([*parameters.values(), size])
    axes = of.__globals__["AXES"]
    axes = dict(do=axes.get("o", "T V"), **axes, dfinal_state=axes["state"])
    shapes = ", ".join(f"{part} (..., {kind.replace(' ', ', ')})" for name in axes if name in parameters
                       for part, kind in zip(leaf_names(name, axes[name]), leaves(axes[name])))
    form.__doc__ = (f"{of.__module__.rpartition('.')[2]}: {form.__doc__}\n\n{shapes};\n"
                    "chunk_size tokens in a block, an integer of at least 1, which changes nothing but rounding.\n"
                    f"Results are those of `{of.__name__}`; what the arguments mean: help({of.__module__!r}).")
    return form
