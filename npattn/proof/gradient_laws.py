"""What every hand-derived gradient must obey.  As in laws.py: a law yields (what, got, wanted)."""
import warnings

import numpy as np

from ..catalogue import CATALOGUE
from ..core import packed
from ..core.arrays import sum_to
from ..core.states import leaves, map_state
from .exact import log, random_fractions
from .gradients import PROOFS, errors_of
from .law import Law, analytic, causal_only, not_analytic, rational, resettable, with_reductions
from .material import SHAPES, T, exact_arguments, extended, extreme_arguments, gates, random, reset_arguments, tokens
from .measure import Distance


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
            yield name + label + end, vjp(do, **x, dfinal_state=dS, **options), wanted


# --- the laws --------------------------------------------------------------------------------------------------------

def vjps_agree(row, options):
    """loop_vjp = matrix_vjp = chunk_vjp for every size of a block, with and without state, batch axes and a gradient of the final state."""
    for shape in SHAPES:
        x = row.arguments(random(), T, **shape)
        yield from agree(row, options, x, random(1), (1, 3, 16, T, T + 1))


def vjps_agree_as_fractions(row, options):
    """The same with nothing rounded."""
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
            yield f"{name} of outputs before {p}", cut(d_other, slice(0, p)), cut(d, slice(0, p))
            yield f"{name} of outputs before {p}", d_other["state"], d["state"]
            yield f"{name} of outputs before {p}, later tokens", cut(d, slice(p, T)), {n: 0 * g for n, g in cut(d, slice(p, T)).items()}
            yield f"{name}, outputs before {p}", cut(d_late, slice(p, T)), cut(d_all, slice(p, T))


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
            yield f"{name} of {np.dtype(dtype)}", {n: map_state(lambda g, a: (g.shape, g.dtype) == (a.shape, a.dtype), d[n], x[n]) for n in d}, \
                {n: map_state(lambda a: True, x[n]) for n in x}
            yield f"{name}'s arguments", given, before


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
            yield f"{name}, {argument} broadcast", vjp(do, **y, dfinal_state=dfinal, **options), wanted


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
                yield f"{form}, {name} at a reset", at_reset, np.zeros_like(at_reset)
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
        yield f"{name}, before a reset", before, {n: map_state(np.zeros_like, g) for n, g in before.items()}


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
                    d = vjp(do, **y, dfinal_state=dfinal, **options)
                    yield f"{name} as {special}", {n: d[n] for n in both}, {n: wanted[n] for n in both}


def vjps_pack(row, options):
    """Gradients of sequences end to end equal those of each alone."""
    ends = (0, 4, 4, 9) if row.recurrent else (0, 3, 6, 9)
    x, states = row.arguments(random(), 9, lead=(2,)), row.arguments(random(1), 9, lead=(3, 2))["state"]
    whole, alone = {name: y for name, y in x.items() if name != "state"}, []
    parts = [dict(tokens(row, x, slice(*b)), state=map_state(lambda s: s[n], states)) for n, b in enumerate(zip(ends, ends[1:]))]
    cots = [cotangents(row, options, part, random(n)) for n, part in enumerate(parts)]
    do, dfinal = np.concatenate([do for do, _ in cots], -2), map_state(lambda *s: np.stack(s), *(s for _, s in cots))
    alone = [row.module.loop_vjp(dO, **part, dfinal_state=dS, **options) for part, (dO, dS) in zip(parts, cots)]
    for name in "loop_vjp", "matrix_vjp", "chunk_vjp":
        d = packed.packed_vjp(getattr(row.module, name), do, **whole, cu_seqlens=ends, state=states, dfinal_state=dfinal, **options)
        for n, b in enumerate(zip(ends, ends[1:])):
            yield f"{name}, packed", dict(tokens(row, d, slice(*b)), state=map_state(lambda s: s[n], d["state"])), alone[n]


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
                    yield f"{name}, {label}", {n: d[n] for n in names}, {n: wanted[n] for n in names}
                    yield f"{name}, {label}: finite", all(bool(np.isfinite(g).all()) for y in d.values() for g in leaves(y)), True


def proved_by(proof):
    """Every gradient derived by hand is what `proof`, which knows `loop` alone, finds."""
    def cases(row, options):
        for state in True, False:
            for label, form, error in errors_of(row, options, proof, state):
                yield Distance(error, f"{form}, {label}" + ("" if state else ", no state"))
    return cases


GRADIENT = (
    Law("vjp", vjps_agree, 1e-11), Law("vjp fractions", vjps_agree_as_fractions, 0, rational), Law("vjp causal", gradients_stay_before, 0, causal_only),
    Law("vjp types", gradients_have_types, 0), Law("vjp broadcast", gradients_of_broadcast, 1e-11), Law("vjp limits", gradient_limits, 1e-11), Law("vjp resets", gradients_stop_at_resets, 0, resettable),
    Law("vjp reductions", gradient_reductions, 1e-11, with_reductions), Law("vjp packed", vjps_pack, 1e-11), Law("vjp extremes", gradient_extremes, 1e-5),
) + tuple(Law(proof, proved_by(proof), PROOFS[proof][1], why_not) for proof, why_not in (
    ("tape", lambda row, options: ""), ("exact dual", rational), ("complex step", analytic), ("central differences", not_analytic)))
