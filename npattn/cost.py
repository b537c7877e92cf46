"""`python -m npattn cost`: what a mechanism costs, in multiplications, exponentials and bytes; derivations/16_cost.md works the numbers out.

    python -m npattn cost --mechanism softmax_attention gated_delta_rule --tokens 131072 --heads 16 --kv-heads 2 --key-dim 128 --value-dim 128

The formulas stand in the catalogue, as text such as "K V + G K V": multiplications for one token and one key head, leading terms.  Letters:
T tokens, K and V widths, C tokens in a chunk, B keys in a block, G query heads for each key head.  Additions are as many.  The matrix form
of a mechanism with a state is its chunk of all tokens.  Tests compare the formulas with operations counted in the forms themselves
(npattn.proof.counting).
"""
import inspect
from fractions import Fraction
from math import prod

import numpy as np

from .catalogue import CATALOGUE
from .core.arguments import count as at_least_1
from .core.states import leaves
from .proof.counting import count
from .proof.exact import table

FORMS = ("loop", "matrix", "chunk")
LETTERS = dict(T="tokens", K="key width", V="value width", C="tokens in a chunk", B="keys in a block", G="query heads on a key head")


def cost_command(mechanism, **sizes):
    """Prints the two tables, each under a line that says what it holds, and returns 0; ValueError, in one line, for what cannot be."""
    _, letters, everywhere, width = check(mechanism, **sizes)
    print(", ".join(f"{meaning} {letter} = {letters[letter]:,}" for letter, meaning in LETTERS.items()))
    print(f"key heads {everywhere // sizes['layers']:,}, layers {sizes['layers']:,}, bytes a number {width}")
    print("\nFormulas count multiplications for one token and one key head; the columns beside them, all tokens, heads and layers:\n")
    operations_table(mechanism, **sizes)
    print("\nWhat is kept after these tokens, and what one token more costs, in all heads and layers:\n")
    kept_table(mechanism, **sizes)
    return 0


def operations_table(mechanisms, **sizes):
    """Prints the operations of every form on `tokens` tokens, all heads and layers together; sizes as for `check`."""
    rows, letters, everywhere, _ = check(mechanisms, **sizes)
    forms = [(row, form) for row in rows for form in FORMS if multiplications(row, form, letters) is not None]
    everywhere *= letters["T"]
    table({"mechanism": [row.name for row, _ in forms], "form": [f"chunk of {letters['C']}" if form == "chunk" else form for _, form in forms],
           "formula": [formula(row, form) or "counted" for row, form in forms],
           "multiplications": [in_all(multiplications(row, form, letters) * everywhere) for row, form in forms],
           "exponentials": [in_all(exponentials(row, form, letters) * everywhere) for row, form in forms]})


def kept_table(mechanisms, **sizes):
    """Prints what is kept after `tokens` tokens, and what one token more costs: multiplications, and bytes read and written at the least."""
    rows, letters, everywhere, width = check(mechanisms, **sizes)
    table({"mechanism": [row.name for row in rows], "kept": [kept(row) for row in rows],
           "bytes kept": [in_all(kept_numbers(row, letters) * everywhere * width) for row in rows],
           "one token more: multiplications": [in_all((decoding(row, letters) or 0) * everywhere) for row in rows],
           "bytes read and written": [in_all(moved_numbers(row, letters) * everywhere * width) for row in rows]})


