"""Small examples in fractions: what a page or `python -m npattn table` computes with."""
from fractions import Fraction

import numpy as np

from ..catalogue import CATALOGUE
from ..core.states import Normalized
from .exact import fractions, log, random_fractions


def example(mechanism, tokens=None, keys="cycle", decay=None, beta=None, width=2, seed=0):
    """Arguments of a small example in fractions, by name.

    tokens   None is as many as `decay` or `beta` have entries, 4 if each has one at most
    keys     "identity": q = k = v = I, as wide as there are tokens;  "cycle": e1, e2, ... e1, e2, ..., `width` of them, and v = q = k;
             "random": keys of length 1, v and q at random
    decay    factors in 0 ... 1, not logarithms, one for all tokens or one a token: "1, 1/2, 1, 1/2"; for gates per channel an entry may hold one
             number a channel: "1 1/2, 1/2 1".  None is 1, no decay
    beta     one for all tokens or one a token; None is 1

    Raises ValueError, in one line, for what makes no example.

    >>> example("delta_rule", beta="1, 1/2")["k"].tolist()
    [[Fraction(1, 1), Fraction(0, 1)], [Fraction(0, 1), Fraction(1, 1)]]
    """
    row = recurrent(mechanism)
    for name, given in dict(g=decay, beta=beta).items():
        if given is not None and name not in row.axes:
            raise ValueError(f"{mechanism} has no {'decay' if name == 'g' else name}")
    if tokens is None:
        tokens = max(len(str(given).split(",")) for given in (decay, beta))
        tokens = 4 if tokens == 1 else tokens
    for name, n, least in ("tokens", tokens, 1), ("width", width, 1), ("seed", seed, 0):
        if n < least:
            raise ValueError(f"{name} must be at least {least}, not {n}")
    rng = np.random.default_rng(seed)
    if keys == "random":
        k, v, q = unit_fractions(rng, tokens, width), random_fractions(rng, (tokens, width)), random_fractions(rng, (tokens, width))
    elif keys in ("identity", "cycle"):
        width = tokens if keys == "identity" else width
        q = k = v = fractions([[int(i % width == j) for j in range(width)] for i in range(tokens)])
    else:
        raise ValueError(f"keys must be identity, cycle or random, not {keys!r}")
    if isinstance(row.axes["state"], Normalized):
        q, k = abs(q), abs(k)                                       # what a feature map gives: weights that are not negative
    sizes, x = dict(T=tokens, K=width, V=width), dict(q=q, k=k, v=v)
    for name, kind in row.axes.items():
        if name == "beta" and kind == "T":
            x[name] = entries("beta", "1" if beta is None else beta, tokens, 1)[:, 0]
        elif name == "g" or name.startswith("g_"):
            f = entries("decay", "1" if decay is None else decay, tokens, 1 if kind == "T" else width)
            if not ((f >= 0) & (f <= 1)).all():
                raise ValueError(f"decay: a factor lies in 0 ... 1, which {decay!r} does not")
            x[name] = log(f[:, 0] if kind == "T" else f)
        elif name not in ("state", *x):
            x[name] = random_fractions(rng, [sizes[letter] for letter in kind.split()])
    return x


def entries(name, text, tokens, width):
    """(tokens, width) fractions from "1, 1/2, ..." or "1 1/2, 1/2 1, ...".

    One entry for all tokens or one a token; in it one number for all channels or one each.
    """
    try:
        rows = [[Fraction(x) for x in entry.split()] for entry in str(text).split(",")]
    except (ValueError, ZeroDivisionError):
        raise ValueError(f"{name}: {text!r} is not a list of numbers such as \"1, 1/2, 0.25\"") from None
    if len(rows) not in (1, tokens) or any(len(r) not in (1, width) for r in rows):
        entries = f"1 or {tokens} entries" if tokens > 1 else "1 entry"
        raise ValueError(f"{name}: {text!r} should have {entries}, separated by commas, of " + (f"1 or {width} numbers" if width > 1 else "1 number"))
    return fractions([r * (width // len(r)) for r in rows * (tokens // len(rows))])


def unit_fractions(rng, n, width):
    """n random vectors of length exactly 1 with rational entries: (2 t, t . t - 1) / (t . t + 1), t at random."""
    t = random_fractions(rng, (n, width - 1), largest=2, denominators=(1, 2))
    square = fractions((t * t).sum(-1, keepdims=True))
    return np.concatenate([2 * t, square - 1], axis=-1) / (square + 1)


def recurrent(mechanism):
    """The mechanism's row in the catalogue; ValueError if there is none, or if it has no state of fixed size."""
    if mechanism not in CATALOGUE:
        raise ValueError(f"there is no mechanism {mechanism!r}: {', '.join(name for name, row in CATALOGUE.items() if row.recurrent)}")
    row = CATALOGUE[mechanism]
    if not row.recurrent:
        raise ValueError(f"{mechanism} keeps a cache that grows, not a state: no table of states")
    return row
