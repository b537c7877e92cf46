"""What a mechanism is, beside what its forms say of each other: the laws that a mistake common to all forms breaks.  As in laws.py."""
from fractions import Fraction

import numpy as np

from ..catalogue import CATALOGUE
from ..core.packed import cached
from ..core.states import leaves, map_state, rebuild
from .exact import log
from .law import Law, defined, scaled, with_master, with_reductions
from .material import SHAPES, T, every_form, exact_arguments, no_state, over_scores, random
from .plain import definition_of


def by_definition(row, options):
    """Every form gives what the plain definition gives, which shares no code with the forms; as fractions too."""
    plain, scales = definition_of(row), (None, .3) if not scaled(row, options) else (None,)
    for shape in SHAPES:
        x = row.arguments(random(), T, **shape)
        for extra in ({}, *over_scores(row, T, T + cached(x["state"]))):
            for scale in scales:
                wanted = head_by_head(plain, row, x, dict(options, **extra), scale)
                for name, form in every_form(row):
                    got = form(**x, **options, **extra, **({} if scale is None else dict(scale=scale)))
                    yield f"{name} against the plain definition{', with ' * bool(extra)}{' and '.join(extra)}", got, wanted
    if row.exact:
        x = exact_arguments(row, random(), 6, lead=(2,))
        wanted = head_by_head(plain, row, x, options, None)
        for name, form in every_form(row):
            yield f"{name} against the plain definition, in fractions", form(**x, **options), wanted


def head_by_head(plain, row, x, options, scale):
    """(o, final state) by a plain definition, which knows one head, all heads together; a default scale is K ** -0.5."""
    lead, K, exact = x["q"].shape[:-2], x["q"].shape[-1], x["q"].dtype == object
    if not scaled(row, options):
        options = dict(options, scale=(Fraction(1, 2) if exact else K ** -0.5) if scale is None else scale)      # fractions: K = 4
    state = no_state(row, x) if x["state"] is None else x["state"]
    rows, finals = [], []
    for i in np.ndindex(lead):
        parts = leaves(map_state(lambda s: s[i], state))
        o, final = plain(**{n: y[i] for n, y in x.items() if n != "state"}, **options, state=parts if len(parts) > 1 else parts[0])
        rows.append(np.stack(o))
        finals.append(rebuild(state, final if len(parts) > 1 else [final]))
    whole = lambda parts: np.stack(parts).reshape(lead + parts[0].shape)
    return whole(rows), map_state(lambda *s: whole(s), *finals)


def scales(row, options):
    """The default scale is K ** -0.5, and a scale multiplies q."""
    x, fractions = row.arguments(random(), 7, lead=(2,), K=5), exact_arguments(row, random(), 4, K=9)
    for name, form in every_form(row):
        yield f"{name}, the default scale against K ** -0.5", form(**x, **options), form(**x, **options, scale=5 ** -0.5)
        yield f"{name}, scale = 0.3 against 0.3 q", form(**x, **options, scale=.3), form(**dict(x, q=.3 * x["q"]), **options, scale=1)
        if row.exact:
            third = form(**fractions, **options, scale=Fraction(1, 3))
            yield f"{name}, the default scale against 1/3 for K = 9", form(**fractions, **options), third


def by_master_form(row, options):
    """loop is the master form of its kind, arguments mapped; as fractions too."""
    matrix, _ = row.master
    unscaled = {} if scaled(row, options) else dict(scale=1)
    for label, x in ("", row.arguments(random(), T, lead=(2,))), (", in fractions", exact_arguments(row, random(), 7)):
        if row.exact or not label:
            yield f"loop against the master form{label}", matrix(**x), row.module.loop(**x, **options, **unscaled)


def reductions(row, options):
    """With the arguments that the catalogue names, a mechanism is the simpler one; as fractions too."""
    for special, to_row in row.reductions.items():
        simple = CATALOGUE[special]
        for x, ln in (simple.arguments(random(), T, lead=(2,)), np.log), (exact_arguments(simple, random(), 7), log):
            if ln is np.log or row.exact and simple.exact:
                wanted = simple.module.loop(**x, **simple.options)
                for name, form in every_form(row):
                    yield f"{special}'s loop against {name}", form(**{**options, **to_row(x, ln)}), wanted


DEFINITION = (
    Law("definition", by_definition, 1e-12, defined), Law("scale", scales, 1e-12, scaled),
    Law("master form", by_master_form, 1e-12, with_master), Law("reductions", reductions, 1e-12, with_reductions),
)
