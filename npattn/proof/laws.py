"""What every mechanism must obey, forward.

A law is a generator over a row of the catalogue and one setting of its options.  It yields (what, got, wanted); `distance` measures how far the
two are apart, and the law holds if that is never more than its tolerance.  Results that are no floats, and fractions, must be equal.  The tests and
`python -m npattn check` run the same laws.
"""
import inspect
import warnings

import numpy as np

from ..catalogue import CATALOGUE
from ..core import packed
from ..core.states import leaves, map_state
from .exact import log
from .law import Law, causal_only, rational, recurrent, resettable, with_reductions
from .material import SHAPES, T, cast, every_form, exact_arguments, extended, extreme_arguments, forms, gates, random, reset_arguments, tokens

def agree(row, options, x, sizes, label=""):
    """matrix = loop, and chunk = loop for blocks of each size."""
    wanted = row.module.loop(**x, **options)
    for name, form in forms(row, sizes):
        yield name + label, form(**x, **options), wanted


# --- the laws --------------------------------------------------------------------------------------------------------

def forms_agree(row, options):
    """loop = matrix = chunk for every size of a block, with and without state and batch axes; on complex numbers too, which are transposed and never conjugated."""
    rng = random()
    for shape in SHAPES:
        x = row.arguments(rng, T, **shape)
        yield from agree(row, options, x, range(1, T + 2))
        if row.analytic:
            x = {name: y if y is None else map_state(lambda part: part + 0.1j * rng.standard_normal(part.shape), y) for name, y in x.items()}
            yield from agree(row, options, x, (3,), " of complex numbers")


def forms_agree_in_float32(row, options):
    """Every form in float32 is `loop` in float64, nearly."""
    for shape in SHAPES:
        x = row.arguments(random(), T, **shape, dtype=np.float32)
        wanted = cast(row.module.loop(**{n: y if y is None else map_state(np.float64, y) for n, y in x.items()}, **options), np.float32)
        for name, form in every_form(row, (3, 8, T)):
            yield name, form(**x, **options), wanted


def forms_equal_as_fractions(row, options):
    """loop = matrix = chunk for every size of a block, with nothing rounded."""
    for shape in SHAPES:
        yield from agree(row, options, exact_arguments(row, random(), 9, **shape), range(1, 11))


def resumes(row, options):
    """A sequence in several calls, the state carried from one to the next, equals one call; token by token as well."""
    x = row.arguments(random(), T, lead=(2,))
    wanted = row.module.loop(**x, **options)
    for name, form in every_form(row):
        for cuts in (1,), (5,), (3, 4, 12), range(1, T):
            o, state = [], x["state"]
            for start, stop in zip((0, *cuts), (*cuts, T)):
                part, state = form(**tokens(row, x, slice(start, stop)), state=state, **options)
                o.append(part)
            yield f"{name} in {len(o)} calls", (np.concatenate(o, -2), state), wanted


def causal(row, options):
    """What comes later changes no bit of what came before."""
    x, other = (row.arguments(random(seed), T, lead=(2,)) for seed in (0, 1))
    for name, form in every_form(row, (3, 8)):
        o = form(**x, **options)[0]
        for p in 1, 8, T - 1:
            y = extended(row, dict(tokens(row, x, slice(0, p)), state=x["state"]), tokens(row, other, slice(p, T)))
            yield f"{name}, tokens from {p} on changed", form(**y, **options)[0][..., :p, :], o[..., :p, :]


def every_argument_matters(row, options):
    """Another value of any argument gives another result."""
    x, other = (row.arguments(random(seed), 5) for seed in (0, 1))
    for name, form in every_form(row):
        o, state = form(**x, **options)
        for argument in x:
            if argument not in row.inert:
                o2, state2 = form(**dict(x, **{argument: other[argument]}), **options)
                yield f"{name} depends on {argument}", bool((o2 != o).any() or any((a != b).any() for a, b in zip(leaves(state2), leaves(state)))), True
        if "scale" in inspect.signature(form if name != "chunk of 3" else row.module.chunk).parameters:
            yield f"{name} depends on scale", bool((form(**x, scale=0.3, **options)[0] != o).any()), True


def arguments_stay(row, options):
    """Arguments are never written to."""
    x = row.arguments(random(), 7, lead=(2,))
    before = {name: map_state(np.copy, y) for name, y in x.items()}
    for y in x.values():
        map_state(lambda part: part.setflags(write=False), y)
    for name, form in every_form(row):
        form(**x, **options)
        yield f"{name}'s arguments", x, before


def types_stay(row, options):
    """The result has the type of the arguments; of mixed arguments, the wider one."""
    x = row.arguments(random(), 7)
    to = lambda dtype, *names: {name: map_state(lambda part: part.astype(dtype), y) if name in names else y for name, y in x.items()}
    for dtype in (np.float32, np.float64) + (np.complex64, np.complex128) * row.analytic:
        for name, form in every_form(row):
            result = form(**to(dtype, *x), **options)
            yield f"{name} of {np.dtype(dtype)}", result, cast(result, dtype)
    for argument in x:
        for name, form in every_form(row):
            result = form(**to(np.float32, *(n for n in x if n != argument)), **options)
            yield f"{name}, all but {argument} float32", result, cast(result, np.float64)


def layouts(row, options):
    """Arrays that are not contiguous, and arrays that broadcast, give what contiguous copies give."""
    x, small = row.arguments(random(), 7, lead=(2, 3)), row.arguments(random(), 7)
    def strided(part):
        y = np.empty(part.shape[:-1] + (2 * part.shape[-1],)).T
        y[::-2] = part.T
        return y[::-2].T

    wanted, wide = row.module.loop(**x, **options), lambda part: np.broadcast_to(part, (2, 3) + part.shape).copy()
    for name, form in every_form(row):
        yield f"{name} of strided arrays", form(**{n: map_state(strided, y) for n, y in x.items()}, **options), wanted
        for argument in x:
            y = dict(x, **{argument: small[argument]})
            yield (f"{name}, {argument} without leading axes", form(**y, **options),
                   row.module.loop(**dict(x, **{argument: map_state(wide, small[argument])}), **options))


