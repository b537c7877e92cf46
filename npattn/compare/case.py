"""What an implementation may have computed in place of what was meant: a Problem in which every convention can be switched.

A hypothesis changes a Case (`dataclasses.replace`), two hypotheses one after the other; `outcome` says what would have come out,
gradients included.
"""
from dataclasses import dataclass, field, replace
from typing import Any, Mapping

import numpy as np

from ..core.arguments import leaf_names
from ..core.functions import l2norm
from ..core.states import Normalized, leaves, map_state, rebuild
from ..proof.tape import Traced, vjp
from .problem import Problem, evaluate
from .recurrence import ORDERS, by_chunks, by_steps

MANY = 1e6                                               # numbers in all states, from which on the tape takes heads one by one
REFUSED = (ValueError, TypeError, KeyError, IndexError,
           AttributeError)       # by what makes no sense: shapes that do not fit, gates that are positive


@dataclass(frozen=True)
class Case(Problem):
    got: Mapping[str, Any] = field(default_factory=dict)    # what the implementation returned
    layout: str = "bthd"                                 # how it was stored
    norm: Any = None                                     # arrays -> arrays, in place of the l2 norms of q and k
    inputs: tuple = ()                                   # arrays -> arrays, one after the other, behind the norms
    steps: Mapping[str, Any] = field(default_factory=dict)  # for recurrence.by_steps: order, factor, …
    chunk: tuple = ()                                    # for recurrence.by_chunks: size, what is wrong
    form: Any = None                                     # a form of its own in place of the mechanism's, or a pair: it and its vjp
    around: tuple = ()                                   # form -> form, one after the other
    outputs: tuple = ()                                  # (outputs, case) -> outputs, one after the other; gradients pass back
    gradients: tuple = ()                                # (outputs and gradients, case) -> the same, one after the other

    def __repr__(self):
        return f"<Case of {self.mechanism.name}>"


def case_of(dump):
    """The right Case of a dump.  Where the gradient of a first state is asked for, but no state was given, there is one of zeros."""
    p, kinds = dump.problem, dump.problem.mechanism.axes["state"]
    names, arrays = leaf_names("state", kinds), dict(p.arrays)
    if names[0] not in arrays and any("d" + name in dump.outputs for name in names):
        few, many = p.arrays["k"].shape[1], p.arrays["v"].shape[1]
        rows = p.arrays["k"].shape[0] if p.cu_seqlens is None else len(p.cu_seqlens) - 1
        sizes = dict(K=p.arrays["k"].shape[-1], V=p.arrays["v"].shape[-1], n=0)
        arrays |= {name: np.zeros((rows, many if p.mechanism.recurrent else few, *(sizes[x] for x in kind.split())))
                   for name, kind in zip(names, leaves(kinds))}
    return Case(p.mechanism, arrays, p.options, p.l2norm, p.real, p.cu_seqlens, dump.outputs, dump.layout)


def outcome(case, gradients=False):
    """What the implementation would return, by name.  ValueError or TypeError where the case makes no sense."""
    names = [name for name, x in case.arrays.items() if x.dtype.kind == "f" and name != "do" and not name.startswith("dfinal_state")]
    given = tuple(case.arrays[name] for name in names)

    def before(*given):
        x = dict(case.arrays) | dict(zip(names, given))
        if case.norm or case.l2norm:
            x = (case.norm or normal)(x)
        for change in case.inputs:
            x = change(x)
        return tuple(x[name] for name in names)

    form = form_of(case)
    if not gradients:
        return after(run(case, form, dict(zip(names, before(*given)))), case)

    x, back_in = vjp(before, *given) if case.norm or case.l2norm or case.inputs else (given, lambda d: d)
    x, ends = dict(zip(names, x)), {}
    if case.outputs:
        own = run(case, form, x)
        found, back_out = vjp(lambda *parts: tuple(after(dict(zip(own, parts)), case).values()), *own.values())
        result = dict(zip(own, found))
        ends = dict(zip(own, back_out(tuple(cotangent(case, name, part) for name, part in result.items()))))
    y = run(case, form, x | {"do" if name == "o" else "d" + name: d for name, d in ends.items()}, gradients=True)
    if not case.outputs:
        result = {name: part for name, part in y.items() if is_result(name)}
    d = back_in(tuple(y["d" + name] if "d" + name in y else np.zeros_like(x[name]) for name in names))
    y = result | {"d" + name: part for name, part in zip(names, d)}
    for change in case.gradients:
        y = change(y, case)
    return y


