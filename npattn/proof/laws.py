"""What every mechanism must obey, forward.

A law is a generator over a row of the catalogue and one setting of its options.  It yields (what, got, wanted); `distance` measures how
far the two are apart, and the law holds if that is never more than its tolerance.  Results that are no floats, and fractions, must be
equal.  `what` names both sides, and blames neither.  The tests and `python -m npattn check` run the same laws.
"""
import warnings

import numpy as np

from ..core import packed
from ..core.states import leaves, map_state
from .definition_laws import DEFINITION
from .law import Law, causal_only, rational, recurrent, resettable, scaled
from .material import (SHAPES, T, cast, every_form, exact_arguments, extended, extreme_arguments, forms, gates, over_scores,
                       packed_arguments, random, reset_arguments, together, tokens)
from .measure import finite, whether


def agree(row, options, x, sizes, label=""):
    """matrix = loop, and chunk = loop for blocks of each size."""
    wanted = row.module.loop(**x, **options)
    for name, form in forms(row, sizes):
        yield f"loop against {name}{label}", form(**x, **options), wanted


# --- the laws --------------------------------------------------------------------------------------------------------

def forms_agree(row, options):
    """loop = matrix = chunk for every size of a block, with and without state and batch axes; complex numbers are never conjugated."""
    rng = random()
    for shape in SHAPES:
        x = row.arguments(rng, T, **shape)
        yield from agree(row, options, x, range(1, T + 2))
        if row.analytic:
            x = {name: y if y is None else map_state(lambda part: part + 0.1j * rng.standard_normal(part.shape), y) for name, y in x.items()}
            yield from agree(row, options, x, (3,), ", complex numbers")


def forms_agree_in_float32(row, options):
    """Every form in float32 is `loop` in float64, nearly."""
    for shape in SHAPES:
        x = row.arguments(random(), T, **shape, dtype=np.float32)
        wanted = cast(row.module.loop(**{n: y if y is None else map_state(np.float64, y) for n, y in x.items()}, **options), np.float32)
        for name, form in every_form(row, (3, 8, T)):
            yield f"loop in float64 against {name} in float32", form(**x, **options), wanted


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
            yield f"loop in one call against {name} in {len(o)}", (np.concatenate(o, -2), state), wanted


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
                same = not (o2 != o).any() and not any((a != b).any() for a, b in zip(leaves(state2), leaves(state)))
                yield whether(not same, f"{name}, another {argument}", f"{name} does not depend on {argument}")
        if not scaled(row, options):
            yield whether((form(**x, scale=0.3, **options)[0] != o).any(), f"{name}, another scale", f"{name} does not depend on scale")


def arguments_stay(row, options):
    """Arguments are never written to."""
    x = row.arguments(random(), 7, lead=(2,))
    before = {name: map_state(np.copy, y) for name, y in x.items()}
    for y in x.values():
        map_state(lambda part: part.setflags(write=False), y)
    for name, form in every_form(row):
        form(**x, **options)
        yield f"{name}'s arguments before and after the call", x, before


def types_stay(row, options):
    """The result has the type of the arguments; of mixed arguments, the wider one."""
    x = row.arguments(random(), 7)
    to = lambda dtype, *names: {name: map_state(lambda part: part.astype(dtype), y) if name in names else y for name, y in x.items()}
    for dtype in (np.float32, np.float64) + (np.complex64, np.complex128) * row.analytic:
        for name, form in every_form(row):
            result = form(**to(dtype, *x), **options)
            yield f"{name} of {np.dtype(dtype)} arguments", result, cast(result, dtype)
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
        y = {n: map_state(strided, y) for n, y in x.items()}
        yield f"loop of contiguous arrays against {name} of strided ones", form(**y, **options), wanted
        for argument in x:
            y = dict(x, **{argument: small[argument]})
            yield (f"loop, {argument} copied, against {name}, {argument} without leading axes", form(**y, **options),
                   row.module.loop(**dict(x, **{argument: map_state(wide, small[argument])}), **options))


