"""Gates and write strengths: what the numbers mean, and whose they are."""
import numpy as np

from ...core.functions import sigmoid, softplus
from ..case import wrong
from ..hypothesis import Hypothesis
from ..recurrence import ORDERS

STEPPED = " ".join(ORDERS)                               # the mechanisms that recurrence.by_steps can do


def through(name, function):
    """`function` of the array in its place."""
    return lambda case: wrong(case, add_inputs=lambda x: x | {name: function(x[name])})


def factor(function):
    """`function` of the log gate as the factor, in place of exp."""
    return lambda case: wrong(case, steps=dict(case.steps, factor=function))


def strengths(**used):
    return lambda case: wrong(case, steps=dict(case.steps, **used))


def through_erased(function):
    """`function` of beta where the prediction is taken off, beta itself where the value is written."""
    return lambda case: wrong(case, steps=dict(case.steps, erased=function))


def moved(name, tokens, ends):
    """Every token has the gate of the one `tokens` before; where there is none, `ends` says what.  Sequences are moved each for itself."""
    def change(case):
        axis = 3 if case.arrays[name].ndim == 4 else -1  # grouped arrays (B, H, G, T, …)

        def form_with(form):
            def moved_form(**x):
                y = np.moveaxis(x[name], axis, 0)
                n = min(abs(tokens), len(y))
                kept, gone = (y[:len(y) - n], y[len(y) - n:]) if tokens > 0 else (y[n:], y[:n])
                own = y[:n] if tokens > 0 else y[len(y) - n:]
                end = dict(none=0 * own if name == "g" else 0 * own + 1, own=own, wrapped=gone)[ends]
                return form(**x | {name: np.moveaxis(np.concatenate([end, kept] if tokens > 0 else [kept, end]), 0, axis)})
            return moved_form
        return wrong(case, add_around=form_with)
    return change


