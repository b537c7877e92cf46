"""Worked tables: a recurrent mechanism on a small example, every quantity in view.

    example(mechanism, ...)                       arguments by name, in fractions (example.py)
    loop_table(mechanism, **arguments)            one row a token: S before, decayed, prediction, error, S after, o
    chunk_table(mechanism, C, **arguments)        C tokens at a time: decay matrix, L, its inverse, corrected values; history, inside, carry

o is q S, without the scale: K ** -0.5 is no fraction for K = 2.  States and outputs are those of the mechanism's own `loop` and `matrix`;
what lies between, which they keep to themselves, is computed here from the definitions, for any gate, as products of factors.  Whether
those definitions are a mechanism's own is tried (`order`); one that they do not fit shows its states and outputs alone.
"""
import functools
from fractions import Fraction

import numpy as np

from ..core.blocks import blocks, cut
from ..core.states import Normalized, leaves
from ..core.triangular import inverse
from .exact import elementwise, table
from .example import example, recurrent

DECAY_FIRST, PREDICT_FIRST = "decay first", "predict first"


# --- token by token ---------------------------------------------------------------------------------------------

def loop_table(mechanism, *, state=None, longest=None, **x):
    """Prints one row a token: `decayed` is e^g S; `prediction` is what the state answers to k; the error e is v minus that; d = beta e is written.

    q, the factors e^g and beta are shown where they say something: q where it is not k, the others unless all are 1.
    Fractions of more than `longest` characters are printed as decimals; None prints all as they are.

    >>> loop_table("delta_rule", **example("delta_rule", tokens=2, keys="identity", beta="1/2"))
    t |    k |    v | beta | S before | prediction | error e | d = beta e |  S after |      o
    1 | 1  0 | 1  0 |  1/2 |     0  0 |       0  0 |    1  0 |     1/2  0 |   1/2  0 | 1/2  0
      |      |      |      |     0  0 |            |         |            |     0  0 |
    2 | 0  1 | 0  1 |  1/2 |   1/2  0 |       0  0 |    0  1 |     0  1/2 | 1/2    0 | 0  1/2
      |      |      |      |     0  0 |            |         |            |   0  1/2 |
    """
    table(shorten(loop_steps(mechanism, state=state, **x), longest))


def loop_steps(mechanism, *, state=None, **x):
    """The columns of `loop_table`: a heading and one entry a token, states as (K, V), the rest as vectors."""
    row, k, v = recurrent(mechanism), x["k"], x["v"]
    before, f, steps = run(row, "loop", cut(x, row.axes, slice(0, 0)), state)[1], factors(k, x.get("g")), []
    given = {"q": x["q"] if (x["q"] != k).any() else None, "k": k, "v": v,
             "e^g": f if (f != 1).any() else None, "beta": x["beta"] if "beta" in x and (x["beta"] != 1).any() else None}
    for t in range(len(k)):
        o, after = run(row, "loop", cut(x, row.axes, slice(t, t + 1)), before)
        step = {"t": t + 1, **{name: y[t] for name, y in given.items() if y is not None}, **named(before, "before")}
        if order(mechanism):
            between, _ = token(order(mechanism), f[t], before, k[t], v[t], x["beta"][t] if "beta" in x else None)
            step |= {heading: y for heading, y in between.items() if heading != "decayed" or "g" in x}
        steps.append({**step, **named(after, "after"), "o": o[0]})
        before = after
    return {heading: [step[heading] for step in steps] for heading in steps[0]}


def token(order, f, S, k, v, beta):
    """(what lies between, by heading, and the matrix after) of one token: factors f (K or 1), state S, no beta: no prediction."""
    S = leaves(S)[0]
    decayed = f[:, None] * S
    if beta is None:
        return {"decayed": decayed}, decayed + np.outer(k, v)
    prediction = k @ (S if order == PREDICT_FIRST else decayed)
    d = beta * (v - prediction)
    return {"decayed": decayed, "prediction": prediction, "error e": v - prediction, "d = beta e": d}, decayed + np.outer(k, d)


@functools.cache
def order(mechanism):
    """The order in which the columns above are what the mechanism does: both are tried on three tokens; None if neither is."""
    row = recurrent(mechanism)
    if not row.exact or not set(row.axes) <= {"q", "k", "v", "g", "beta", "state"} or leaves(row.axes["state"])[0] != "K V":
        return None
    decays = {None: None, "T": "1/2, 1/3, 2/3", "T K": "1/2 1/3, 1/3 3/4, 2/3 1/5"}
    x = example(mechanism, 3, "random", decays[row.axes.get("g")], "1/2, 2, 3/4" if "beta" in row.axes else None)
    f, states = factors(x["k"], x.get("g")), [run(row, "loop", cut(x, row.axes, slice(0, t)), None)[1] for t in range(4)]
    o = run(row, "loop", x, None)[0]

    def fits(order):
        for t in range(3):
            S = token(order, f[t], states[t], x["k"][t], x["v"][t], x["beta"][t] if "beta" in x else None)[1]
            read = x["q"][t] @ S
            if isinstance(states[t], Normalized):
                read = read / (x["q"][t] @ (states[t].z + x["k"][t]))
            if not ((S == leaves(states[t + 1])[0]).all() and (read == o[t]).all()):
                return False
        return True

    return next(filter(fits, (DECAY_FIRST, PREDICT_FIRST)), None)


