"""What every hand-derived gradient must obey.  As in laws.py: a law yields (what, got, wanted)."""
import warnings

import numpy as np

from ..catalogue import CATALOGUE
from ..core import packed
from ..core.arrays import sum_to
from ..core.states import leaves, map_state
from .exact import log, random_fractions
from .gradients import PROOFS, errors_of
from .law import Law, analytic, causal_only, not_analytic, rational, resettable, scaled, with_master, with_reductions
from .material import (SHAPES, T, exact_arguments, extended, extreme_arguments, gates, over_scores, packed_arguments, random,
                       reset_arguments, together, tokens)
from .measure import Distance, finite, whether


def every_vjp(row, sizes=(3,)):
    """(name, function) of loop_vjp, matrix_vjp, and chunk_vjp for blocks of each size."""
    m = row.module
    return [("loop_vjp", m.loop_vjp), ("matrix_vjp", m.matrix_vjp)] + [
        (f"chunk_vjp of {C}", lambda do, C=C, **x: m.chunk_vjp(do, **x, chunk_size=C)) for C in sizes]


def cotangents(row, options, x, rng, exact=False):
    """Random gradients with respect to o and to the final state."""
    make = lambda y: random_fractions(rng, y.shape) if exact else rng.standard_normal(y.shape).astype(y.dtype)
    o, final = row.module.loop(**x, **options)
    return make(o), map_state(make, final)


def agree(row, options, x, rng, sizes, label="", exact=False):
    """matrix_vjp = loop_vjp, and chunk_vjp = loop_vjp for blocks of each size, with a gradient of the final state and without one."""
    do, dfinal = cotangents(row, options, x, rng, exact)
    for end, dS in ("", dfinal), (", no dfinal_state", None):
        (_, loop_vjp), *others = every_vjp(row, sizes)
        wanted = loop_vjp(do, **x, dfinal_state=dS, **options)
        for name, vjp in others:
            yield f"loop_vjp against {name}{label}{end}", vjp(do, **x, dfinal_state=dS, **options), wanted


# --- the laws --------------------------------------------------------------------------------------------------------

def vjps_agree(row, options):
    """loop_vjp = matrix_vjp = chunk_vjp for every size of a block, with and without state, batch axes and a gradient of the final state."""
    for shape in SHAPES:
        x = row.arguments(random(), T, **shape)
        yield from agree(row, options, x, random(1), (1, 3, 16, T, T + 1))


def vjps_agree_as_fractions(row, options):
    """loop_vjp = matrix_vjp = chunk_vjp for every size of a block, with nothing rounded."""
    for shape in SHAPES:
        x = exact_arguments(row, random(), 7, **shape)
        yield from agree(row, options, x, random(1), (1, 3, 7, 8), exact=True)


def gradients_stay_before(row, options):
    """Gradients of early outputs know nothing of later tokens, and gradients of later tokens nothing of early outputs: bit for bit."""
    x, other = (row.arguments(random(seed), T, lead=(2,)) for seed in (0, 1))
    do, dfinal = cotangents(row, options, x, random(2))
    for p in 1, 8, T - 1:
        early, late = do.copy(), do.copy()
        early[..., p:, :] = 0
        late[..., :p, :] += 1
        y = extended(row, dict(tokens(row, x, slice(0, p)), state=x["state"]), tokens(row, other, slice(p, T)))
        for name, vjp in every_vjp(row, (3, 8)):
            d, d_other = vjp(early, **x, **options), vjp(early, **y, **options)
            d_late, d_all = vjp(late, **x, dfinal_state=dfinal, **options), vjp(do, **x, dfinal_state=dfinal, **options)
            cut = lambda d, b: tokens(row, dict(d, state=None), b)
            yield f"{name} of outputs before {p}, later tokens changed", cut(d_other, slice(0, p)), cut(d, slice(0, p))
            yield f"{name} of outputs before {p}, later tokens changed, state", d_other["state"], d["state"]
            beyond = cut(d, slice(p, T))
            yield f"{name} of outputs before {p}, at later tokens, against zeros", beyond, {n: 0 * g for n, g in beyond.items()}
            yield f"{name} at later tokens, another gradient of outputs before {p}", cut(d_late, slice(p, T)), cut(d_all, slice(p, T))