def check(mechanisms, *, tokens, heads, kv_heads=None, key_dim=128, value_dim=128, layers=1, chunk=64, block_size=64, dtype_bytes=4):
    """(rows of the catalogue, sizes by letter, key heads of all layers, bytes a number).

    ValueError for what is unknown, below 1, or does not divide.
    """
    unknown = [name for name in mechanisms if name not in CATALOGUE]
    if unknown:
        raise ValueError(f"there is no mechanism {unknown[0]!r}: {', '.join(CATALOGUE)}")
    kv_heads = heads if kv_heads is None else kv_heads
    for name, n in dict(tokens=tokens, heads=heads, kv_heads=kv_heads, key_dim=key_dim, value_dim=value_dim, layers=layers, chunk=chunk,
                        block_size=block_size, dtype_bytes=dtype_bytes).items():
        at_least_1(name, n)
    if heads % kv_heads:
        raise ValueError(f"heads must be a multiple of kv_heads: {heads} heads, {kv_heads} kv_heads")
    letters = dict(T=tokens, K=key_dim, V=value_dim, C=min(chunk, tokens), B=block_size, G=heads // kv_heads)
    return [CATALOGUE[name] for name in mechanisms], letters, kv_heads * layers, dtype_bytes


def in_all(x):
    return f"{round(x):,}"


# --- formulas ---------------------------------------------------------------------------------------------------

def evaluate(text, sizes):
    """The value of a formula, terms of letters and fractions joined by +, as a fraction; of an empty one 0.

    >>> print(evaluate("2 K V + 1/3 C C + 1/B C K", dict(K=2, V=5, C=3, B=4)))
    49/2
    """
    number = lambda x: sizes[x] if x in sizes else int(x)
    factor = lambda x: Fraction(number(x.partition("/")[0]), number(x.partition("/")[2] or "1"))
    return sum(prod(map(factor, term.split())) for term in text.split(" + ") if term)


def formula(row, form):
    """The formula for `form`; nothing where the catalogue has none."""
    if form == "matrix" and row.recurrent:
        return row.cost.get("chunk", "").replace("C", "T")
    return row.cost.get(form, "")


def multiplications(row, form, sizes):
    """For one token and key head: by the formula; without one counted, on one token or one chunk of a recurrent mechanism; else None."""
    if formula(row, form):
        return evaluate(formula(row, form), sizes)
    if row.recurrent and form != "matrix":
        T = 1 if form == "loop" else sizes["C"]
        return Fraction(counted(row, form, **{**sizes, "T": T}).multiplications, T)


def exponentials(row, form, sizes):
    """For one token and key head: one for each gate; one for each weight, which meets V values."""
    if row.recurrent:
        return sum(numbers(row, name, sizes) for name in row.axes if name == "g" or name.startswith("g_"))
    weighing = [term for term in formula(row, form).split(" + ") if "V" in term.split()]
    return evaluate(" + ".join(weighing), dict(sizes, V=1))


def decoding(row, sizes):
    """Multiplications for one token after `T`, for one key head: a step of the loop, or one query against all keys."""
    return multiplications(row, "loop" if row.recurrent else "matrix", sizes)


def numbers(row, name, sizes):
    """Numbers of one token in an array argument, for one key head; q has G heads for it."""
    return prod(sizes[letter] for letter in row.axes[name].split() if letter not in "TN") * (sizes["G"] if name == "q" else 1)


def kept(row):
    """The axes of the state: "K V", or "T K + T V" for a cache of T tokens."""
    return " + ".join(kind.replace("n", "T") for kind in leaves(row.axes["state"]))


def kept_numbers(row, sizes):
    return evaluate(kept(row), sizes)


def moved_numbers(row, sizes):
    """What a step must read and write at the least: its arguments and its output; a state is read and written, a cache read, and a row added."""
    token = sum(numbers(row, name, sizes) for name in row.axes if name != "state") + sizes["G"] * sizes["V"]
    return token + kept_numbers(row, sizes) + kept_numbers(row, sizes if row.recurrent else dict(sizes, T=1))


# --- counting ---------------------------------------------------------------------------------------------------

def counted(row, form, T, K, V, G=1, C=None, B=None, n=0, **options):
    """The operations of a form on random arguments for one key head: T tokens, and a state, of n earlier tokens where it is a cache."""
    x = row.arguments(np.random.default_rng(0), T, (1,), K=K, V=V, n=n)
    x["q"] = np.repeat(x["q"], G, axis=0)
    chosen = {name: size for name, size in dict(chunk_size=C if form == "chunk" else None, block_size=B).items() if size}
    f = getattr(row.module, form)
    known = {name: x for name, x in chosen.items() if name in inspect.signature(f).parameters}
    return count(f, **x, **{**row.options, **known, **options})