def run(row, form, x, state):
    """A form on arguments x, q not scaled."""
    scale = {} if isinstance(row.axes["state"], Normalized) else dict(scale=1)
    return getattr(row.module, form)(**x, **row.options, **scale, state=state)


def named(state, when):
    """{"S before": S}, and z with it where the state is a pair."""
    return {f"{name} {when}": x for name, x in zip(getattr(state, "_fields", ("S",)), leaves(state))}


def factors(k, g):
    """The factors e^g: (T, K) for gates per channel, else (T, 1), ones if there is no gate."""
    return 0 * k[:, :1] + 1 if g is None else np.exp(g).reshape(len(k), -1)


def shorten(steps, longest):
    """`steps` with every fraction of more than `longest` characters as a decimal; None changes nothing."""
    def short(x):
        try:
            return x.numerator / x.denominator if isinstance(x, Fraction) and len(str(x)) > longest else x
        except OverflowError:                                       # there is no such decimal
            return x

    return steps if longest is None else {heading: [elementwise(short, y) for y in column]
                                          for heading, column in steps.items()}


# --- chunk by chunk ---------------------------------------------------------------------------------------------

def chunk_table(mechanism, chunk_size, *, state=None, longest=None, **x):
    """Prints for each chunk how its writes d are found, what it puts out, and what it carries on; `longest` as for `loop_table`."""
    for b, tables in chunk_steps(mechanism, chunk_size, state=state, **x):
        print(f"tokens {b.start + 1} to {b.stop}")
        for quantities in tables:
            table(shorten({heading: [y] for heading, y in quantities.items()}, longest))


def chunk_steps(mechanism, chunk_size, *, state=None, **x):
    """For each chunk its slice of the tokens and its tables, each a dict from heading to array.

    The writes:   D decay, token j to token i;  a decay, first state to token i;  L[i, j] = beta_i k_i . k_j, decayed, for j < i;  (I + L)^-1;
                  U = (I + L)^-1 beta v, the corrected values;  W = (I + L)^-1 beta a k, which takes off what the first state answers already;
                  d = U - W S, the d of the loop
    The outputs:  P[i, j] = q_i . k_j, decayed, for j <= i;  history a q S;  inside P d;  o their sum;  S after = A S + (z k)^T d
    Without beta nothing is predicted, and v stands for d; without a gate D, a, z and A are 1 and are not shown.
    """
    row, steps = recurrent(mechanism), []
    if state is None:
        state = run(row, "matrix", cut(x, row.axes, slice(0, 0)), None)[1]
    for b in blocks(len(x["k"]), chunk_size):
        part = cut(x, row.axes, b)
        o, after = run(row, "matrix", part, state)
        writes, outputs, carry = inside(mechanism, leaves(state), **part) if order(mechanism) else ({}, {}, {})
        first, second = {**named(state, "before"), **writes}, {**outputs, "o": o, **carry, **named(after, "after")}
        steps.append((b, [first, second] if "L" in writes else [{**first, **second}]))
        state = after
    return steps


def inside(mechanism, state, *, q, k, v, g=None, beta=None):
    """The quantities of one chunk, from their definitions: (those on the way to d, those on the way to o, the carry)."""
    f, S = factors(k, g), state[0]
    D, a = products(f), np.cumprod(f, 0)                                     # T T (K or 1), T (K or 1)
    z, writes, d = D[-1], {} if g is None else {**channels(D), "a": a}, v
    if beta is not None:
        Dk, ak = D, a
        if order(mechanism) == PREDICT_FIRST:                                # on the way to a prediction, one gate less
            Dk, ak = np.concatenate([0 * D[:1], D[:-1]]), np.concatenate([0 * a[:1] + 1, a[:-1]])
        b = beta[:, None]
        L = np.tril(b * (k[:, None] * k[None] * Dk).sum(-1), -1)             # T T
        X = inverse(L)                                                       # T T
        U, W = X @ (b * v), X @ (b * ak * k)                                 # T V, T K
        d = U - W @ S                                                        # T V
        writes |= {"L": L, "(I + L)^-1": X, "U": U, "W": W, "d = U - W S": d}
    P = (q[:, None] * k[None] * D).sum(-1)                                   # T T
    outputs = {"P": P, "history": a * q @ S, "inside": P @ d}
    if len(state) > 1:
        outputs["row sums"] = (q @ state[1] + P.sum(-1))[:, None]
    wrote = "v" if beta is None else "d"
    carry = {f"k^T {wrote}": k.T @ d} if g is None else {"A S": a[-1][:, None] * S, f"(z k)^T {wrote}": (z * k).T @ d}
    return writes, outputs, carry


def products(f):
    """D[i, j] = f[j + 1] ... f[i] for j <= i, else 0, from factors f (T, K): (T, T, K)."""
    return np.stack([np.stack([f[j + 1:i + 1].prod(0) if j <= i else 0 * f[0] for j in range(len(f))]) for i in range(len(f))])


def channels(D):
    """(T, T, 1) as one column of the table, (T, T, K) as one for each channel."""
    return {"D": D[..., 0]} if D.shape[-1] == 1 else {f"D, channel {c + 1}": D[..., c] for c in range(D.shape[-1])}