def gradients_have_types(row, options):
    """Every gradient has its argument's shape and type, and arguments are never written to."""
    for dtype in (np.float32, np.float64) + (np.complex64, np.complex128) * row.analytic:
        x = row.arguments(random(), 7, lead=(2,), dtype=dtype)
        do, dfinal = cotangents(row, options, x, random(1))
        given = dict(x, do=do, dfinal_state=dfinal)
        before = {name: map_state(np.copy, y) for name, y in given.items()}
        for y in given.values():
            map_state(lambda part: part.setflags(write=False), y)
        for name, vjp in every_vjp(row):
            d = vjp(**given, **options)
            for n, a in x.items():
                for g, part in zip(leaves(d[n]), leaves(a)):
                    yield whether((g.shape, g.dtype) == (part.shape, part.dtype), f"{name} of {np.dtype(dtype)}, {n}",
                                  f"{name}: the gradient of {n}, {part.dtype} {part.shape}, is {g.dtype} {g.shape}")
            yield whether(set(d) == set(x), f"{name}, names", f"{name} gives gradients of {', '.join(d)}, not of {', '.join(x)}")
            yield f"{name}'s arguments before and after the call", given, before


def gradients_of_broadcast(row, options):
    """The gradient of an argument that broadcasts is the sum of those of its copies."""
    x, small = row.arguments(random(), 7, lead=(2, 3)), row.arguments(random(1), 7, lead=(1,))
    do, dfinal = cotangents(row, options, x, random(2))
    for argument in x:
        y = dict(x, **{argument: small[argument]})
        wide = dict(x, **{argument: map_state(lambda a, b: np.broadcast_to(a, b.shape).copy(), small[argument], x[argument])})
        wanted = row.module.loop_vjp(do, **wide, dfinal_state=dfinal, **options)
        wanted[argument] = map_state(lambda g, a: sum_to(g, a.shape), wanted[argument], small[argument])
        for name, vjp in every_vjp(row):
            yield f"loop_vjp, {argument} copied, against {name}, {argument} broadcast", vjp(do, **y, dfinal_state=dfinal, **options), wanted


def gradient_limits(row, options):
    """The forms agree at the ends of every range; a gate's gradient is exactly 0 at a reset."""
    for n in 0, 1, 2:
        yield from agree(row, options, row.arguments(random(), n, lead=(2,)), random(1), (1, 4), f", {n} tokens")
    x = row.arguments(random(), 7, lead=(2,))
    for name in gates(row):
        reset = x[name].copy()
        reset[:, 3] = -np.inf
        for g in np.zeros_like(reset), np.full_like(reset, -1e4), np.full_like(reset, -np.inf), reset:
            y = dict(x, **{name: g})
            yield from agree(row, options, y, random(1), (2, 3, 8), f", {name} = {g[0, 3].max()}")
            do, dfinal = cotangents(row, options, y, random(1))
            for form, vjp in every_vjp(row):
                at_reset = vjp(do, **y, dfinal_state=dfinal, **options)[name][g == -np.inf]
                yield f"{form}, {name} at a reset, against zeros", at_reset, np.zeros_like(at_reset)
    if "beta" in x:
        for b in 0., 2.:
            yield from agree(row, options, dict(x, beta=np.full_like(x["beta"], b)), random(1), (2, 3, 8), f", beta = {b:g}")


def gradients_stop_at_resets(row, options):
    """Nothing after a reset contributes to a gradient before it, or to that of the first state: exact zeros."""
    x = reset_arguments(row)
    do, dfinal = cotangents(row, options, x, random(1))
    do[..., :8, :] = 0
    for name, vjp in every_vjp(row, (3, 8)):
        d = vjp(do, **x, dfinal_state=dfinal, **options)
        before = dict(tokens(row, dict(d, state=None), slice(0, 8)), state=d["state"])
        yield f"{name}, before a reset, against zeros", before, {n: map_state(np.zeros_like, g) for n, g in before.items()}


def gradient_reductions(row, options):
    """A mechanism that equals a simpler one has its gradients, for the arguments that both have; as fractions too."""
    for special, to_row in row.reductions.items():
        simple = CATALOGUE[special]
        for x, ln in (simple.arguments(random(), T, lead=(2,)), np.log), (exact_arguments(simple, random(), 7), log):
            if ln is np.log or row.exact and simple.exact:
                do, dfinal = cotangents(simple, simple.options, x, random(1), exact=ln is log)
                wanted = simple.module.loop_vjp(do, **x, dfinal_state=dfinal, **simple.options)
                y = to_row(x, ln)
                both = [n for n in x if n in y and map_state(np.shape, y[n]) == map_state(np.shape, x[n])]
                for name, vjp in every_vjp(row):
                    d = vjp(do, **{**options, **y}, dfinal_state=dfinal)
                    yield f"{special}'s loop_vjp against {name}", {n: d[n] for n in both}, {n: wanted[n] for n in both}


