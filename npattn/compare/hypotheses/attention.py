"""Who sees whom, and what the weights are: softmax attention, and block top-k attention's causal mask."""
import inspect

import numpy as np

from ...core.cached import scores, start_cached
from ...core.states import Cache
from ...softmax.softmax_attention import sight, whole
from ..case import wrong
from ..hypothesis import Hypothesis
from ..problem import takes


def setting(case, name):
    """An option, as given or by default."""
    return case.options.get(name, inspect.signature(case.mechanism.module.loop).parameters[name].default)


def options(**changes):
    """Options changed: values, or functions of the Case."""
    return lambda case: wrong(case, options=dict(case.options, **{name: f(case) if callable(f) else f for name, f in changes.items()}))


def places(case):
    """(T, n, N): queries, cached keys, new keys."""
    return case.arrays["q"].shape[2], case.arrays["state.k"].shape[2] if "state.k" in case.arrays else 0, case.arrays["k"].shape[2]


def hide(far, **changes):
    """Keys j are hidden from queries i, besides, unless far(n + i - j, case): how far back the key is."""
    def change(case):
        T, n, N = places(case)
        near = far(n + np.arange(T)[:, None] - np.arange(n + N), case)[None, None]           # 1 1 T n+N
        mask = case.arrays.get("mask", np.ones((1, 1, 1, 1), bool)) & near
        return options(**changes)(wrong(case, arrays=dict(case.arrays, mask=mask)))
    return change


def without(name):
    return lambda case: wrong(case, arrays={key: x for key, x in case.arrays.items() if key != name})


def inverted(case):
    return wrong(case, arrays=dict(case.arrays, mask=~case.arrays["mask"]))


def biased(function):
    return lambda case: wrong(case, add_inputs=lambda x: x | dict(bias=function(x["bias"], case)))


def meant_scale(case):
    return case.options.get("scale", max(case.arrays["q"].shape[-1], 1) ** -0.5)


def big_negative(case):
    """-1e9 in place of -inf: a row that sees nothing gives the mean of all values."""
    T, n, N = places(case)
    q = np.zeros((T, 1))
    _, see, _ = sight(q, np.zeros((n + N, 1)), n, setting(case, "causal"), None, None, setting(case, "window"))
    seen = see(slice(0, T), slice(0, n + N))
    seen = np.ones((T, n + N), bool) if seen is None else seen
    seen = seen & case.arrays.get("mask", np.ones((1, 1, 1, 1), bool))
    low = np.where(seen, 0, -1e9) + np.where(case.arrays.get("bias", np.zeros((1, 1, 1, 1))) == -np.inf, -1e9, 0)
    given = case.arrays.get("bias", np.zeros((1, 1, 1, 1)))
    arrays = {key: x for key, x in case.arrays.items() if key != "mask"} | dict(bias=np.where(given == -np.inf, 0, given) + low)
    return options(causal=False, window=None)(wrong(case, arrays=arrays))


def weighed(weights):
    """weights(o, lse, m) as the output, m being the largest score of the row."""
    def change(case):
        def form(q, k, v, *, causal=True, mask=None, bias=None, window=None, scale=None, state=None):
            xp, q, k, v, n = start_cached(case.mechanism.axes, q, k, v, scale=scale, state=state)
            _, see, bias = sight(q, k, n, causal, mask, bias, window)
            s = scores(q, k, bias, see(whole(q), whole(k)))                  # T n+N
            m = s.max(-1, keepdims=True)                                     # T 1
            m = xp.where(m == -np.inf, 0, m)
            e = xp.exp(s - m)
            return weights(e @ v, e.sum(-1, keepdims=True), m), Cache(k, v)  # T V
        return wrong(case, form=form)
    return change


def is_causal(case):
    return bool(setting(case, "causal"))


def has_window(case):
    return setting(case, "window") is not None


