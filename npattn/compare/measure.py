"""How far two arrays are apart, where, and how far apart rounding alone may bring them."""
from typing import Any, NamedTuple

import numpy as np

# The largest relative error that rounding explains, by the coarsest type of the outputs.  Beside each, half a unit in the last place: what
# one rounding costs.  The room between the two is for sums over tokens, products of decays and triangular solves: of real kernels against
# float64, float32 ones were up to 5e-5 away (800 roundings), bfloat16 ones up to 6e-3; two exact float64 algorithms agree to 1e-12 unless
# inputs are extreme.
LEVELS = {
    "float64": 1e-9,                                     # 1.1e-16
    "float32": 1e-4,                                     # 6.0e-8
    "float16": 5e-3,                                     # 4.9e-4
    "bfloat16": 2e-2,                                    # 3.9e-3
}

# A float32 result of inputs of low precision: matrix products took operands of theirs inside, but the result is not rounded itself.
FROM_INPUTS = {name: LEVELS[name] / 2 for name in ("float16", "bfloat16")}


class Error(NamedTuple):
    absolute: float                                      # the largest |got - expected|; inf where got is not finite
    relative: float                                      # that, over the largest |expected| (over 1 where all of it is zero)
    where: tuple                                         # its index, None in an empty array
    got: float
    expected: float
    nonfinite: int                                       # how many values are NaN or infinite, and should not be
    each: Any                                            # the relative error of every element; -1 for padding


def error(got, expected, real=None):
    """The Error of `got` against `expected`, both (B, heads, T, …); tokens that are not real (B, T) do not count.

    >>> error(np.array([1., 2, np.nan, 4]), np.array([1., 2, 3, 4]))[:6]
    (inf, inf, (2,), nan, 3.0, 1)
    >>> print(error(np.array([1., 2.5]), np.array([1., 2])).each)
    [0.   0.25]
    """
    counted = np.ones(got.shape, bool)
    if real is not None:
        counted = counted & np.expand_dims(real, (1, *range(3, got.ndim)))
    good = np.isfinite(expected) & counted
    size = np.abs(expected[good]).max(initial=0)
    with np.errstate(all="ignore"):
        each = np.where(got == expected, 0, np.abs(got - expected))
    same = np.isnan(got) & np.isnan(expected)
    nonfinite = ~np.isfinite(got) & ~same & (got != expected) & counted
    each = np.where(counted, np.where(same, 0, np.where(np.isfinite(each), each, np.inf)), -1)
    if not counted.any():
        return Error(0., 0., None, 0., 0., 0, each)
    where = tuple(int(i) for i in np.unravel_index(each.argmax(), each.shape))
    absolute = each[where].item()
    with np.errstate(over="ignore"):
        each = np.where(each > 0, each / (size or 1), each)
    return Error(absolute, each[where].item(), where, got[where].item(), expected[where].item(), int(nonfinite.sum()), each)


def precision(got, expected, stored):
    """The coarsest type that holds every value of `got`, as it was rounded; but not coarser than `stored` where the right values need no rounding.

    >>> x = np.random.default_rng(0).standard_normal(100)
    >>> y = x.astype(np.float32).view(np.uint32) & 0xffff0000                # bfloat16, widened
    >>> precision(y.view(np.float32).astype(np.float64), x, np.dtype("float32")), precision(x, x, x.dtype)
    ('bfloat16', 'float64')
    """
    if stored == np.float16:                             # its smallest numbers have few bits, as those of bfloat16
        return stored.name
    finite = np.isfinite(got) & np.isfinite(expected) & (got != 0)
    with np.errstate(all="ignore"):
        for name in ("bfloat16", "float16", "float32"):
            if finite.sum() >= 16 and holds(got[finite], name) and not holds(expected[finite], name):
                return name
    return stored.name


def precision_of_inputs(arrays):
    """The coarsest of float16 and bfloat16 that holds all values of one of the arrays; "" if none does.

    Counts, ones and the like, which every type holds, say nothing: more than half of the values must need the last four bits.

    >>> x = np.random.default_rng(0).standard_normal(100)
    >>> y = (x.astype(np.float32).view(np.uint32) & 0xffff0000).view(np.float32)            # bfloat16, widened
    >>> [precision_of_inputs([z]) for z in (x, y, x.astype(np.float16).astype(float), np.ones(100))]
    ['', 'bfloat16', 'float16', '']
    """
    found = ["float32"]
    for x in arrays:
        x = x[x != 0]
        for name, bits in (("bfloat16", 3), ("float16", 6)):
            with np.errstate(all="ignore"):
                scaled = np.ldexp(np.frexp(x)[0], bits + 1)
                if x.size >= 16 and holds(x, name) and (scaled != np.round(scaled)).mean() > 0.5:
                    found.append(name)
                    break
    return coarsest(found).replace("float32", "")


def holds(x, name):
    """Whether a type has all of the numbers.

    >>> holds(np.array([1.5, 1e-3]), "float16"), holds(np.array([1.5, 0]), "bfloat16")
    (False, True)
    """
    with np.errstate(all="ignore"):
        y = x.astype(np.float32 if name == "bfloat16" else name)
    same = (y == x) | np.isnan(x)
    return bool((same if name != "bfloat16" else same & (y.view(np.uint32) & 0xffff == 0)).all())


def coarsest(names):
    """
    >>> coarsest(["float64", "bfloat16", "float32"])
    'bfloat16'
    """
    return max(names, key=list(LEVELS).index)


# --- pictures ----------------------------------------------------------------------------------------------------

def profile(each, axis):
    """The largest error for every index of one axis; -1 where nothing counts."""
    return each.max(axis=tuple(i for i in range(each.ndim) if i != axis), initial=-1)


def by_chunk(profile, size):
    """The largest of every `size` entries.

    >>> print(by_chunk(np.array([1., 3, 2, 5, 4]), 2))
    [3. 5. 4.]
    """
    return np.array([profile[s:s + size].max() for s in range(0, len(profile), size)], profile.dtype)


def digits(profile):
    """One character an entry: how many decimal digits are right, 0 to 9; x for NaN and infinity, a space where nothing counts.

    >>> digits(np.array([0, 1e-16, 2e-4, 0.3, 7, np.inf, -1]))
    '99300x '
    """
    def mark(e):
        return " " if e < 0 else "x" if e == np.inf else "9" if e == 0 else str(int(np.clip(-np.log10(e), 0, 9)))
    return "".join(map(mark, profile))


def picture(profile, width=64):
    """(digits, how many entries one of them stands for), at most `width` of them.

    >>> picture(np.array([0., 0, 1e-3, 0]), 2)
    ('93', 2)
    """
    many = max(1, -(-len(profile) // width))
    return digits(by_chunk(profile, many)), many
