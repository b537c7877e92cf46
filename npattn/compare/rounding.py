"""What low precision does: rounded inputs, matrix products of rounded operands, a state kept in few bits.

The forms of the mechanisms run unchanged on arrays that round the operands of every matrix product, as tensor cores do, and add up
in float32.
"""
from typing import Callable, NamedTuple

import numpy as np

from ..core.blocks import blocks, cut, split
from ..core.states import map_state
from .case import REFUSED, is_result, outcome, wrong
from .measure import error

BITS = dict(bfloat16=7, float16=10, tf32=10)             # of the mantissa that are stored


def rounded(x, name):
    """x in the nearest numbers that bfloat16, float16 or TF32 holds, ties to even; its type stays.

    >>> x = np.array([1 + 2 ** -8, 1 + 3 * 2 ** -8, 7e4])
    >>> [rounded(x, name).tolist() for name in ("bfloat16", "float16", "tf32")]
    [[1.0, 1.015625, 70144.0], [1.00390625, 1.01171875, inf], [1.00390625, 1.01171875, 70016.0]]
    """
    if name == "float16":
        with np.errstate(over="ignore"):
            return x.astype(np.float16).astype(x.dtype)
    drop = np.uint32(23 - BITS[name])
    y = np.ascontiguousarray(x, np.float32).view(np.uint32)
    up = y + ((np.uint32(1) << (drop - np.uint32(1))) - np.uint32(1)) + ((y >> drop) & np.uint32(1))
    return np.where(np.isfinite(x), (up >> drop << drop).view(np.float32), x).astype(x.dtype)


class Rounding(np.ndarray):
    """float32 numbers whose matrix products take rounded operands.  `of(x, name)` makes one."""
    precision = "tf32"

    def __array_finalize__(self, other):
        self.precision = getattr(other, "precision", "tf32")

    def __array_ufunc__(self, ufunc, method, *inputs, out=None, **options):
        bare = [np.asarray(x) if isinstance(x, Rounding) else x for x in inputs]
        if ufunc is np.matmul:
            bare = [rounded(np.asarray(x), self.precision) for x in bare]
        if out is not None:
            options["out"] = tuple(np.asarray(x) if isinstance(x, Rounding) else x for x in out)
        y = getattr(ufunc, method)(*bare, **options)
        return out[0] if out is not None else self.again(y)

    def __array_function__(self, function, types, args, kwargs):
        return self.again(super().__array_function__(function, types, args, kwargs))

    def again(self, y):
        """Results of the same kind: NumPy's functions forget it."""
        if isinstance(y, (list, tuple)):
            return type(y)(map(self.again, y))
        return of(y, self.precision) if isinstance(y, np.ndarray) and y.dtype.kind == "f" else y


def of(x, name):
    y = np.asarray(x).view(Rounding)
    y.precision = name
    return y


def back(x):
    return None if x is None else map_state(lambda part: np.asarray(part, np.float64), x)


# --- models of implementations ------------------------------------------------------------------------------------

def with_inputs(case, name, arrays="qkv"):
    """The arrays named are rounded before anything is done with them."""
    return wrong(case, arrays={key: rounded(x, name) if key in arrays else x for key, x in case.arrays.items()})


def with_products(case, name):
    """Every matrix product takes rounded operands and adds up in float32; so do those of the gradients."""
    module = case.mechanism.module

    def low(x):
        return map_state(lambda part: of(np.asarray(part, np.float32), name), x) if isinstance(x, tuple) or getattr(x, "dtype",
            np.dtype(bool)).kind == "f" else x

    def forward(**x):
        o, state = module.chunk(**{key: low(y) for key, y in x.items()})
        return back(o), back(state)

    def backward(do, **x):
        return {key: back(d) for key, d in module.chunk_vjp(low(do), **{key: low(y) for key, y in x.items()}).items()}

    return wrong(case, form=(forward, backward))


def with_state(case, name, every=1):
    """The state is rounded after every token, or every so many."""
    axes = case.mechanism.axes

    def around(form):
        def kept(q, k, v, *, state=None, **others):
            tokens, options = split(axes, dict(q=q, k=k, v=v, **others))
            outputs = []
            for b in blocks(q.shape[-2], every):
                o, state = form(**cut(tokens, axes, b), **options, state=state)
                state = map_state(lambda x: rounded(x, name), state)
                outputs.append(o)
            return np.concatenate(outputs, axis=-2), state
        return kept
    return wrong(case, add_around=around)


# --- is it rounding? ----------------------------------------------------------------------------------------------

class Model(NamedTuple):
    precision: str
    words: str
    change: Callable                                     # Case -> Case
    back: bool = True                                    # whether it says anything of gradients


MODELS = (                                               # of two that fit about as well the first one is named
    *(Model(name, f"matrix products of {name} operands", lambda case, name=name: with_products(case, name))
      for name in ("tf32", "bfloat16")),
    *(Model(name, f"q, k and v rounded to {name}", lambda case, name=name: with_inputs(case, name)) for name in ("bfloat16", "float16")),
    *(Model(name, f"{what} rounded to {name}", lambda case, name=name, what=what: with_inputs(case, name, [what]))
      for name in ("bfloat16", "float16") for what in ("beta", "g")),
    *(Model(name, f"state kept in {name}{every}", lambda case, name=name, n=n: with_state(case, name, n), False)
      for name in ("bfloat16", "float16") for n, every in ((1, ""), (64, " every 64 tokens"))))


class Recognised(NamedTuple):
    """What the model makes of the right numbers."""
    model: Model
    errors: dict                                         # by output: how far off the model is from what is right
    remains: dict                                        # by output: how far off it is from what was returned


def recognised(subject, base, plain):
    """The Recognised that explains how far the outputs are from `plain`, the outcome of the Case `base`; None if none does.

    Either a model gives the very numbers, or what is off goes along with what the model is off (a correlation far beyond chance)
    and is no larger than three times that.  Noise goes along with nothing.
    """
    if plain is None or not plain.keys() >= subject.case.got.keys():
        return None
    wrong, found = [name for name, e in subject.errors(plain).items() if e > subject.at(name)], []
    if not wrong:
        return None
    for model in MODELS:
        if not model.back and not (base.mechanism.recurrent and all(map(is_result, wrong))):
            continue
        with np.errstate(all="ignore"):
            try:
                y = outcome(model.change(base), subject.back and model.back)
            except REFUSED:
                continue
        y = {name: y.get(name, plain[name]) for name in subject.case.got}
        sizes = {name: error(y[name], plain[name], subject.real(name)).relative for name in y}
        remains = subject.errors(y)
        along = min(correlation(subject.case.got[name] - plain[name], y[name] - plain[name], subject.real(name)) for name in wrong)
        exact = subject.within(remains) and 10 * max(remains.values()) <= max(subject.errors(plain).values())
        if exact or along > 0 and all(subject.errors(plain)[name] <= max(3 * sizes[name], subject.at(name)) for name in y):
            found.append((1.25 if exact else along, Recognised(model, sizes, remains)))
    best = max((along for along, _ in found), default=0)
    return next((seen for along, seen in found if along >= best - 0.25), None)


def correlation(a, b, real):
    """That of two arrays; -1 where it may be chance."""
    if real is not None:
        keep = np.broadcast_to(np.expand_dims(real, (1, *range(3, a.ndim))), a.shape)
        a, b = a[keep], b[keep]
    size = np.sqrt((a * a).sum() * (b * b).sum())
    c = (a * b).sum() / size if 0 < size < np.inf else 0
    return c if c >= max(0.3, 5 / np.sqrt(max(a.size, 1))) else -1
