"""Blocks side by side, as on a GPU, are blocks one after the other: here on the host, where both can run."""
import numpy as np
import pytest

from npattn.catalogue import CATALOGUE
from npattn.core import side_by_side
from npattn.core.blocks import at
from npattn.proof.gradient_laws import GRADIENT
from npattn.proof.law import judge
from npattn.proof.laws import FORWARD
from npattn.proof.measure import relative_error

ROWS = [row for row in CATALOGUE.values() if row.axes["state"] == "K V"]
LEADS = dict(none={}, batch=dict.fromkeys("qkv", (2, 3)), shared=dict(q=(1, 3), k=(3,), v=(2, 1)), queries=dict(q=(4, 2, 3)))


def arguments(row, T, lead, state):
    x = row.arguments(np.random.default_rng(T), T, lead=() if lead == "none" else (2, 3), K=4, V=5, state=state)
    for name, shape in LEADS[lead].items():
        x[name] = np.random.default_rng(1).standard_normal(shape + x[name].shape[-2:]) / 2
    if "g" in row.axes and T > 5:
        x["g"][at(row.axes["g"], 5)] = -np.inf                       # a reset
    return x


@pytest.mark.parametrize("state", [True, False], ids=["state", "no state"])
@pytest.mark.parametrize("lead", LEADS)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_side_by_side_is_one_after_the_other(row, lead, state, monkeypatch):
    monkeypatch.setattr(side_by_side, "GROUP", 2)                    # several groups, and a short block behind them
    for T, C in (4, 3), (17, 4), (16, 4), (23, 3), (9, 1):
        x = arguments(row, T, lead, state)
        o, S = row.module.chunk(**x, chunk_size=C)
        rng = np.random.default_rng(0)
        ends = dict(do=rng.standard_normal(o.shape), dfinal_state=rng.standard_normal(S.shape) if T % 2 else None)
        gradients = row.module.chunk_vjp(**ends, **x, chunk_size=C)
        with monkeypatch.context() as patch:
            calls = []
            patch.setattr(side_by_side, "applies", lambda axes, q: calls.append(1) or True)
            o2, S2 = row.module.chunk(**x, chunk_size=C)
            gradients2 = row.module.chunk_vjp(**ends, **x, chunk_size=C)
        assert len(calls) == 2
        for name, (got, wanted) in dict(o=(o2, o), state=(S2, S), **{"d" + n: (gradients2[n], y) for n, y in gradients.items()}).items():
            assert got.shape == wanted.shape and got.dtype == wanted.dtype, name
            assert relative_error(got, wanted) < 1e-12, (name, T, C)


def test_what_it_returns_is_new(monkeypatch):
    monkeypatch.setattr(side_by_side, "applies", lambda axes, q: True)
    for row in ROWS:
        x = row.arguments(np.random.default_rng(0), 8)
        before = x["state"].copy()
        o, S = row.module.chunk(**x, chunk_size=2)
        S[...] = 0
        row.module.chunk_vjp(o, **x, chunk_size=2)["state"][...] = 0
        assert (x["state"] == before).all()


@pytest.mark.parametrize("law", (*FORWARD, *GRADIENT), ids=lambda law: law.name)
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_laws(row, law, monkeypatch):
    """Every law, those of fractions too, with the blocks side by side."""
    calls, chunk = [], side_by_side.chunk
    monkeypatch.setattr(side_by_side, "GROUP", 2)
    monkeypatch.setattr(side_by_side, "applies", lambda axes, x: axes["state"] == "K V")
    monkeypatch.setattr(side_by_side, "chunk", lambda *x: calls.append(1) or chunk(*x))
    verdict = judge(law, row)
    assert verdict.ok, verdict.what
    assert calls or law.name not in ("forms", "float32", "fractions", "layouts", "types", "extremes", "padding")         # the others may use whole sequences
