"""`python -m npattn table`: the worked table of a recurrent mechanism on a small example, in fractions.

    python -m npattn table gated_delta_rule --decay "1, 1/2, 1, 1/2"                 token by token
    python -m npattn table gated_delta_rule --decay "1, 1/2, 1, 1/2" --chunk 2       chunk by chunk: the same numbers, another way

Below the table stands how each column follows from those before it; the mechanism's page in derivations/ works such a table out.
"""
import inspect
from math import isqrt

from .catalogue import CATALOGUE
from .core.states import Normalized
from .proof.worked import PREDICT_FIRST, chunk_table, example, loop_table, order


def table_command(mechanism, tokens, keys, width, decay, beta, chunk, exact, seed):
    """Prints the table and returns 0; ValueError, in one line, if the arguments make no example."""
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk must be at least 1, not {chunk}")
    x = example(mechanism, tokens, keys, decay, beta, width, seed)
    longest = None if exact else 9
    if chunk is None:
        loop_table(mechanism, longest=longest, **x)
    else:
        chunk_table(mechanism, chunk, longest=longest, **x)
    if order(mechanism):
        print("\n".join(["", *(loop_columns if chunk is None else chunk_columns)(mechanism, x)]))
    if "scale" in inspect.signature(CATALOGUE[mechanism].module.loop).parameters:
        print(f"o is not scaled here; the default scale is {scale(x['q'].shape[-1])}")
    print(f"explained in derivations/{CATALOGUE[mechanism].page}.md")
    return 0


def loop_columns(mechanism, x):
    """What the columns of `loop_table` are, as lines."""
    if "g" in x:
        yield "decayed = e^g (S before)"
    fades = "decayed" if "g" in x else "S before"
    if "beta" in x:
        yield f"prediction = k ({'S before' if order(mechanism) == PREDICT_FIRST else fades}), error e = v - prediction, d = beta e"
    yield f"S after = {fades} + k^T {'d' if 'beta' in x else 'v'}, o = q (S after){' / q (z after)' * divides(mechanism)}" + sums(mechanism)


def chunk_columns(mechanism, x):
    """What the columns of `chunk_table` are, as lines."""
    gated, wrote = "g" in x, "d" if "beta" in x else "v"

    def product(one, other, i):
        """one[i] . other[j], with the decay that token j's write has met at i."""
        if gated and x["g"].ndim == 2:
            return f"sum over the channels of {one}[i] {other}[j] D[{i}, j]"
        return f"{one}[i].{other}[j]" + f" D[{i}, j]" * gated

    if gated:
        yield "D[i, j] = the factors e^g of tokens j + 1 to i, multiplied; a[i] = those of the chunk up to i; A = the last a; z = the last row of D"
    if "beta" in x:
        less = " - 1" * (order(mechanism) == PREDICT_FIRST)
        yield f"L[i, j] = beta[i] {product('k', 'k', 'i' + less)} for j < i"
        yield "U = (I + L)^-1 beta v, W = (I + L)^-1 beta " + f"a[i{less}] " * gated + "k"
    yield f"P[i, j] = {product('q', 'k', 'i')} for j <= i, history = {'a ' * gated}q (S before), inside = P {wrote}, " + (
        "row sums = q (z before) + the sums of P, o = (history + inside) / row sums" if divides(mechanism) else "o = history + inside")
    yield (f"S after = A S + (z k)^T {wrote}" if gated else f"S after = S before + k^T {wrote}") + sums(mechanism)


def sums(mechanism):
    return ", z after = z before + the sum of k" * divides(mechanism)


def divides(mechanism):
    return isinstance(CATALOGUE[mechanism].axes["state"], Normalized)


def scale(K):
    return f"1/{isqrt(K)}" if isqrt(K) ** 2 == K else f"1/sqrt({K})"
