"""Gradients: outputs that are right, and what is lost on the way back."""
from dataclasses import replace

import numpy as np

from ...core.functions import l2norm_vjp
from ..case import normal, outcome, wrong
from ..hypothesis import Hypothesis
from .gates import STEPPED, fades


def gradient(function):
    """`function`(outputs and gradients, case) in their place."""
    return lambda case: wrong(case, add_gradients=function)


def asked(*names):
    return lambda case: any("d" + name in case.got for name in names)


def again(case, **changes):
    """Outputs and gradients of the case with changes, without those that change gradients."""
    return outcome(replace(case, gradients=(), **changes), True)


# --- the gate ----------------------------------------------------------------------------------------------------

def end(y, case):
    """For every token, what flows through its gate to the final state and no output: sum(final state, its gradient), the end of the
    sum that dg is.
    """
    d = case.arrays.get("dfinal_state")
    if d is None:
        return 0 * y["dg"]
    x = (y["final_state"] * d).sum((-1, -2) if y["dg"].ndim == 3 else -1)    # B HV, or B HV K
    if case.cu_seqlens is not None:
        return np.repeat(x, np.diff(case.cu_seqlens), 0).swapaxes(0, 1)[None]
    return np.broadcast_to(x[:, :, None], y["dg"].shape)


def without_end(y, case):
    return y | dict(dg=y["dg"] - end(y, case))


def no_carry(size, last):
    """The sum over later tokens starts anew in every chunk; `last`: in the last one too, where it starts with the final state's part."""
    def function(y, case):
        dg, T = y["dg"].copy(), y["dg"].shape[2]
        for start in range(0, T, size):
            stop = min(start + size, T)
            if stop < T or last:
                dg[:, :, start:stop] -= y["dg"][:, :, stop:stop + 1] if stop < T else end(y, case)[:, :, start:stop]
        return y | dict(dg=dg)
    return gradient(function)


def short_end_lost(size):
    def function(y, case):
        start = y["dg"].shape[2] // size * size
        dg = y["dg"].copy()
        dg[:, :, start:] -= end(y, case)[:, :, start:]
        return y | dict(dg=dg)
    return gradient(function)


def of_next(y, case):
    """The sum leaves the token itself out."""
    return y | dict(dg=np.concatenate([y["dg"][:, :, 1:], end(y, case)[:, :, -1:]], 2))


def of_factor(y, case):
    with np.errstate(all="ignore"):
        return y | dict(dg=y["dg"] / np.exp(case.arrays["g"]))


def whole_rows(case):
    return case.real is None and case.cu_seqlens is None


def tokens(case):
    return case.arrays["q"].shape[2]


def has_end(case):
    return "dfinal_state" in case.arrays and "g" in case.arrays


def of_gate(name, change, says, remedy, shows, when):
    return Hypothesis(name, "dg", change, says, remedy, shows, "g", "recurrent", lambda c: asked("g")(c) and fades(c) and when(c))


SUM = "dg[t] is the sum of what flows through the gate of token t: to every later output and to the final state."
GATE = (
    of_gate("final state's part missing in dg", gradient(without_end), "dg lacks the sum of the final state times its gradient.", SUM,
            "dfinal_state", has_end),
    *(of_gate(f"dg without carry across chunks of {size}{more}", no_carry(size, last),
              f"The reversed cumulative sum starts anew in every chunk of {size}{says}.", SUM,
              f"more than {size} tokens", lambda c, size=size, last=last: whole_rows(c) and tokens(c) > size and (has_end(c) or not last))
      for size in (16, 32, 64, 128) for last, more, says in ((False, "", ""),
                                                             (True, " and without the final state",
                                                              ", the final state's part missing too"))),
    *(of_gate(f"dg without the end of a short last chunk of {size}", short_end_lost(size),
              f"In the last chunk, shorter than {size} tokens, the part of the final state is lost.",
              "It belongs to the last token that there is.", f"a T that is no multiple of {size}, and dfinal_state",
              lambda c, size=size: whole_rows(c) and has_end(c) and tokens(c) > size and tokens(c) % size != 0)
      for size in (16, 32, 64, 128)),
    of_gate("dg of the next token", gradient(of_next), "The reversed cumulative sum leaves the token itself out.", SUM,
            "gates other than 0", whole_rows),
    of_gate("dg with respect to the factor", gradient(of_factor), "dg is the gradient of the decay factor, not of its log.",
            "Multiply it by exp(g).", "gates other than 0", lambda c: True))