def gradients_by_master_form(row, options):
    """loop_vjp is the gradient of the master form, back along the map of the arguments; as fractions too."""
    _, matrix_vjp = row.master
    unscaled = {} if scaled(row, options) else dict(scale=1)
    for label, x in ("", row.arguments(random(), T, lead=(2,))), (", in fractions", exact_arguments(row, random(), 7)):
        if row.exact or not label:
            do, dfinal = cotangents(row, options, x, random(1), exact=bool(label))
            yield f"loop_vjp against the master form{label}", matrix_vjp(do, **x, dfinal_state=dfinal), \
                row.module.loop_vjp(do, **x, dfinal_state=dfinal, **options, **unscaled)


def vjps_pack(row, options):
    """Gradients of sequences end to end equal those of each alone."""
    x, ends, states, columns = packed_arguments(row)
    spans, reach = (list(map(slice, e, e[1:])) for e in (ends, columns))
    for extra in ({}, *over_scores(row, ends[-1], columns[-1])):
        parts = [dict(tokens(row, x, b), state=S, **{name: y[..., b, c] for name, y in extra.items()})
                 for b, S, c in zip(spans, states, reach)]
        cots = [cotangents(row, options, part, random(n)) for n, part in enumerate(parts)]
        alone = [row.module.loop_vjp(dO, **part, dfinal_state=dS, **options) for part, (dO, dS) in zip(parts, cots)]
        do, dfinal = np.concatenate([dO for dO, _ in cots], -2), together(row, [dS for _, dS in cots])
        for name in "loop_vjp", "matrix_vjp", "chunk_vjp":
            d = packed.packed_vjp(getattr(row.module, name), do, **x, **extra, cu_seqlens=ends, state=together(row, states),
                                  dfinal_state=dfinal, **options)
            for n, (b, c) in enumerate(zip(spans, reach)):
                got = dict(tokens(row, {y: d[y] for y in x}, b), **{y: d[y][..., b, c] for y in extra if y in d},
                           state=map_state(lambda s: s[n], d["state"]) if row.recurrent else d["state"][n])
                yield f"loop_vjp of sequence {n} against {name} of all{', with ' * bool(extra)}{' and '.join(extra)}", got, alone[n]


def gradient_extremes(row, options):
    """In float32 finite, no warning, and as in float64, however strong the gates and however often a key repeats."""
    for label, x, sizes in extreme_arguments(row):
        do, dfinal = cotangents(row, options, x, random(1))
        wide = {n: map_state(np.float64, y) for n, y in dict(x, do=do, dfinal_state=dfinal).items()}
        wanted = {n: map_state(np.float32, g) for n, g in row.module.loop_vjp(**wide, **options).items()}
        with warnings.catch_warnings():
            warnings.simplefilter("error")
            for name, vjp in every_vjp(row, sizes):
                if name != "matrix_vjp" or 64 in sizes:
                    d = vjp(do, **x, dfinal_state=dfinal, **options)
                    # a saturated softmax passes nothing on to its scores: what arrives at q and k is rounding
                    names = d if row.recurrent else ["v"]
                    yield f"loop_vjp in float64 against {name} in float32, {label}", {n: d[n] for n in names}, {n: wanted[n] for n in names}
                    yield finite(f"{name}, {label}", *(g for y in d.values() for g in leaves(y)))


def proved_by(proof, how):
    def cases(row, options):
        for state in True, False:
            for label, form, error in errors_of(row, options, proof, state):
                yield Distance(error, f"{form} against the derivative of loop, {label}" + ("" if state else ", no state"))

    cases.__doc__ = f"Every gradient derived by hand is the derivative of loop {how}, which knows loop alone."
    return cases


GRADIENT = (
    Law("vjp", vjps_agree, 1e-11), Law("vjp fractions", vjps_agree_as_fractions, 0, rational),
    Law("vjp causal", gradients_stay_before, 0, causal_only), Law("vjp types", gradients_have_types, 0),
    Law("vjp broadcast", gradients_of_broadcast, 1e-11), Law("vjp limits", gradient_limits, 1e-11),
    Law("vjp resets", gradients_stop_at_resets, 0, resettable), Law("vjp reductions", gradient_reductions, 1e-11, with_reductions),
    Law("vjp master form", gradients_by_master_form, 1e-11, with_master), Law("vjp packed", vjps_pack, 1e-11),
    Law("vjp extremes", gradient_extremes, 1e-5),
) + tuple(Law(proof, proved_by(proof, how), PROOFS[proof][1], why_not) for proof, how, why_not in (
    ("tape", "by reverse mode", lambda row, options: ""), ("exact dual", "by dual numbers, in fractions", rational),
    ("complex step", "by a step along the imaginary axis", analytic), ("central differences", "from values on both sides", not_analytic)))