def is_result(name):
    return name == "o" or name.startswith("final_state")


def after(y, case):
    for change in case.outputs:
        y = change(y, case)
    return y


def cotangent(case, name, like):
    """The gradient that came in for an output; zeros if none did, or if it does not fit."""
    d = case.arrays.get("do" if name == "o" else "d" + name)
    return np.zeros(like.shape) if d is None or d.shape != like.shape else d


def run(case, form, arrays, gradients=False):
    """`evaluate` on arrays that are normalised already."""
    problem = Problem(case.mechanism, dict(case.arrays) | arrays, case.options, False, case.real, case.cu_seqlens)
    return evaluate(problem, form, gradients)


def normal(x):
    return x | dict(q=l2norm(x["q"]), k=l2norm(x["k"]))


# --- forms -------------------------------------------------------------------------------------------------------

def form_of(case):
    """The name of the mechanism's own form, or the case's own and its gradients, which the tape finds."""
    if not (case.steps or case.chunk or case.form or case.around):
        return "chunk"
    if isinstance(case.form, tuple):
        return case.form
    if case.form:
        form = case.form
    elif case.chunk:
        form = by_chunks(*case.chunk)
    elif case.steps:
        name = case.mechanism.name
        form = by_steps(**dict(order=ORDERS[name], normalized=isinstance(case.mechanism.axes["state"], Normalized)) | dict(case.steps))
    else:
        form = own(case.mechanism.module)
    for change in case.around:
        form = change(form)
    return form, by_tape(form)


def own(module):
    """The mechanism's form: by chunks, or on the tape by its definition."""
    def form(q, k, v, **others):
        on_tape = any(isinstance(x, Traced) for x in (q, k, v))
        return (module.loop if on_tape else module.chunk)(q, k, v, **others)

    return form


def by_tape(form):
    """The gradients of a form, as a mechanism's vjp gives them; where much has to be kept, one key head at a time."""
    def backward(do, *, state=None, dfinal_state=None, **arguments):
        names = [name for name, x in arguments.items() if isinstance(x, np.ndarray) and x.dtype.kind == "f"]
        given = [arguments[name] for name in names] + list(leaves(state))    # (B, H, G, …), or of one head for all

        def part(h):
            own = {name: x[:, h] if isinstance(x, np.ndarray) and x.shape[1] > 1 else x for name, x in arguments.items()}
            begin, end = (None if x is None else map_state(lambda y: y[:, h], x) for x in (state, dfinal_state))
            _, pull = vjp(lambda state, *x: form(**own | dict(zip(names, x)), state=state), begin, *(own[name] for name in names))
            first, *d = pull((do[:, h], end))
            return [*d, *leaves(first)]

        heads = [slice(h, h + 1) for h in range(do.shape[1])] if do.size * given[0].shape[-1] > MANY else [slice(None)]
        d = [sum(x) if like.shape[1] == 1 else np.concatenate(x, 1) for like, *x in zip(given, *map(part, heads))]
        return dict(zip(names, d), state=None if state is None else rebuild(state, d[len(names):]))

    return backward


def wrong(case, **changes):
    """`case` with entries changed; what begins with `add_` is put behind what is there."""
    return replace(case, **{name.removeprefix("add_"): getattr(case, name[4:]) + (x,) if name.startswith("add_") else x
                            for name, x in changes.items()})


def changed(case, rows):
    """The Case that rows of the table make of it."""
    for row in rows:
        case = row.change(case)
    return case


def computed(case, gradients):
    """The outcome; None where the case makes no sense."""
    with np.errstate(all="ignore"):
        try:
            return outcome(case, gradients)
        except REFUSED:
            return None