# --- the others --------------------------------------------------------------------------------------------------

def off_by_factor(name):
    """As many times the right gradient as fits best."""
    def function(y, case):
        a, b = case.got["d" + name], y["d" + name]
        if case.real is not None and a.ndim > 2 and a.shape[2] == case.real.shape[1]:
            a, b = (np.where(np.expand_dims(case.real, (1, *range(3, a.ndim))), x, 0) for x in (a, b))
        return y | {"d" + name: y["d" + name] * ratio((a * b).sum(), (b * b).sum())}
    return gradient(function)


def ratio(one, two):
    """one / two; 1 where there is no such factor, or it is zero: the gradient is missing then, or it is NaN."""
    with np.errstate(all="ignore"):
        c = one / two
    return c if np.isfinite(c) and c else 1


def all_off(y, case):
    """All gradients as many times the right ones as fits best."""
    names = [name for name in case.got if name.startswith("d") and case.got[name].shape == y[name].shape]
    real = [case.real is None or x.ndim < 3 or x.shape[2] != case.real.shape[1] for x in map(case.got.get, names)]
    keep = [1 if plain else np.expand_dims(case.real, (1, *range(3, y[name].ndim))) for name, plain in zip(names, real)]
    size = sum((k * y[name] ** 2).sum() for name, k in zip(names, keep))
    factor = ratio(sum((np.where(k, case.got[name], 0) * y[name]).sum() for name, k in zip(names, keep)), np.float64(size))
    return y | {name: factor * x for name, x in y.items() if name.startswith("d")}


FACTOR = tuple(Hypothesis(f"d{name} off by a factor", f"d{name}", off_by_factor(name),
                          f"d{name} is everywhere the same number of times too large.",
                          "Look for a scale that is missing or double, a mean in place of a sum, a logarithm in another base.",
                          "any inputs",
                          name if name != "state" else "", when=lambda c, name=name: "d" + name in c.got and c.got["d" + name].size > 1)
               for name in ("q", "k", "v", "g", "beta", "bias", "state"))


