"""What a mechanism carries from one call to the next: an array, or a named tuple of arrays."""
from typing import Any, NamedTuple


class Normalized(NamedTuple):
    """State of normalised linear attention: sums of k v^T and of k."""
    S: Any                                               # (..., K, V)
    z: Any                                               # (..., K)


class Cache(NamedTuple):
    """State of softmax and sparse attention: all keys and values so far, unscaled, never cut by a window."""
    k: Any                                               # (..., n, K)
    v: Any                                               # (..., n, V)


def leaves(state):
    """The arrays of a state, as a tuple.

    >>> leaves(Normalized("S", "z")), leaves("S"), leaves(None)
    (('S', 'z'), ('S',), ())
    """
    return () if state is None else tuple(state) if isinstance(state, tuple) else (state,)


def rebuild(kind, arrays):
    """A state of the same kind as `kind`, made of `arrays`.

    >>> rebuild(Normalized(1, 2), ["S", "z"])
    Normalized(S='S', z='z')
    """
    return type(kind)(*arrays) if isinstance(kind, tuple) else next(iter(arrays))


def map_state(function, *states):
    """Apply `function` to the arrays that stand at the same place in states of one kind.

    >>> map_state(lambda a, b: a + b, Normalized(1, 2), Normalized(10, 20))
    Normalized(S=11, z=22)
    """
    return rebuild(states[0], map(function, *map(leaves, states)))
