"""Padding and packed sequences: which tokens belong together."""
import numpy as np

from ...core.blocks import cut, split
from ...core.states import map_state
from ..case import wrong
from ..hypothesis import Hypothesis


def leaking(case):
    return wrong(case, real=None)


def hidden(*names):
    """Padding comes in, with these arrays set to zero there (others as they are)."""
    def change(case):
        def hide(x):
            keep = {name: case.real[(slice(None), None, slice(None)) + (None,) * (x[name].ndim - 3)] for name in names if name in x}
            return x | {name: np.where(keep[name], x[name], 0) for name in keep}
        return wrong(case, real=None, add_inputs=hide)
    return change


def padded(case):
    return case.real is not None


def pads(case):
    return padded(case) and not case.real.all()


def run_on(case):
    """The packed sequences as one, its state noted at every boundary."""
    axes, lengths = case.mechanism.axes, [slice(a, b) for a, b in zip(case.cu_seqlens[:-1], case.cu_seqlens[1:])]

    def around(form):
        def joined(q, k, v, *, state=None, **others):
            tokens, options = split(axes, dict(q=q, k=k, v=v, **others))
            outputs, states = [], []
            for b in lengths:
                o, state = form(**cut(tokens, axes, b), **options, state=state)
                outputs.append(o)
                states.append(state)
            return np.concatenate(outputs, axis=-2), map_state(lambda *parts: np.concatenate(parts), *states)
        return joined
    first = lambda x: {name: y[:1] if name.startswith("state") else y for name, y in x.items()}
    return wrong(case, cu_seqlens=None, add_inputs=first, add_around=around if case.mechanism.recurrent else lambda form: form)


def lost(of):
    """`of`(states, numbers of the empty sequences) in place of the final states of empty sequences."""
    def change(case):
        empty = np.flatnonzero(np.diff(case.cu_seqlens) == 0)

        def put(y, case):
            return {name: np.stack([of(x, n) if n in empty else x[n] for n in range(len(x))]) if name.startswith("final_state") else x
                    for name, x in y.items()}
        return wrong(case, add_outputs=put)
    return change


def packed(case):
    return case.cu_seqlens is not None


def has_empty(case):
    return bool((np.diff(case.cu_seqlens) == 0).any()) and any(name.startswith("final_state") for name in case.got)


SEQUENCES = (
    Hypothesis("padding leaks", "padding", leaking, "Padded tokens are processed like real ones.",
               "Let them change nothing: k, v, beta and g of 0 (after any activation), or skip them.",
               "a mask with padding before real tokens, or a final state", when=pads, meant=padded),
    Hypothesis("padding decays", "padding", hidden("k", "v", "beta"), "Padded tokens write nothing, but their gates decay the state.",
               "Set g to 0 there, after its activation.",
               "padding with gates other than 0 before real tokens, or a final state", "g", "recurrent", pads, padded),
    Hypothesis("padding writes", "padding", hidden("g"), "Padded tokens do not decay the state, but write to it.",
               "Set k, v and beta to 0 there.",
               "padding that holds something, before real tokens, or a final state", "g", "recurrent", pads, padded),
    Hypothesis("packed sequences leak", "packing", run_on, "The state runs on from one packed sequence into the next.",
               "Begin every sequence with its own state: cu_seqlens.",
               "more than one sequence that is not empty", when=lambda c: c.real is None and len(c.cu_seqlens) > 2, meant=packed),
    Hypothesis("empty sequence's state zero", "packing", lost(lambda x, n: 0 * x[n]), "The final state of an empty sequence is zeros.",
               "It is its initial state.",
               "an empty sequence with an initial state", only="recurrent", when=has_empty, meant=packed),
    Hypothesis("empty sequence's state from its neighbour", "packing", lost(lambda x, n: x[n - 1]),
               "The final state of an empty sequence is that of the sequence before.",
               "It is its initial state.", "an empty sequence", only="recurrent", when=has_empty, meant=packed))