def of_group(name):
    """Every value head has the gate of the first of its group."""
    def change(case):
        H, HV = case.arrays["k"].shape[1], case.arrays["v"].shape[1]
        return through(name, lambda y: y[:, np.arange(HV) // (HV // H) * (HV // H)])(case)
    return change


def grouped(case):
    return case.arrays["k"].shape[1] < case.arrays["v"].shape[1]


def fades(case):
    return "g" in case.arrays and bool((case.arrays["g"] < 0).any())


def square_gates(case):
    return case.arrays["g"].ndim == 4 and case.arrays["k"].shape[-1] == case.arrays["v"].shape[-1]


LOG = "Pass the natural log of the decay, at most 0, and let the kernel take exp once."
ANY = "gates other than 0"
SHIFT = "gates that differ from token to token"
ENDS = dict(none="", own=" (the {} keeps its own)", wrapped=" (the {} gets that of the other end)")

GATE = tuple(Hypothesis(name, "gate", change, says, remedy, ANY, "g", only, fades) for name, change, says, remedy, only in (
    ("gate ignored", through("g", lambda g: 0 * g), "Nothing decays.", "Multiply the state by exp(g) at every token.", ""),
    ("gate in base 2", through("g", lambda g: g * np.log(2)), "The decay is 2 ** g.", "Take exp, or divide g by ln 2 before exp2.", ""),
    ("gate divided by ln 2", through("g", lambda g: g / np.log(2)), "g is turned into a base-2 logarithm, and then exp is taken.",
     "Take exp2 of g / ln 2, or exp of g.", ""),
    ("gate twice", through("g", lambda g: 2 * g), "The state decays twice at every token.", "Decay once.", ""),
    ("minus exp of the gate", through("g", lambda g: -np.exp(g)), "The decay is exp(-exp(g)): g is taken for the raw parameter of RWKV.",
     LOG, ""),
    ("minus sigmoid of the gate, times exp(-1/2)", through("g", lambda g: -np.exp(-0.5) * sigmoid(g)),
     "The log decay is -exp(-1/2) sigmoid(g): g is taken for the raw parameter of RWKV-7.", LOG, ""),
    ("sigmoid of the gate", through("g", lambda g: -softplus(-g)), "The decay is sigmoid(g): g is taken for a raw gate.", LOG, ""),
    ("minus softplus of the gate", through("g", lambda g: -softplus(g)), "The log decay is -softplus(g): g is taken for a raw gate.", LOG,
     ""),
    ("gate as a factor", factor(lambda g: g), "The state is multiplied by g itself: a log is used where the kernel expects the factor.",
     "Pass exp(g) to a kernel that expects the decay factor.", STEPPED),
    ("exp of the gate twice", factor(lambda g: np.exp(np.exp(g))),
     "The decay is exp(exp(g)): a factor is used where the kernel expects its log.", LOG, STEPPED),
    ("sign of the gate", factor(lambda g: np.exp(-g)), "The state grows by exp(-g).", "The log decay is negative: multiply by exp(g).",
     STEPPED),
    ("gate linearised", factor(lambda g: 1 + g), "The decay is 1 + g, the first two terms of exp(g).", "Take exp(g).", STEPPED)))
GATE += (
    *(Hypothesis(f"gate of the {which} token{ENDS[ends].format(end)}", "gate", moved("g", tokens, ends),
                 f"Every token decays by the gate of the {which} one.",
                 "Let token t decay by g[t].", SHIFT, "g", "recurrent", fades, whole=ends == "wrapped")
      for which, tokens, end in (("previous", 1, "first"), ("next", -1, "last")) for ends in ENDS),
    Hypothesis("gate of the first head of the group", "gate", of_group("g"), "All value heads of one key head have the gate of the first.",
               "Gates belong to value heads.", "several value heads to a key head", "g", "recurrent", lambda c: fades(c) and grouped(c)),
    Hypothesis("gate across value channels", "gate", strengths(across="V"), "The gates of the channels multiply the columns of the state.",
               "Gates belong to key channels: multiply the rows.", "K and V that differ", "g", STEPPED, fades, square_gates))

STRENGTH = tuple(Hypothesis(name, "beta", change, says, remedy, "beta other than 0 and 1", "beta", only) for name, change, says, remedy,
                 only in (
    ("beta ignored", through("beta", lambda b: 0 * b + 1), "beta is 1.", "Multiply the error, so value and prediction, by beta.", ""),
    ("beta only on v", strengths(erased=False), "beta multiplies the value but not the prediction.",
     "Multiply the error v - S^T k by beta.", STEPPED),
    ("beta only on k", strengths(written=False), "beta multiplies the prediction but not the value.",
     "Multiply the error v - S^T k by beta.", STEPPED),
    ("beta on k, everywhere", through_erased(lambda b: b * b), "beta multiplies k where it is written and where it predicts.",
     "Multiply the error v - S^T k by beta.", STEPPED),
    ("sigmoid of beta again", through("beta", sigmoid), "A sigmoid is applied to beta, which has been through one.",
     "Use beta as it is given, or give logits to the kernel.", ""),
    ("sigmoid of beta missing", through("beta", lambda b: np.log(b / (1 - b))), "The logits of beta are used as beta.",
     "Apply the sigmoid to the logits.", ""),
    ("beta doubled", through("beta", lambda b: 2 * b), "beta is doubled, as for negative eigenvalues.", "Use beta as it is given.", ""),
    ("beta halved", through("beta", lambda b: b / 2), "beta is halved.", "Double it after the sigmoid, if eigenvalues may be negative.",
     ""),
    ("beta twice", through("beta", lambda b: b * b), "beta is applied twice.", "Multiply the error by beta once.", "")))
STRENGTH += (
    *(Hypothesis(f"beta of the {which} token{ENDS[ends].format(end)}", "beta", moved("beta", tokens, ends),
                 f"Every token writes with the beta of the {which} one.",
                 "Let token t write with beta[t].", "beta that differs from token to token", "beta", "recurrent", whole=ends == "wrapped")
      for which, tokens, end in (("previous", 1, "first"), ("next", -1, "last")) for ends in ENDS),
    Hypothesis("beta of the first head of the group", "beta", of_group("beta"),
               "All value heads of one key head have the beta of the first.",
               "beta belongs to value heads.", "several value heads to a key head", "beta", "recurrent", grouped))
