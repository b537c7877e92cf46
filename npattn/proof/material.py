"""What laws are made of: the forms of a mechanism, and arguments for them."""
import inspect
from itertools import accumulate

import numpy as np

from ..catalogue import positive
from ..core.blocks import cut, token_axis
from ..core.cached import OVER_SCORES
from ..core.packed import cached
from ..core.states import map_state
from .exact import log, random_factors, random_fractions

T = 17
SHAPES = (dict(lead=(), K=4, V=3, state=False), dict(lead=(2,), K=4, V=5, state=True))       # K > V, K < V


def random(seed=0):
    return np.random.default_rng(seed)


def gates(row):
    """The names of the arguments that are logs of decays."""
    return [name for name in row.axes if name == "g" or name.startswith("g_")]


def forms(row, sizes):
    """(name, function) of `matrix`, and of `chunk` for every block size."""
    yield "matrix", row.module.matrix
    for C in sizes:
        yield f"chunk of {C}", lambda C=C, **x: row.module.chunk(**x, chunk_size=C)


def every_form(row, sizes=(3,)):
    return [("loop", row.module.loop), *forms(row, sizes)]


def exact_arguments(row, rng, T, lead=(), K=4, V=3, n=2, state=True):
    """Random rational arguments; gates are exact logarithms, of 0 and of 1 among others."""
    def exact(name, x):
        if name in gates(row):
            return log(random_factors(rng, x.shape))
        y = random_fractions(rng, x.shape)
        return abs(y) + 1 if row.makers.get(name) is positive else y

    x = row.arguments(rng, T, lead, K, V, n, state=state)
    return {name: y if y is None else map_state(lambda part: exact(name, part), y) for name, y in x.items()}


def no_state(row, x):
    """What the state None of arguments x stands for."""
    lead, sizes = x["v"].shape[:-2], dict(K=x["k"].shape[-1], V=x["v"].shape[-1], n=0)
    return map_state(lambda kind: np.zeros(lead + tuple(sizes[letter] for letter in kind.split()), x["v"].dtype), row.axes["state"])


def over_scores(row, queries, keys):
    """[a random mask and bias over so many queries and keys], or nothing if the mechanism takes none.  Some rows are hidden altogether."""
    names = [name for name in OVER_SCORES if name in inspect.signature(row.module.loop).parameters]
    rng = random(2)
    mask, bias = (rng.random((queries, keys)) < .7) & (rng.random((queries, 1)) < .9), rng.standard_normal((queries, keys))
    return [{name: dict(mask=mask, bias=bias)[name] for name in names}] if names else []


def packed_arguments(row):
    """(arguments without a state, ends of the sequences, their states, ends of their columns among the keys): one has no tokens."""
    ends, held = (0, 4, 4, 9), (2, 3, 0)
    x = row.arguments(random(), ends[-1], lead=(2,))
    states = [row.arguments(random(n), 1, lead=(2,), n=size)["state"] for n, size in enumerate(held)]
    columns = accumulate((e - s + cached(S) for s, e, S in zip(ends, ends[1:], states)), initial=0)
    return {name: y for name, y in x.items() if name != "state"}, ends, states, list(columns)


def together(row, states):
    """The states of several sequences as core.packed takes them."""
    return map_state(lambda *parts: np.stack(parts), *states) if row.recurrent else states


def tokens(row, x, b):
    """Tokens `b` of every argument; the state is left out."""
    x = {name: y for name, y in x.items() if name != "state"}
    return cut(x, row.axes, b)


def extended(row, x, y):
    """The tokens of x followed by those of y, from the state of x."""
    return {name: x[name] if name == "state" else np.concatenate([x[name], y[name]], token_axis(kind)) for name, kind in row.axes.items()}


def cast(result, dtype):
    return tuple(map_state(lambda x: x.astype(dtype), part) for part in result)


def reset_arguments(row):
    x = row.arguments(random(), T, lead=(2,))
    for name in gates(row):
        x[name][:, 8] = -np.inf
    return x


def extreme_arguments(row):
    """(label, arguments, block sizes)."""
    x = row.arguments(random(), 64, lead=(2,), dtype=np.float32)
    chosen = lambda *values: {name: random(1).choice(np.float32(values), x[name].shape) for name in gates(row)}
    mixed = chosen(-.01, -1, -20, -1e3, -1e4, -np.inf)
    if mixed:
        yield "gates from -0.01 to -inf", dict(x, **mixed), (16, 64)
        yield "gates from -1e3 to -1e4", dict(x, **chosen(-1e3, -1e4)), (16, 64)
    if "beta" not in x:                                  # whole numbers: their products are exact in float32
        yield "large queries and keys", dict(x, **{name: np.rint(8 * x[name]) * np.float32(8) for name in "qk"}), (16, 64)
    if "beta" in x:
        two = np.full_like(x["beta"], 2)
        same = dict(x, beta=two, k=np.full_like(x["k"], .5))                 # K = 4: the norm is exactly 1
        yield "one key, beta = 2", same, (16, 64)
        yield "one key, beta = 2, gates from -0.01 to -inf", dict(same, **mixed), (16, 64)
        # k k^T in float32 is off by 1e-7, which n reflections make n times as large: in blocks of 8
        yield "one rounded key, beta = 2", dict(same, k=np.zeros_like(x["k"]) + x["k"][..., :1, :]), (8,)
