"""Every law of forms catches something: a form that is wrong on purpose makes it fail, and `check` end with status 1."""
import functools
import json

import numpy as np
import pytest

from npattn.__main__ import main
from npattn.catalogue import CATALOGUE
from npattn.proof.exact import log
from npattn.proof.law import judge
from npattn.proof.laws import FORWARD

LAWS = {law.name: law for law in FORWARD}
ROW = CATALOGUE["gated_delta_rule"]


def wrong(form):
    """Decorator: change(right form, its arguments) in place of the form `form` of a module."""
    def with_change(change):
        right = getattr(ROW.module, form)

        @functools.wraps(right)
        def broken(*args, **kwargs):
            return change(right, dict(zip("qkv", args)) | kwargs)
        return form, broken
    return with_change


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
}


def break_it(monkeypatch, mutation):
    monkeypatch.setattr(ROW.module, *mutation)


@functools.cache
def holds_unbroken(law):
    return judge(LAWS[law], ROW).ok


@pytest.mark.parametrize("law, mutation", [pytest.param(law, m, id=f"{law}-{n}") for law, ms in CAUGHT.items() for n, m in enumerate(ms)])
def test_a_law_catches_what_is_wrong(monkeypatch, law, mutation):
    assert holds_unbroken(law)
    break_it(monkeypatch, mutation)
    assert not judge(LAWS[law], ROW).ok


def test_every_law_is_shown_to_catch_something():
    assert set(CAUGHT) == {law.name for law in FORWARD if not law.why_not(ROW, {})}


def test_check_ends_with_status_1(monkeypatch, capsys):
    break_it(monkeypatch, looks_ahead)
    assert main(["check", ROW.name]) == 1
    out = capsys.readouterr().out
    assert out.splitlines()[2].startswith(ROW.name) and "FAIL" in out.splitlines()[2]
    assert f"FAIL {ROW.name}, causal: " in out


def test_check_says_so_in_json(monkeypatch, capsys):
    break_it(monkeypatch, forgets_the_last_decay)
    assert main(["check", ROW.name, "--json"]) == 1
    report = json.loads(capsys.readouterr().out)
    laws = report["mechanisms"][ROW.name]
    assert report["ok"] is False and laws["forms"]["ok"] is False and laws["types"]["ok"] is True


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