def limits(row, options):
    """The forms agree at the ends of every range: no token, one, fewer than a block; gates of 1 and 0; strengths 0 and 2."""
    for n in 0, 1, 2:
        x = row.arguments(random(), n, lead=(2,))
        yield from agree(row, options, x, (1, 4), f", {n} tokens")
        if n == 0:
            yield "no token", row.module.loop(**x, **options), (x["v"], x["state"])
    x = row.arguments(random(), 7, lead=(2,))
    reset = np.arange(7) == 3
    for name in gates(row):
        for g in 0., -1e4, -np.inf, np.where(reset if row.axes[name] == "T" else reset[:, None], -np.inf, x[name]):
            y = dict(x, **{name: np.broadcast_to(g, x[name].shape).copy()})
            yield from agree(row, options, y, (2, 3, 8), f", {name} = {g if np.ndim(g) == 0 else '-inf at token 3'}")
    if "beta" in x:
        for b in 0., 2.:
            yield from agree(row, options, dict(x, beta=np.full_like(x["beta"], b)), (2, 3, 8), f", beta = {b:g}")
        off = dict(x, beta=np.zeros_like(x["beta"]))
        for name, form in every_form(row):
            yield f"{name}, beta = 0 writes nothing", form(**dict(off, v=x["v"] + 1), **options), form(**off, **options)


def resets(row, options):
    """What came before a token whose gates are all -inf, and the first state, change no bit of its output or of anything later."""
    x, other = reset_arguments(row), row.arguments(random(1), T, lead=(2,))
    y = extended(row, dict(tokens(row, other, slice(0, 8)), state=other["state"]), tokens(row, x, slice(8, T)))
    for name, form in every_form(row, (3, 8)):
        (o, state), (o2, state2) = form(**x, **options), form(**y, **options)
        yield f"{name}, before a reset", (o2[..., 8:, :], state2), (o[..., 8:, :], state)


def reductions(row, options):
    """With the arguments that the catalogue names, a mechanism is the simpler one; as fractions too."""
    for special, to_row in row.reductions.items():
        simple = CATALOGUE[special]
        for x, ln in (simple.arguments(random(), T, lead=(2,)), np.log), (exact_arguments(simple, random(), 7), log):
            if ln is np.log or row.exact and simple.exact:
                wanted = simple.module.loop(**x, **simple.options)
                for name, form in every_form(row):
                    yield f"{name} as {special}", form(**to_row(x, ln), **options), wanted


def packs(row, options):
    """Sequences end to end in one call equal one call for each; an empty one keeps its state."""
    ends = (0, 4, 4, 9) if row.recurrent else (0, 3, 6, 9)                   # caches of one length can be stacked
    x, states = row.arguments(random(), 9, lead=(2,)), row.arguments(random(1), 9, lead=(3, 2))["state"]
    whole = {name: y for name, y in x.items() if name != "state"}
    alone = [row.module.loop(**tokens(row, x, slice(*b)), state=map_state(lambda s: s[n], states), **options)
             for n, b in enumerate(zip(ends, ends[1:]))]
    wanted = np.concatenate([o for o, _ in alone], -2), map_state(lambda *s: np.stack(s), *(s for _, s in alone))
    for name in "loop", "matrix", "chunk":
        yield f"{name}, packed", packed.packed(getattr(row.module, name), **whole, cu_seqlens=ends, state=states, **options), wanted


def padding(row, options):
    """Tokens whose keys, strengths and gates are zero change nothing."""
    x, pad = row.arguments(random(), 7, lead=(2,)), row.arguments(random(1), 3, lead=(2,))
    zero = {name: np.zeros_like(y) if name in ("k", "beta", *gates(row)) else y for name, y in pad.items() if name != "state"}
    o, state = row.module.loop(**x, **options)
    for name, form in every_form(row):
        padded, final = form(**extended(row, x, zero), **options)
        yield f"{name}, padded", (padded[..., :7, :], final), (o, state)


def extremes(row, options):
    """Gates down to -1e4 and -inf, one key for 64 tokens with beta = 2, scores in the thousands: in float32 finite, no warning, and as in float64."""
    for label, x, sizes in extreme_arguments(row):
        wanted = cast(row.module.loop(**{n: map_state(np.float64, y) for n, y in x.items()}, **options), np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for name, form in every_form(row, sizes):
                if name == "matrix" and 64 not in sizes:
                    continue
                result = form(**x, **options)
                yield f"{name}, {label}", result, wanted
                yield f"{name}, {label}: finite", all(bool(np.isfinite(part).all()) for part in (result[0], *leaves(result[1]))), True


FORWARD = (
    Law("forms", forms_agree, 1e-12), Law("float32", forms_agree_in_float32, 1e-5), Law("fractions", forms_equal_as_fractions, 0, rational),
    Law("resume", resumes, 1e-12, causal_only), Law("causal", causal, 0, causal_only), Law("arguments matter", every_argument_matters, 0),
    Law("arguments stay", arguments_stay, 0), Law("types", types_stay, 0), Law("layouts", layouts, 1e-12), Law("limits", limits, 1e-12), Law("resets", resets, 0, resettable),
    Law("reductions", reductions, 1e-12, with_reductions), Law("packed", packs, 1e-12), Law("padding", padding, 1e-12, recurrent),
    Law("extremes", extremes, 1e-5),
)
