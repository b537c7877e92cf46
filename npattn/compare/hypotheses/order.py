"""The order of decay, prediction, write and read; states at the two ends."""
import numpy as np

from ...core.states import leaves, rebuild
from ..case import wrong
from ..hypothesis import Hypothesis
from ..recurrence import ORDERS
from .gates import fades


def steps(order):
    """The steps of `order` that the mechanism has."""
    def change(case):
        own = ORDERS[case.mechanism.name].split()
        return wrong(case, steps=dict(case.steps, order=" ".join(step for step in order.split() if step in own)))
    return change


GATED = "simple_gla gla"
DELTA = "gated_delta_rule kda"
BACK = "gated_delta_rule_predict_first"
RIGHT = "The order is decay, predict, write, read."

ORDER = tuple(Hypothesis(name, "order", steps(order), says, remedy, shows, only=only) for name, order, says, remedy, shows, only in (
    ("predict before decay", "predict decay write read", "The prediction is made from the state before it decays.", RIGHT,
     "a state before the token, and gates other than 0", DELTA),
    ("decay before predict", "decay predict write read", "The state decays before the prediction is made from it.",
     "The order is predict, decay, write, read.",
     "a state before the token, and gates other than 0", BACK),
    ("decay after write", "predict write decay read", "What a token writes decays by its own gate at once, before it is read.", RIGHT,
     "gates other than 0", f"{GATED} {DELTA} {BACK}"),
    ("decay after read", "predict write read decay", "The state decays at the end of the step: by the gate of the token before.", RIGHT,
     "gates other than 0",
     f"{GATED} {DELTA} {BACK}"),
    ("read before write", "decay predict read write", "A token reads before it writes, so not its own value: a strictly lower causal mask.",
     "Read after the write; the mask includes the diagonal.", "any inputs",
     f"linear_attention normalized_linear_attention delta_rule {GATED} {DELTA}"),
    ("read before decay", "read decay predict write", "A token reads the state of the token before, not decayed yet.",
     "Read after decay and write.", "gates other than 0",
     f"{GATED} {DELTA} {BACK}"),
    ("nothing erased", "decay write read", "Nothing is predicted and erased: the values are added as they are.", "Write v - S^T k, not v.",
     "keys that meet again", f"delta_rule {DELTA} {BACK}")))


def transposed(*which):
    """A matrix state, at the beginning or at the end, with rows and columns swapped."""
    def change(case):
        names = [name for name in case.arrays if name in ("state", "state.S")]
        swap = lambda names: lambda x, *_: x | {name: x[name].swapaxes(-1, -2) for name in names if name in x}
        case = wrong(case, add_inputs=swap(names)) if "first" in which else case
        return wrong(case, add_outputs=swap(("final_state", "final_state.S"))) if "last" in which else case
    return change


def without_state(case):
    return wrong(case, add_around=lambda form: lambda state=None, **x: form(**x,
                                                                            state=None if state is None
                                                                            else rebuild(state, [0 * y for y in leaves(state)])))


def without_cache(case):
    """What is cached is not attended to, but returned."""
    def around(form):
        def alone(*, state=None, **x):
            o, new = form(**x)
            return o, new if state is None else rebuild(state, [np.concatenate(pair, axis=-2) for pair in zip(state, new)])
        return alone
    return wrong(case, add_around=around)


def shortened(last):
    """`last`(final state, the state one token before, the decay of the last token) as the final state."""
    def change(case):
        axes = {name: kind.split() for name, kind in case.mechanism.axes.items() if name != "state"}

        def around(form):
            def ended(**x):
                o, final = form(**x)
                if not x["q"].shape[-2]:
                    return o, final
                cut = lambda y, kind: y[(..., slice(0, -1)) + (slice(None),) * (len(kind) - 1)]
                before = form(**{name: cut(y, axes[name]) if name in axes and hasattr(y, "shape") else y for name, y in x.items()})[1]
                f = 1 if "g" not in x else np.exp(x["g"][..., -1, None, None] if len(axes["g"]) == 1 else x["g"][..., -1, :, None])
                return o, rebuild(final, [last(a, b, f) for a, b in zip(leaves(final), leaves(before))])
            return ended
        return wrong(case, add_around=around)
    return change


def final(value):
    """`value`(case, name of the final state, its right value) in place of what is returned as final state."""
    return lambda case: wrong(case, add_outputs=lambda y, case: {name: value(case, name, x) if name.startswith("final_state") else x
                                                                 for name, x in y.items()})


def first_again(case, name, x):
    return case.arrays.get(name.replace("final_state", "state"), 0 * x) + 0 * x


def has_state(case):
    return any(name.startswith("state") for name in case.arrays)


def has_final(case):
    return any(name.startswith("final_state") for name in case.got)


def is_square(case):
    return case.arrays["k"].shape[-1] == case.arrays["v"].shape[-1]


ASYMMETRIC = "K and V that differ, or a state that is not symmetric"
STATE = (
    Hypothesis("initial state ignored", "first", without_state, "It begins with zeros.", "Begin with the state that is given.",
               "an initial state",
               only="recurrent", when=has_state),
    Hypothesis("cache ignored", "first", without_cache, "The cached keys and values are left out.", "Attend to them too.",
               "an initial cache", only="cached", when=has_state),
    Hypothesis("initial state transposed", "first", transposed("first"), "The initial state is taken for [V, K].",
               "Its rows are key channels: [K, V].", ASYMMETRIC,
               only="recurrent", when=has_state, meant=is_square),
    Hypothesis("final state transposed", "last", transposed("last"), "The final state is returned as [V, K].", "Return [K, V].", ASYMMETRIC,
               only="recurrent", when=has_final, meant=is_square),
    Hypothesis("state [V, K]", "first last", transposed("first", "last"), "The state goes in and comes out as [V, K].",
               "Transpose it at both ends, or say so: it is [K, V] here.",
               ASYMMETRIC, only="recurrent", when=lambda c: has_state(c) and has_final(c), meant=is_square),
    Hypothesis("final state without the last gate", "last", shortened(lambda final, before, f: final - f * before + before),
               "What was there before the last token is handed on without that token's decay.", "Decay up to the last token, it included.",
               "a final state, and a last gate other than 0",
               "g", "recurrent", lambda c: has_final(c) and fades(c)),
    Hypothesis("final state divided by the last gate", "last", shortened(lambda final, before, f: final / f),
               "The decays up to the end stop one gate early, for the last write too.", "Decay up to the last token, it included.",
               "a final state, and a last gate other than 0", "g", "recurrent", lambda c: has_final(c) and fades(c)),
    Hypothesis("final state decayed once more", "last", shortened(lambda final, before, f: f * final),
               "The final state has gone through the last gate twice.",
               "Return it as the last token reads it.", "a final state, and a last gate other than 0", "g", "recurrent",
               lambda c: has_final(c) and fades(c)),
    Hypothesis("final state one token early", "last", shortened(lambda final, before, f: before),
               "The final state is that before the last token.", "Return it after the last write.",
               "a final state", only="recurrent", when=has_final),
    Hypothesis("final state missing", "last", final(lambda case, name, x: 0 * x), "The final state is zeros.", "Write it back.",
               "a final state", when=has_final),
    Hypothesis("initial state returned", "last", final(first_again), "The initial state is returned as the final one.",
               "Write the final state back.", "a final state",
               only="recurrent", when=has_final))
