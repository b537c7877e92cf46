"""One call of a mechanism as plain arrays, and what it must return.

A Problem says what was meant; `evaluate` gives the right outputs of whatever Problem it gets.  Who wants to know what another
convention would have given changes the Problem (`dataclasses.replace`) and evaluates again.
"""
import inspect
from dataclasses import dataclass, field
from typing import Any, Mapping

import numpy as np

from ..catalogue import Mechanism
from ..core.arguments import leaf_names
from ..core.functions import l2norm, l2norm_vjp
from ..core.heads import group, ungroup
from ..core.states import leaves, rebuild

SCORES = ("mask", "bias")                                # arrays that are added to the scores of softmax attention, or hide some of them


@dataclass(frozen=True)
class Problem:
    """Arrays by name: the mechanism's own (B, heads, T, …), where mask and bias are (B or 1, heads or 1, T or 1, n + N or 1); the incoming
    gradients `do` and `dfinal_state`; a state (B, heads, …), with one row for each packed sequence, its parts by name, as in state.S."""
    mechanism: Mechanism                                 # its row of the catalogue
    arrays: Mapping[str, Any]
    options: Mapping[str, Any] = field(default_factory=dict)        # scale, window, …
    l2norm: bool = False                                 # q and k are first divided by their norms, eps 1e-6
    real: Any = None                                     # (B, T) booleans: it is as if the other tokens were not there
    cu_seqlens: Any = None                               # offsets of packed sequences (N + 1); then B = 1


def evaluate(problem, form="chunk", gradients=False, **keywords):
    """What the call must return, by name: o, final_state and, with `gradients`, dq, dk, …, dstate; each (B, heads, …).

    `form` is loop, matrix or chunk, or a pair of functions in place of a form and its vjp; `keywords` (such as chunk_size) go to
    it.  ValueError or TypeError where the mechanism refuses its arguments.
    """
    q, k = (problem.arrays[name] for name in "qk")
    normal = dict(q=l2norm(q), k=l2norm(k)) if problem.l2norm else {}
    given = {name: group(x, min(k.shape[1], x.shape[1]), 1 - x.ndim) for name, x in {**problem.arrays, **normal}.items()}    # B H G …

    whole = {}
    for part in segments(problem):
        own = {name: x[place(name, x.shape, part)] for name, x in given.items()}
        for name, y in call(problem, form, gradients, keywords, own).items():
            if part is None:
                whole[name] = y
            elif problem.mechanism.recurrent or "final_state" not in name:       # caches of different lengths make no array
                if name not in whole:
                    whole[name] = np.zeros(full_shape(name, y, given, problem), y.dtype)
                whole[name][place(name, whole[name].shape, part)] += y

    whole = {name: ungroup(y, 2 - y.ndim) for name, y in whole.items()}
    if gradients and problem.l2norm:
        whole |= dict(dq=l2norm_vjp(whole["dq"], q), dk=l2norm_vjp(whole["dk"], k))
    return whole


def call(problem, form, gradients, keywords, own):
    """The mechanism on grouped arrays (B, H, G, …)."""
    module, axes = problem.mechanism.module, problem.mechanism.axes
    forward, backward = form if isinstance(form, tuple) else (getattr(module, form), getattr(module, form + "_vjp"))

    def state(name):
        names = leaf_names(name, axes["state"])
        return rebuild(axes["state"], [own[x] for x in names]) if names[0] in own else None

    needed, optional, *_ = takes(problem.mechanism)
    arguments = {name: own[name] for name in (*needed, *optional) if name in own} | problem.options | keywords | dict(state=state("state"))
    o, final = forward(**arguments)
    found = dict(o=o) | dict(zip(leaf_names("final_state", axes["state"]), leaves(final)))
    if gradients:
        d = backward(own["do"] if "do" in own else np.zeros_like(o), **arguments, dfinal_state=state("dfinal_state"))
        found |= dict(zip(leaf_names("dstate", axes["state"]), leaves(d.pop("state")))) | {"d" + name: y for name, y in d.items()}
    return found


def takes(mechanism):
    """(arrays that it needs, arrays that it may have, other options, those of them that it needs), from the signature of its loop."""
    given = {name: p.default is p.empty for name, p in inspect.signature(mechanism.module.loop).parameters.items() if name != "state"}
    arrays = [name for name in given if name in mechanism.axes or name in SCORES]
    options = [name for name in given if name not in arrays]
    return [n for n in arrays if given[n]], [n for n in arrays if not given[n]], options, [n for n in options if given[n]]


# --- tokens that belong together ---------------------------------------------------------------------------------

def segments(problem):
    """What runs alone, as (batch rows, tokens, columns of the scores, rows of the state): a packed sequence, or the real tokens of
    a padded row.

    Gathering the tokens is right for every mechanism, whatever padding holds.  None stands for everything at once.
    """
    real, cu, T = problem.real, problem.cu_seqlens, problem.arrays["k"].shape[2]
    if real is None and cu is None:
        return [None]
    parts = [([b], np.arange(T), [b]) for b in range(len(real))] if cu is None else \
            [([0], np.arange(a, b), [n]) for n, (a, b) in enumerate(zip(cu[:-1], cu[1:]))]
    if real is not None:
        parts = [(rows, tokens[real[rows[0], tokens]], states) for rows, tokens, states in parts]
    cached = problem.arrays["state.k"].shape[2] if "state.k" in problem.arrays else 0
    return [(rows, tokens, np.concatenate([np.arange(cached), cached + tokens]), states) for rows, tokens, states in parts]


def place(name, shape, part):
    """The index of a segment in a grouped array (B, H, G, …)."""
    if part is None:
        return ...
    rows, tokens, columns, states = part
    axes = [range(n) for n in shape]
    if "state" in name:
        axes[0] = states
    elif name.removeprefix("d") in SCORES:               # an axis of 1 stands for all
        for axis, wanted in ((0, rows), (3, tokens), (4, columns)):
            axes[axis] = wanted if shape[axis] > 1 else [0]
    else:
        axes[0], axes[3] = rows, tokens
    return np.ix_(*axes)


def full_shape(name, part, given, problem):
    """The grouped shape of a result of which `part` is one segment's."""
    if "state" in name:
        return (len(problem.real) if problem.cu_seqlens is None else len(problem.cu_seqlens) - 1,) + part.shape[1:]
    if name == "o":
        return given["q"].shape[:1] + part.shape[1:3] + given["q"].shape[3:4] + part.shape[4:]
    return given[name.removeprefix("d")].shape
