"""The axes of every array in a dump, and from either layout to (B, heads, T, …) in float64."""
import numpy as np

from ..core.arguments import leaf_names
from ..core.packed import sequences
from ..core.states import leaves
from .problem import SCORES, takes

LAYOUTS = ("bthd", "bhtd")


class DumpError(ValueError):
    """What makes a dump unusable, in one line, whatever names and values it quotes."""

    def __init__(self, message):
        line = " ".join(message.split())
        super().__init__(line if len(line) <= 1000 else line[:1000] + " …")


def key_axes(row, packed=False):
    """The axes of every array that a dump of this mechanism may have, heads before tokens: {"g": ["B", "HV", "T"], …}.

    A recurrence has q and k of H heads and all else of HV; softmax attention has k and v of Hkv heads and all else of Hq.  A state has a
    row for each packed sequence, S of them.
    """
    few, many = heads(row)
    small, table = ("q", "k") if row.recurrent else ("k", "v"), {}
    columns = "n + " + row.axes["k"].split()[0]          # all keys: cached and new
    needed, optional, *_ = takes(row)
    for name, kind in ({name: row.axes[name] for name in (*needed, *optional) if name not in SCORES} | {"o": "T V"}).items():
        table[name] = table["d" + name] = ["B", few if name in small else many, *kind.split()]
    for name in SCORES:
        if name in optional:
            table["opt." + name] = table["d" + name] = ["B", many, "T", columns]
    for state in ("state", "dstate", "final_state", "dfinal_state"):
        for key, kind in zip(leaf_names(state, row.axes["state"]), leaves(row.axes["state"])):
            letters = [columns if x == "n" and "final" in state else x for x in kind.split()]
            table[key] = ["S" if packed else "B", few if key[-1] in small else many, *letters]
    table.pop("dmask", None)
    return table


def heads(row):
    """The letters of the number of key heads and of the heads of the output."""
    return ("H", "HV") if row.recurrent else ("Hkv", "Hq")


def is_output(key):
    """Whether the implementation computed it, rather than got it."""
    return key == "o" or key.startswith("final_state") or (key.startswith("d") and key != "do" and not key.startswith("dfinal_state"))


def is_score(key):
    return key.removeprefix("opt.").removeprefix("d") in SCORES


def as_stored(key, letters, layout):
    """The order of the axes in the dump: tokens before heads in bthd; scores and states of a recurrence are the same in both."""
    if layout == "bthd" and letters[2][-1] in "TNn" and not is_score(key):
        return [letters[0], letters[2], letters[1], *letters[3:]]
    return letters


def sizes_of(arrays, table, layout):
    """The size of every letter, or DumpError for the first array that does not fit."""
    sizes, first, order = {}, {}, list(table)

    def turn(key):                                       # inputs go first, and before what needs n + N
        return is_score(key), "final" in key, is_output(key), order.index(key)

    for key in sorted(arrays, key=turn):
        x, letters = arrays[key], as_stored(key, table[key], layout)
        sizes |= {f"n + {keys}": sizes.get("n", 0) + sizes[keys] for keys in "TN" if keys in sizes}
        wrong = f"{key} {x.shape} is not [{', '.join(letters)}] in layout {layout}"
        if is_score(key):
            whole = tuple(sizes[letter] for letter in letters)
            if x.ndim > 4 or any(n not in (1, m) for n, m in zip(x.shape[::-1], whole[::-1])):
                raise DumpError(f"{wrong} = {whole}, nor broadcasts to it")
            continue
        if x.ndim != len(letters):
            raise DumpError(wrong)
        for letter, n in zip(letters, x.shape):
            if sizes.setdefault(letter, n) != n:
                many = {"H": "HV", "Hkv": "Hq"}.get(letter)  # as many heads as there are of the output
                shared = f": sum over the {'value' if letter == 'H' else 'query'} heads that share a key head" \
                    if is_output(key) and many and n == sizes.get(many) else ""
                raise DumpError(f"{wrong}: {letter} is {n} here and {sizes[letter]} in {first.get(letter, 'the inputs')}{shared}")
            first.setdefault(letter, key)
    return {letter: n for letter, n in sizes.items() if "+" not in letter}


def read_tokens(arrays, sizes):
    """(which tokens are real (B, T) or None, the offsets of packed sequences or None)."""
    B, T, real, cu = sizes["B"], sizes["T"], None, None
    if "mask" in arrays:
        x = arrays["mask"]
        if x.shape != (B, T) or x.dtype.kind not in "biuf" or not np.isin(x, (0, 1)).all():
            raise DumpError(f"mask must be [B, T] = {(B, T)} of 1 (real) and 0 (padding), not {x.dtype} {x.shape}")
        real = x.astype(bool)
    if "cu_seqlens" in arrays:
        if B != 1:
            raise DumpError(f"packed sequences (cu_seqlens) need B = 1, not {B}")
        try:
            cu = np.array([part.start for part in sequences(arrays["cu_seqlens"], T)] + [T])
        except ValueError as error:
            raise DumpError(str(error)) from None
        if sizes.get("S", len(cu) - 1) != len(cu) - 1:
            raise DumpError(f"a state needs one row for each of the {len(cu) - 1} packed sequences, not {sizes['S']}")
    if (real is not None or cu is not None) and sizes.get("N", T) != T:
        raise DumpError("mask and cu_seqlens need as many queries as keys")
    return real, cu


def check_type(key, x):
    """DumpError for what holds no floats, or for a mask of something else than booleans."""
    if key == "opt.mask" and x.dtype != bool:
        raise DumpError(f"opt.mask holds {x.dtype}: it must be boolean, True = may attend (opt.bias is added)")
    if key != "opt.mask" and (x.dtype.kind != "f" or x.dtype.itemsize > 8):
        raise DumpError(f"{key} holds {x.dtype}: it must be float16, float32 or float64 (bfloat16 is widened first)")


def check_values(key, x, letters, real):
    """DumpError for inputs (B, heads, T, …) with NaN, with infinities that mean nothing, and for gates that are no logarithms.

    What padding holds is not looked at.
    """
    if is_output(key) or x.dtype == bool:
        return
    if real is not None and letters[2] in "TN" and not is_score(key):
        x = x.swapaxes(1, 2)[real]
    gate = key == "g" or key.startswith("g_")
    for what, bad in dict(NaN=np.isnan(x), infinity=x == np.inf if gate or key == "opt.bias" else np.isinf(x)).items():
        if bad.any():
            raise DumpError(f"{key} holds {what} in {bad.sum()} of {x.size} places")
    if gate and (x > 0).any():
        factors = "; all of it is in 0 ... 1: if these are the factors, give the logarithm" if ((x >= 0) & (x <= 1)).all() else ""
        raise DumpError(f"{key} is the natural logarithm of a decay, at most 0: it is positive in {(x > 0).sum()} of {x.size} places"
                        f"{factors}")


def ours(key, x, letters, layout):
    """(B, heads, T, …) in float64; scores with their four axes."""
    if is_score(key):
        x = x.reshape((1,) * (4 - x.ndim) + x.shape)
    elif as_stored(key, letters, layout) != letters:
        x = x.swapaxes(1, 2)
    return x if x.dtype == bool else x.astype(np.float64, order="C")
