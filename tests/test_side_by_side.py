"""Blocks side by side, as on a GPU, are blocks one after the other: here on the host, where both can run."""
import numpy as np
import pytest

from npattn import gated_delta_rule
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


def forms(row, x, ends, size, monkeypatch):
    """(o, state, gradients) by blocks one after the other, and side by side."""
    results = []
    for side in False, True:
        monkeypatch.setattr(side_by_side, "applies", lambda axes, q: side)
        results.append((*row.module.chunk(**x, chunk_size=size), row.module.chunk_vjp(**ends, **x, chunk_size=size)))
    return results


def same(one, other):
    for a, b in zip((one[0], one[1], *one[2].values()), (other[0], other[1], *(other[2][name] for name in one[2])), strict=True):
        assert a.shape == b.shape and a.dtype == b.dtype
        assert not b.size or relative_error(b, a) < 1e-12


NARROW = [dict(do=(), dfinal_state=()), dict(do=(3,), dfinal_state=(1, 1)), dict(do=(2, 1), dfinal_state=(3,)), dict(do=(2, 3), dfinal_state=(2, 3))]


@pytest.mark.parametrize("row, wide", [pytest.param(row, name, id=f"{row.name}-{name}") for row in ROWS for name in (*row.axes, "none")])
def test_one_argument_has_all_the_leading_axes(row, wide, monkeypatch):
    """And the gradients that come in have fewer than what they are gradients of, all of them, or none."""
    for narrow in NARROW:
        x = row.arguments(np.random.default_rng(0), 7, lead=(), K=2, V=3)
        if wide != "none":
            x[wide] = row.arguments(np.random.default_rng(1), 7, lead=(2, 3), K=2, V=3)[wide]
        rng, all_of_them = np.random.default_rng(2), dict(do=wide != "none", dfinal_state=wide not in ("q", "none"))
        ends = {name: rng.standard_normal((narrow[name] if all_of_them[name] else ()) + end) for name, end in (("do", (7, 3)), ("dfinal_state", (2, 3)))}
        for state in True, False:
            same(*forms(row, x if state or wide == "state" else dict(x, state=None), ends, 2, monkeypatch))


@pytest.mark.parametrize("lead", [(0,), (2, 0), (0, 3)])
@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_no_heads(row, lead, monkeypatch):
    x = row.arguments(np.random.default_rng(0), 5, lead=lead, K=2, V=3)
    same(*forms(row, x, dict(do=np.ones(lead + (5, 3)), dfinal_state=None), 2, monkeypatch))


@pytest.mark.parametrize("dtype", [np.complex128, np.float32])
@pytest.mark.parametrize("row, name", [pytest.param(row, name, id=f"{row.name}-{name}") for row in ROWS for name in (*row.axes, "do", "dfinal_state") if name != "g"])
def test_one_argument_is_of_another_type(row, dtype, name, monkeypatch):
    x = row.arguments(np.random.default_rng(0), 7, lead=(), K=2, V=3)
    ends = dict(do=np.random.default_rng(1).standard_normal((7, 3)), dfinal_state=np.ones((2, 3)))
    given = ends if name in ends else x
    given[name] = (given[name] * (1j if dtype == np.complex128 else 1)).astype(dtype)
    (o, S, d), (o2, S2, d2) = forms(row, x, ends, 2, monkeypatch)
    for a, b in ((o, o2), (S, S2), *((d[name], d2[name]) for name in d)):
        assert a.dtype == b.dtype and np.abs(a - b).max() <= (1e-5 if dtype == np.float32 else 1e-12) * (1 + np.abs(a).max())


@pytest.mark.parametrize("name, shape", [("do", (3, 2, 4, 1)), ("dfinal_state", (3, 2, 1, 1)), ("do", (5, 4, 1)), ("dfinal_state", (5, 1, 1))])
def test_errors_name_the_argument(name, shape, monkeypatch):
    monkeypatch.setattr(side_by_side, "applies", lambda axes, q: True)
    x = CATALOGUE["gated_delta_rule"].arguments(np.random.default_rng(0), 4, lead=(2,), K=1, V=1)
    with pytest.raises(ValueError, match=name):
        gated_delta_rule.chunk_vjp(**dict(dict(do=np.ones((2, 4, 1))), **{name: np.ones(shape)}), **x, chunk_size=2)


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
