"""Every law catches something: a form or a gradient that is wrong on purpose makes it fail, and `check` end with status 1."""
import dataclasses
import functools
import json

import numpy as np
import pytest

from npattn.__main__ import main
from npattn.catalogue import CATALOGUE
from npattn.proof.exact import log
from npattn.proof.gradient_laws import GRADIENT
from npattn.proof.law import judge
from npattn.proof.laws import FORWARD

LAWS = {law.name: law for law in FORWARD + GRADIENT}
ROW = CATALOGUE["gated_delta_rule"]


def wrong(form):
    """Decorator: change(right form, its arguments) in place of the form `form` of a module."""
    def with_change(change):
        right = getattr(ROW.module, form)

        @functools.wraps(right)
        def broken(*args, **kwargs):
            names = ("do", "q", "k", "v") if form.endswith("vjp") else ("q", "k", "v")
            return change(right, dict(zip(names, args)) | kwargs)
        return form, broken
    return with_change


# --- forms --------------------------------------------------------------------------------------------------------------

@wrong("matrix")
def forgets_the_last_decay(right, x):
    g = x["g"].copy()
    g[..., -1:] = log([1]) if g.dtype == object else 0
    return right(**dict(x, g=g))


@wrong("matrix")
def squares_the_decay(right, x):
    return right(**dict(x, g=x["g"] + x["g"]))


@wrong("chunk")
def forgets_the_state(right, x):
    return right(**dict(x, state=None))


@wrong("chunk")
def puts_a_bad_block_after_the_first(right, x):
    o, state = right(**x)
    o[..., x["chunk_size"]:, :] *= 1 + 1e-9
    return o, state


@wrong("loop")
def counts_tokens(right, x):
    """Right only if a call starts at the beginning."""
    o, state = right(**x)
    return o * np.arange(1, 1 + o.shape[-2])[:, None], state


@wrong("matrix")
def looks_ahead(right, x):
    o, state = right(**x)
    return o + 1e-9 * o[..., -1:, :], state


@wrong("matrix")
def ignores_v(right, x):
    return right(**dict(x, v=0 * x["v"]))


@wrong("matrix")
def ignores_scale(right, x):
    return right(**dict(x, scale=None))


@wrong("loop")
def writes_into_v(right, x):
    x["v"] *= 1
    return right(**x)


@wrong("matrix")
def computes_in_float64(right, x):
    o, state = right(**x)
    return o + np.zeros(1), state


@wrong("matrix")
def reshapes_wrongly(right, x):
    """Takes memory for granted: right for contiguous arrays only."""
    k = x["k"]
    contiguous = k.flags.c_contiguous or k.size == 0
    return right(**dict(x, k=k if contiguous else k[..., ::-1, :]))


@wrong("matrix")
def wants_two_tokens(right, x):
    o, state = right(**x)
    return (o, state) if o.shape[-2] > 1 else (2 * o, state)


@wrong("loop")
def leaks_through_a_reset(right, x):
    return right(**dict(x, g=np.maximum(x["g"], -30)))


@wrong("matrix")
def decays_by_itself(right, x):
    o, state = right(**x)
    return o, state * np.asarray(.9, state.dtype) ** o.shape[-2] if state.dtype != object else state


@wrong("matrix")
def overflows(right, x):
    """Decay by differences of cumulative sums, as one finds it everywhere."""
    G = np.cumsum(x["g"], -1)
    with np.errstate(all="ignore"):
        D = np.tril(np.exp(G[..., :, None] - G[..., None, :]))
    o, state = right(**x)
    return o + 0 * D.sum(-1, keepdims=True), state


# --- gradients: each is wrong in all three forms alike, so that only another law or a proof can see it --------------------

def all_three(change):
    def broken_form(right):
        @functools.wraps(right)
        def broken(do, *qkv, **x):
            x = dict(zip("qkv", qkv)) | x
            return change(right, do, x, right(do, **x))
        return broken
    return [(form, broken_form(getattr(ROW.module, form))) for form in ("loop_vjp", "matrix_vjp", "chunk_vjp")]


@all_three
def dg_without_the_final_state(right, do, x, d):
    return dict(d, g=right(do, **dict(x, dfinal_state=None))["g"])


@all_three
def dbeta_without_the_prediction(right, do, x, d):
    """dbeta = v · dS^T k instead of (v - F^T k) · dS^T k; dv = beta dS^T k."""
    beta = x["beta"] + (x["beta"] == 0)
    return dict(d, beta=(np.broadcast_to(x["v"], d["v"].shape) * d["v"]).sum(-1).reshape(d["beta"].shape) / beta)


@all_three
def dk_twice(right, do, x, d):
    return dict(d, k=2 * d["k"])


@all_three
def dg_of_the_next_token(right, do, x, d):
    return dict(d, g=np.roll(d["g"], -1, -1))


@all_three
def no_gradient_of_the_state(right, do, x, d):
    return dict(d, state=0 * d["state"])


@all_three
def dq_of_later_tokens(right, do, x, d):
    return dict(d, q=d["q"] + 1e-9 * d["q"].sum(-2, keepdims=True) * x["v"].sum() if d["q"].dtype != object else d["q"])


@all_three
def gradients_in_float64(right, do, x, d):
    return dict(d, v=d["v"].astype(np.float64) if d["v"].dtype == np.float32 else d["v"])


@all_three
def writes_into_do(right, do, x, d):
    do *= 1
    return d


@all_three
def broadcast_not_summed(right, do, x, d):
    return dict(d, k=d["k"] / 6) if d["k"].shape[0] < do.shape[0] else d


@all_three
def dg_leaks_through_a_reset(right, do, x, d):
    return dict(d, g=d["g"] + np.asarray(1e-20, d["g"].dtype) if d["g"].dtype != object else d["g"])


