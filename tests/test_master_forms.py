"""The founding mechanisms equal their master forms: outputs, states and gradients, in fractions and in floats.

Not the normalised one, which carries a sum of keys beside the state, nor the one that predicts before the decay.
"""
import numpy as np
import pytest

from npattn.catalogue import CATALOGUE
from npattn.core import diagonal, erase_write
from npattn.proof import log, random_factors, random_fractions


def ones(x):
    return np.ones_like(x["k"][..., :1])                 # nothing fades


def scalar(x):
    return np.exp(x["g"])[..., None]                     # one decay for all channels


def channel(x):
    return np.exp(x["g"])


def adds(fade):
    return diagonal, lambda x: dict(q=x["q"], k=x["k"], v=x["v"], f=fade(x)), lambda d, x: dict(q=d["q"], k=d["k"], v=d["v"])


def corrects(fade):
    """e = beta k, v = beta v."""
    def to(x):
        b = x["beta"][..., None]
        return dict(q=x["q"], k=x["k"], v=b * x["v"], e=b * x["k"], f=fade(x))

    def back(d, x):
        b = x["beta"][..., None]
        return dict(q=d["q"], k=d["k"] + b * d["e"], v=b * d["v"], beta=(x["k"] * d["e"]).sum(-1) + (x["v"] * d["v"]).sum(-1))

    return erase_write, to, back


MASTERS = dict(linear_attention=adds(ones), simple_gla=adds(scalar), gla=adds(channel),
               delta_rule=corrects(ones), gated_delta_rule=corrects(scalar), kda=corrects(channel))


def exact_arguments(row, T, lead):
    rng, sizes = np.random.default_rng(T), dict(T=T, K=4, V=3)
    make = dict(g=lambda rng, shape: log(random_factors(rng, shape)))
    return {name: make.get(name, random_fractions)(rng, lead + tuple(sizes[x] for x in kind.split())) for name, kind in row.axes.items()}


def float_arguments(row, T, lead):
    x = row.arguments(np.random.default_rng(T), T, lead)
    if "g" in x:
        x["g"][..., T // 2:T // 2 + 1] = -np.inf         # a reset; of the last channels where there are channels
    return x


def through_master(name, x, do, dfinal_state):
    """(o, final state, gradients) by the master form; the gates' gradient is summed where one gate serves all channels."""
    form, to, back = MASTERS[name]
    y, state = to(x), x["state"]
    o, final = form.matrix(**y, state=state)
    d = form.matrix_vjp(do, **y, state=state, dfinal_state=dfinal_state)
    gradients = dict(back(d, x), state=d["state"])
    if "g" in x:
        gradients["g"] = d["g"].reshape(x["g"].shape)
    return o, final, gradients


def both(name, x, rng, random):
    """(what, by the master form, by the loop), for everything that they return."""
    row = CATALOGUE[name]
    o, final = row.module.loop(**x, scale=1)
    do, dfinal = random(rng, o.shape), random(rng, final.shape)
    d = row.module.loop_vjp(do, **x, scale=1, dfinal_state=dfinal)
    got = through_master(name, x, do, dfinal)
    assert set(got[2]) == set(d)
    return [("o", got[0], o), ("state", got[1], final), *((argument, got[2][argument], d[argument]) for argument in d)]


@pytest.mark.parametrize("T", [0, 1, 6, 9])
@pytest.mark.parametrize("name", MASTERS)
def test_equal_in_fractions(name, T):
    x = exact_arguments(CATALOGUE[name], T, (2,) if T == 6 else ())
    for what, a, b in both(name, x, np.random.default_rng(0), random_fractions):
        assert a.shape == b.shape and (a == b).all(), what
        assert not b.size or T == 0 or (b != 0).any(), what


@pytest.mark.parametrize("T", [5, 23])
@pytest.mark.parametrize("name", MASTERS)
def test_equal_in_floats(name, T):
    x = float_arguments(CATALOGUE[name], T, (2, 3))
    for what, a, b in both(name, x, np.random.default_rng(0), lambda rng, shape: rng.standard_normal(shape)):
        assert a.dtype == b.dtype and np.abs(a - b).max() <= 1e-12 * np.abs(b).max(), what


@pytest.mark.parametrize("name", [*MASTERS, "normalized_linear_attention", "gated_delta_rule_predict_first"])
def test_queries_with_axes_of_their_own_share_one_state(name):
    """Gradients are then the sums of those of separate calls, the final state's gradient given to one of them."""
    row, rng = CATALOGUE[name], np.random.default_rng(0)
    x = row.arguments(rng, 7, (2,))
    q = np.stack([x["q"], 1 / (1 + x["q"] ** 2)])        # 2 2 T K
    o, final = row.module.loop(**dict(x, q=q))
    do, dfinal = rng.standard_normal(o.shape), row.module.loop(**x)[1]
    assert o.shape[:2] == (2, 2)
    first, second = (row.module.loop_vjp(do[n], **dict(x, q=q[n]), dfinal_state=dfinal if n == 0 else None) for n in range(2))
    for form, more in ("loop_vjp", {}), ("matrix_vjp", {}), ("chunk_vjp", dict(chunk_size=3)):
        d = getattr(row.module, form)(do, **dict(x, q=q), dfinal_state=dfinal, **more)
        for argument in d:
            a, b, whole = (y[argument] if isinstance(y[argument], tuple) else (y[argument],) for y in (first, second, d))
            wanted = [np.stack(pair) for pair in zip(a, b)] if argument == "q" else [s + t for s, t in zip(a, b)]
            for u, w in zip(whole, wanted):
                assert u.shape == w.shape
                np.testing.assert_allclose(u, w, rtol=1e-11, atol=1e-13)
