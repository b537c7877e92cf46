"""The founding mechanisms through their master forms, where the law of `check` does not look: no token, one, resets, several leading axes."""
import numpy as np
import pytest

from npattn.catalogue import CATALOGUE
from npattn.core.states import leaves
from npattn.proof import random_fractions
from npattn.proof.law import with_master
from npattn.proof.material import exact_arguments

FOUNDING = ["linear_attention", "normalized_linear_attention", "simple_gla", "gla", "delta_rule", "gated_delta_rule", "kda"]


def test_who_has_a_master_form():
    """Who predicts before the decay would need an erase key that grows as e^g goes to 0."""
    assert all(not with_master(CATALOGUE[name], {}) for name in FOUNDING)
    assert "reset" in with_master(CATALOGUE["gated_delta_rule_predict_first"], {})
    assert with_master(CATALOGUE["softmax_attention"], {}) == "a cache keeps every token"


def both(name, x, rng, random):
    """(what, by the master form, by the loop), for everything that they return."""
    row = CATALOGUE[name]
    matrix, matrix_vjp = row.master
    unscaled = {} if name == "normalized_linear_attention" else dict(scale=1)
    o, final = row.module.loop(**x, **unscaled)
    do, dfinal = random(rng, o.shape), type(final)(*(random(rng, s.shape) for s in final)) if isinstance(final, tuple) else random(rng, final.shape)
    d, other = row.module.loop_vjp(do, **x, **unscaled, dfinal_state=dfinal), matrix_vjp(do, **x, dfinal_state=dfinal)
    assert set(other) == set(d)
    pairs = [("o, state", matrix(**x), (o, final)), *((argument, (other[argument],), (d[argument],)) for argument in d)]
    return [(what, a, b) for what, got, wanted in pairs for g, w in zip(got, wanted, strict=True) for a, b in zip(leaves(g), leaves(w), strict=True)]


@pytest.mark.parametrize("T", [0, 1, 6, 9])
@pytest.mark.parametrize("name", FOUNDING)
def test_equal_in_fractions(name, T):
    x = exact_arguments(CATALOGUE[name], np.random.default_rng(T), T, (2,) if T == 6 else ())
    for what, a, b in both(name, x, np.random.default_rng(0), random_fractions):
        assert a.shape == b.shape and (a == b).all(), what
        assert T < 6 or (b != 0).any(), what


@pytest.mark.parametrize("T", [5, 23])
@pytest.mark.parametrize("name", FOUNDING)
def test_equal_in_floats(name, T):
    x = CATALOGUE[name].arguments(np.random.default_rng(T), T, (2, 3))
    if "g" in x:
        x["g"][..., T // 2:T // 2 + 1] = -np.inf         # a reset; of the last channels where there are channels
    for what, a, b in both(name, x, np.random.default_rng(0), lambda rng, shape: rng.standard_normal(shape)):
        assert a.dtype == b.dtype and np.abs(a - b).max() <= 1e-12 * np.abs(b).max(), what


@pytest.mark.parametrize("name", [*FOUNDING, "gated_delta_rule_predict_first"])
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