@all_three
def state_of_the_first_sequence(right, do, x, d):
    return dict(d, v=2 * d["v"]) if do.shape[-2] == 4 else d


@all_three
def not_a_number(right, do, x, d):
    return dict(d, g=np.where(x["g"] < -5000, np.nan, d["g"])) if d["g"].dtype == np.float32 else d


def one(form, change):
    """The same mistake in one form only."""
    return [(name, broken) for name, broken in change if name == form]


CAUGHT = {
    "forms": [forgets_the_last_decay, squares_the_decay, forgets_the_state, puts_a_bad_block_after_the_first],
    "float32": [forgets_the_last_decay, forgets_the_state, computes_in_float64],
    "fractions": [forgets_the_last_decay, squares_the_decay, ignores_v],
    "resume": [counts_tokens, forgets_the_state],
    "causal": [looks_ahead],
    "arguments matter": [ignores_v, ignores_scale],
    "arguments stay": [writes_into_v],
    "types": [computes_in_float64],
    "layouts": [reshapes_wrongly],
    "limits": [wants_two_tokens, forgets_the_last_decay, overflows],
    "resets": [leaks_through_a_reset, overflows],
    "reductions": [ignores_v, forgets_the_state],
    "packed": [forgets_the_state, decays_by_itself],
    "padding": [decays_by_itself],
    "extremes": [overflows],
    "vjp": [one("loop_vjp", dk_twice), one("matrix_vjp", dg_without_the_final_state), one("chunk_vjp", no_gradient_of_the_state)],
    "vjp fractions": [one("loop_vjp", dbeta_without_the_prediction), one("matrix_vjp", dg_of_the_next_token), one("chunk_vjp", dk_twice)],
    "vjp causal": [dq_of_later_tokens],
    "vjp types": [gradients_in_float64, writes_into_do],
    "vjp broadcast": [broadcast_not_summed],
    "vjp limits": [one("matrix_vjp", dk_twice), dg_of_the_next_token],
    "vjp resets": [dg_leaks_through_a_reset],
    "vjp reductions": [dk_twice, no_gradient_of_the_state],
    "vjp packed": [one("matrix_vjp", state_of_the_first_sequence)],
    "vjp extremes": [not_a_number],
    "tape": [dg_without_the_final_state, dbeta_without_the_prediction, dk_twice, dg_of_the_next_token, no_gradient_of_the_state],
    "exact dual": [dg_without_the_final_state, dbeta_without_the_prediction, dk_twice, dg_of_the_next_token, no_gradient_of_the_state],
    "complex step": [dg_without_the_final_state, dbeta_without_the_prediction, dk_twice, dg_of_the_next_token, no_gradient_of_the_state],
}


def names(mutation):
    return [mutation] if isinstance(mutation, tuple) else mutation


def break_it(monkeypatch, mutation):
    for form, broken in names(mutation):
        monkeypatch.setattr(ROW.module, form, broken)


CASES = [pytest.param(law, mutation, id=f"{law}-{n}") for law, mutations in CAUGHT.items() for n, mutation in enumerate(mutations)]


@functools.cache
def holds_unbroken(law):
    return judge(LAWS[law], ROW).ok


@pytest.mark.parametrize("law, mutation", CASES)
def test_a_law_catches_what_is_wrong(monkeypatch, law, mutation):
    assert holds_unbroken(law)
    break_it(monkeypatch, mutation)
    assert not judge(LAWS[law], ROW).ok


def test_central_differences_catch_it_where_no_complex_step_applies(monkeypatch):
    row = dataclasses.replace(ROW, analytic=False)
    assert judge(LAWS["complex step"], row).error is None and judge(LAWS["central differences"], row).ok
    break_it(monkeypatch, dbeta_without_the_prediction)
    assert not judge(LAWS["central differences"], row).ok


def test_every_law_is_shown_to_catch_something():
    assert set(CAUGHT) == {law.name for law in LAWS.values() if not law.why_not(ROW, {})}


@pytest.mark.parametrize("mutation, law, at", [(looks_ahead, "causal", 2), (dg_without_the_final_state, "exact dual", 6)])
def test_check_ends_with_status_1(monkeypatch, capsys, mutation, law, at):
    break_it(monkeypatch, mutation)
    assert main(["check", ROW.name]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[at].startswith(ROW.name) and "FAIL" in out.splitlines()[at]
    assert f"FAIL {ROW.name}, {law}: " in out


@pytest.mark.parametrize("mutation, law", [(forgets_the_last_decay, "forms"), (dk_twice, "tape")])
def test_check_says_so_in_json(monkeypatch, capsys, mutation, law):
    break_it(monkeypatch, mutation)
    assert main(["check", ROW.name, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    assert report["ok"] is False and report["mechanisms"][ROW.name][law]["ok"] is False and report["mechanisms"][ROW.name]["types"]["ok"] is True


def test_framework_data_catches_a_wrong_convention(monkeypatch, capsys):
    """All forms agree on the wrong thing: only the frameworks know."""
    for form in "loop", "matrix", "chunk":
        monkeypatch.setattr(ROW.module, form, functools.partial(lambda right, *args, **x: right(*args, **dict(x, scale=1)), getattr(ROW.module, form)))
    assert main(["check", ROW.name, "--json"]) == 1
    laws = json.loads(capsys.readouterr().out)["mechanisms"][ROW.name]
    assert laws["forms"]["ok"] and not laws["framework data"]["ok"]


def test_a_form_that_raises_is_a_form_that_fails(monkeypatch, capsys):
    monkeypatch.setattr(ROW.module, "chunk", lambda *args, **x: 1 / 0)
    assert main(["check", ROW.name]) == 1
    assert "ZeroDivisionError: division by zero" in capsys.readouterr().out