def per_head(which):
    """In place of the sum over a key head's value (or query) heads, `which` of them."""
    def function(y, case):
        names = "qk" if case.mechanism.recurrent else "kv"
        many = case.arrays["v" if case.mechanism.recurrent else "q"].shape[1]
        few = case.arrays["k"].shape[1]
        shared = (*names, "state.k", "state.v")
        wide = {name: np.repeat(x, many // few, 1) if name in shared else x
                for name, x in case.arrays.items() if not name.startswith("dfinal_state.")}
        found = again(case, arrays=wide)
        return y | {"d" + name: which(found["d" + name].reshape(y["d" + name].shape[:1] + (few, many // few) + y["d" + name].shape[2:]))
                    for name in names}
    return gradient(function)


def grouped(case):
    few, many = case.arrays["k"].shape[1], case.arrays["v" if case.mechanism.recurrent else "q"].shape[1]
    return few < many and asked(*("qk" if case.mechanism.recurrent else "kv"))(case) and not case.inputs


def past_norm(y, case):
    x = normal(case.arrays)
    found = again(case, l2norm=False, arrays=dict(case.arrays) | dict(q=x["q"], k=x["k"]))
    return y | dict(dq=found["dq"], dk=found["dk"])


def other_eps(y, case):
    x = normal(case.arrays)
    found = again(case, l2norm=False, arrays=dict(case.arrays) | dict(q=x["q"], k=x["k"]))
    return y | {"d" + name: l2norm_vjp(found["d" + name], case.arrays[name], eps=1e-12) for name in "qk"}


def no_cotangent(name):
    def function(y, case):
        found = again(case, arrays={key: 0 * x if key.startswith(name) else x for key, x in case.arrays.items()})
        return y | {key: x for key, x in found.items() if key.startswith("d")}
    return function


def without_prediction(y, case):
    """sum(v dv) / beta: dbeta has this, less what the prediction takes."""
    with np.errstate(all="ignore"):
        return y | dict(dbeta=(case.arrays["v"] * y["dv"]).sum(-1) / case.arrays["beta"])


def stopped(what):
    def function(y, case):
        return y | {key: x for key, x in again(case, steps=dict(case.steps, stop=what)).items() if key.startswith("d")}
    return gradient(function)


def without_normaliser(y, case):
    """dk from the numerator alone: with n = q . z, that of linear attention for do / n."""
    found = again(case, steps=dict(case.steps, stop="normaliser"))
    return y | dict(dk=found["dk"])


def has_normed(case):
    return case.l2norm and case.norm is None and asked("q", "k")(case)


OTHERS = (
    *(Hypothesis(f"sum over grouped heads missing: {name}", "groups", per_head(which),
                 f"The gradient of a shared head is {says}, not the sum over the heads that use it.",
                 "Add up the gradients of all heads that share it.", "several output heads to a key head", when=grouped) for name, which,
      says in (
        ("the first", lambda x: x[:, :, 0], "that of the first head that uses it"),
        ("the last", lambda x: x[:, :, -1], "that of the last head that uses it"),
        ("the mean", lambda x: x.mean(2), "the mean"))),
    Hypothesis("norm's gradient missing", "dnorm", gradient(past_norm), "dq and dk are the gradients of the normalised q and k.",
               "Go back through the l2 norm.",
               "q and k of lengths other than 1", when=has_normed),
    Hypothesis("eps 1e-12 in the norm's gradient", "dnorm", gradient(other_eps), "The gradient of the norm has another eps than the norm.",
               "Use 1e-6 in both.",
               "q or k shorter than 0.1, in more than float16", when=has_normed),
    Hypothesis("dfinal_state ignored", "cotangents dg", gradient(no_cotangent("dfinal_state")),
               "The gradients are those of the output alone.", "Start the pass backwards with dfinal_state.",
               "dfinal_state", when=lambda c: any(name.startswith("dfinal_state") for name in c.arrays)
               and any(name.startswith("d") for name in c.got)),
    Hypothesis("do ignored", "cotangents dg", gradient(no_cotangent("do")), "The gradients are those of the final state alone.",
               "Add what comes from the output.", "do and dfinal_state",
               when=lambda c: "do" in c.arrays and any(name.startswith("dfinal_state") for name in c.arrays)
               and any(name.startswith("d") for name in c.got)),
    Hypothesis("prediction missing in dbeta", "dbeta", gradient(without_prediction), "dbeta is that of beta v alone.",
               "dbeta[t] = (v[t] - S^T k[t]) . dd[t].", "a state before the token",
               "beta", "recurrent", asked("beta")),
    Hypothesis("dk without the prediction", "stop", stopped("key"), "dk has only what comes from the write.",
               "Add what comes from the prediction S^T k.", "a state before the token",
               "beta", STEPPED, asked("k")),
    Hypothesis("state's gradient past the prediction", "stop", stopped("state"),
               "Going back, the gradient of the state is only decayed: what the prediction takes is missing.",
               "dS[t-1] = exp(g) (dS[t] - k de^T).", "more than one token", "beta", STEPPED, asked(*"qkv", "g", "beta", "state")),
    Hypothesis("dk without the normaliser", "dnormaliser", gradient(without_normaliser), "dk has only what comes from the numerator.",
               "The sum of the keys depends on k too.",
               "any inputs", only="normalized_linear_attention", when=asked("k")))

FACTOR = (Hypothesis("all gradients off by a factor", "dq dk dv dg dbeta dbias dstate", gradient(all_off),
                     "All gradients are the same number of times too large.",
                     "Look at what came in: a mean in place of a sum, a loss scale.", "any inputs",
                     when=lambda c: sum(name.startswith("d") for name in c.got) > 1),) + FACTOR
GATE, OTHERS, FACTOR = (tuple(row._replace(back=True) for row in rows) for rows in (GATE, OTHERS, FACTOR))