def limits(row, options):
    """The forms agree at the ends of every range: no token, one, fewer than a block; gates of 1 and 0; strengths 0 and 2."""
    for n in 0, 1, 2:
        x = row.arguments(random(), n, lead=(2,))
        yield from agree(row, options, x, (1, 4), f", {n} tokens")
        if n == 0:
            yield "loop of no token against nothing, and the state unchanged", row.module.loop(**x, **options), (x["v"], x["state"])
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
            yield f"{name} with beta = 0, against other values", form(**dict(off, v=x["v"] + 1), **options), form(**off, **options)


def resets(row, options):
    """What came before a token whose gates are all -inf, and the first state, change no bit of its output or of anything later."""
    x, other = reset_arguments(row), row.arguments(random(1), T, lead=(2,))
    y = extended(row, dict(tokens(row, other, slice(0, 8)), state=other["state"]), tokens(row, x, slice(8, T)))
    for name, form in every_form(row, (3, 8)):
        (o, state), (o2, state2) = form(**x, **options), form(**y, **options)
        yield f"{name}, tokens before a reset changed", (o2[..., 8:, :], state2), (o[..., 8:, :], state)


def packs(row, options):
    """Sequences end to end in one call equal one call for each; an empty one keeps its state."""
    x, ends, states, columns = packed_arguments(row)
    spans, reach = (list(map(slice, e, e[1:])) for e in (ends, columns))
    for extra in ({}, *over_scores(row, ends[-1], columns[-1])):
        parts = [dict(state=S, **{name: y[..., b, c] for name, y in extra.items()}) for S, b, c in zip(states, spans, reach)]
        alone = [row.module.loop(**tokens(row, x, b), **part, **options) for b, part in zip(spans, parts)]
        for name in "loop", "matrix", "chunk":
            o, finals = packed.packed(getattr(row.module, name), **x, **extra, cu_seqlens=ends, state=together(row, states), **options)
            label = f"loop of each sequence against {name} of all{', with ' * bool(extra)}{' and '.join(extra)}"
            yield label, o, np.concatenate([o for o, _ in alone], -2)
            for n, (_, final) in enumerate(alone):
                yield f"{label}, state {n}", finals[n] if not row.recurrent else map_state(lambda s: s[n], finals), final


def padding(row, options):
    """Tokens whose keys, strengths and gates are zero change nothing."""
    x, pad = row.arguments(random(), 7, lead=(2,)), row.arguments(random(1), 3, lead=(2,))
    zero = {name: np.zeros_like(y) if name in ("k", "beta", *gates(row)) else y for name, y in pad.items() if name != "state"}
    o, state = row.module.loop(**x, **options)
    for name, form in every_form(row):
        padded, final = form(**extended(row, x, zero), **options)
        yield f"loop against {name} with tokens of zeros behind", (padded[..., :7, :], final), (o, state)


def extremes(row, options):
    """Gates down to -1e4 and -inf, one key for 64 tokens with beta = 2, scores in the thousands: in float32 finite and as in float64."""
    for label, x, sizes in extreme_arguments(row):
        wanted = cast(row.module.loop(**{n: map_state(np.float64, y) for n, y in x.items()}, **options), np.float32)
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for name, form in every_form(row, sizes):
                if name == "matrix" and 64 not in sizes:
                    continue
                result = form(**x, **options)
                yield f"loop in float64 against {name} in float32, {label}", result, wanted
                yield finite(f"{name}, {label}", result[0], *leaves(result[1]))


FORWARD = (
    Law("forms", forms_agree, 1e-12), *DEFINITION,
    Law("float32", forms_agree_in_float32, 1e-5), Law("fractions", forms_equal_as_fractions, 0, rational),
    Law("resume", resumes, 1e-12, causal_only), Law("causal", causal, 0, causal_only), Law("arguments matter", every_argument_matters, 0),
    Law("arguments stay", arguments_stay, 0), Law("types", types_stay, 0), Law("layouts", layouts, 1e-12), Law("limits", limits, 1e-12),
    Law("resets", resets, 0, resettable), Law("packed", packs, 1e-12), Law("padding", padding, 1e-12, recurrent),
    Law("extremes", extremes, 1e-5),
)