SOFTMAX = "softmax_attention"
WINDOW = "Query i sees the keys j with i - window < j <= i: itself and window - 1 before it."
MASK = (
    Hypothesis("causal mask missing", "causal", options(causal=False), "Later tokens are seen.", "Hide the keys j > i.",
               "more than one token", only="cached",
               meant=lambda c: "causal" in takes(c.mechanism)[2] and is_causal(c), whole=True),
    Hypothesis("causal mask strict", "causal", hide(lambda back, c: back > 0), "A token does not see itself (and the first nothing).",
               "Hide j > i, not j >= i.", "any inputs",
               only=SOFTMAX, meant=is_causal),
    Hypothesis("causal mask one too late", "causal", hide(lambda back, c: back >= -1, causal=False), "A token sees the next one.",
               "Hide j > i.", "more than one token", only=SOFTMAX,
               meant=lambda c: is_causal(c) and not has_window(c)),
    Hypothesis("causal mask superfluous", "causal", hide(lambda back, c: back >= 0), "Later tokens are hidden, which was not meant.",
               "Leave out the causal mask, or say opt.causal.", "more than one token",
               only=SOFTMAX, meant=lambda c: not is_causal(c)),
    Hypothesis("causal mask aligned to the last key", "causal", hide(lambda back, c: back + places(c)[2] - places(c)[0] >= 0, causal=False),
               "The last query is taken to stand at the last key (bottom right).", "Both count from the first, behind the cache.",
               "other numbers of queries and keys", only=SOFTMAX,
               meant=lambda c: is_causal(c) and not has_window(c), when=lambda c: places(c)[0] != places(c)[2], whole=True),
    Hypothesis("positions without the cache", "causal", hide(lambda back, c: back - places(c)[1] >= 0),
               "Query i stands at i, though n tokens are cached.", "It stands at n + i.",
               "an initial cache", only=SOFTMAX, meant=is_causal, when=lambda c: places(c)[1] > 0),
    Hypothesis("window one too wide", "window", options(window=lambda c: setting(c, "window") + 1),
               "The window counts the tokens before, without the token itself.", WINDOW,
               "more tokens than the window", only=SOFTMAX, meant=has_window),
    Hypothesis("window one too narrow", "window", options(window=lambda c: setting(c, "window") - 1), "The window is one token too short.",
               WINDOW, "more tokens than the window", only=SOFTMAX,
               meant=lambda c: has_window(c) and setting(c, "window") > 1),
    Hypothesis("window ignored", "window", options(window=None), "All earlier tokens are seen.", WINDOW, "more tokens than the window",
               only=SOFTMAX, meant=has_window),
    Hypothesis("mask ignored", "mask", without("mask"), "opt.mask is not used.", "Hide where it is False.", "a mask that hides something",
               only=SOFTMAX, meant=lambda c: "mask" in c.arrays),
    Hypothesis("mask inverted", "mask", inverted, "True is taken for hidden.", "True means that a query may see the key.", "a mask",
               only=SOFTMAX, meant=lambda c: "mask" in c.arrays),
    Hypothesis("-1e9 in place of -inf", "mask causal window", big_negative,
               "A query that sees nothing gets the mean of all values: hidden scores are large, not infinite.",
               "Give zeros to rows without a key.", "a query that sees no key", only=SOFTMAX, whole=True,
               meant=lambda c: bool({"mask", "bias"} & c.arrays.keys())),
    Hypothesis("bias ignored", "bias", biased(lambda b, c: np.where(b == -np.inf, b, 0)), "opt.bias is not added.",
               "Add it to the scaled scores.", "a bias", only=SOFTMAX,
               meant=lambda c: "bias" in c.arrays),
    Hypothesis("bias scaled", "bias", biased(lambda b, c: b * meant_scale(c)), "The bias is added before the scale is applied.",
               "Scale q k^T first, then add the bias.",
               "a scale other than 1", only=SOFTMAX, meant=lambda c: "bias" in c.arrays),
    Hypothesis("bias negated", "bias", biased(lambda b, c: np.where(b == -np.inf, b, -b)), "The bias is subtracted.", "Add it.", "a bias",
               only=SOFTMAX, meant=lambda c: "bias" in c.arrays))

WEIGHTS = tuple(Hypothesis(name, "weights", weighed(weights), says, remedy, shows, only=SOFTMAX) for name, weights, says, remedy, shows in (
    ("softmax not normalised", lambda o, z, m: o * np.exp(m), "The weights are e^score, not divided by their sum.",
     "Divide by the sum of e^score.", "any inputs"),
    ("softmax not normalised, largest score taken off", lambda o, z, m: o, "The weights are e^(score - largest), not divided by their sum.",
     "Divide by their sum.", "scores that are not equal"),
    ("one more in the normaliser", lambda o, z, m: o / (z + np.exp(-m)), "1 is added to the sum of e^score: a sink.",
     "Divide by the sum alone.", "any inputs"),
    ("one more in the normaliser, largest score taken off", lambda o, z, m: o / (z + 1), "1 is added to the sum of e^(score - largest).",
     "Divide by the sum alone.", "any inputs")))
