"""Every law of gradients catches something, and so does each proof: gradients that are wrong on purpose.

Each is wrong in all three forms alike, so that they agree with each other, unless `one` form is named.
"""
import dataclasses
import functools

import numpy as np
import pytest

from npattn.__main__ import main
from npattn.catalogue import CATALOGUE
from npattn.proof.gradient_laws import GRADIENT
from npattn.proof.law import judge

LAWS = {law.name: law for law in GRADIENT}
ROW = CATALOGUE["gated_delta_rule"]


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
    "vjp": [one("loop_vjp", dk_twice), one("matrix_vjp", dg_without_the_final_state), one("chunk_vjp", no_gradient_of_the_state)],
    "vjp fractions": [one("loop_vjp", dbeta_without_the_prediction), one("matrix_vjp", dg_of_the_next_token), one("chunk_vjp", dk_twice)],
    "vjp causal": [dq_of_later_tokens],
    "vjp types": [gradients_in_float64, writes_into_do],
    "vjp broadcast": [broadcast_not_summed],
    "vjp limits": [one("matrix_vjp", dk_twice), dg_of_the_next_token],
    "vjp resets": [dg_leaks_through_a_reset],
    "vjp reductions": [dk_twice, no_gradient_of_the_state],
    "vjp master form": [dk_twice, dg_without_the_final_state, no_gradient_of_the_state],
    "vjp packed": [one("matrix_vjp", state_of_the_first_sequence)],
    "vjp extremes": [not_a_number],
    "tape": [dg_without_the_final_state, dbeta_without_the_prediction, dk_twice, dg_of_the_next_token, no_gradient_of_the_state],
    "exact dual": [dg_without_the_final_state, dbeta_without_the_prediction, dk_twice, dg_of_the_next_token, no_gradient_of_the_state],
    "complex step": [dg_without_the_final_state, dbeta_without_the_prediction, dk_twice, dg_of_the_next_token, no_gradient_of_the_state],
}


def break_it(monkeypatch, mutation):
    for form, broken in mutation:
        monkeypatch.setattr(ROW.module, form, broken)


@functools.cache
def holds_unbroken(law):
    return judge(LAWS[law], ROW).ok


@pytest.mark.parametrize("law, mutation", [pytest.param(law, m, id=f"{law}-{n}") for law, ms in CAUGHT.items() for n, m in enumerate(ms)])
def test_a_law_catches_what_is_wrong(monkeypatch, law, mutation):
    assert holds_unbroken(law)
    break_it(monkeypatch, mutation)
    assert not judge(LAWS[law], ROW).ok


def test_every_law_is_shown_to_catch_something():
    assert set(CAUGHT) == {law.name for law in GRADIENT if not law.why_not(ROW, {})}


def test_central_differences_catch_it_where_no_complex_step_applies(monkeypatch):
    row = dataclasses.replace(ROW, analytic=False)
    assert judge(LAWS["complex step"], row).error is None and judge(LAWS["central differences"], row).ok
    break_it(monkeypatch, dbeta_without_the_prediction)
    assert not judge(LAWS["central differences"], row).ok


def test_check_ends_with_status_1(monkeypatch, capsys):
    break_it(monkeypatch, dg_without_the_final_state)
    assert main(["check", ROW.name]) == 1
    out = capsys.readouterr().out
    assert "FAIL" not in out.splitlines()[2] and out.splitlines()[6].startswith(ROW.name) and "FAIL" in out.splitlines()[6]
    said = " ".join(line.split(": ")[0] for line in out.splitlines() if line.startswith(f"FAIL {ROW.name}, "))
    assert all(proof in said for proof in ("tape", "exact dual", "complex step"))
