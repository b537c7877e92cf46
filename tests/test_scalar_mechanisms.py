"""Linear attention, its normalised and gated forms, the delta rule and both orders of its gated form: values worked by hand, and what only they do."""
import warnings

import numpy as np
import pytest

from npattn import (delta_rule, gated_delta_rule, gated_delta_rule_predict_first, linear_attention, normalized_linear_attention, simple_gla)
from npattn.core.states import Normalized, leaves
from npattn.proof.exact import fractions, log

FORMS = [("loop", {}), ("matrix", {})] + [("chunk", dict(chunk_size=C)) for C in (1, 2, 3, 64)]


def every(module, *arrays, **others):
    """The results of every form."""
    return [getattr(module, form)(*arrays, **others, **more) for form, more in FORMS]


def every_vjp(module, *arrays, **others):
    return [getattr(module, form + "_vjp")(*arrays, **others, **more) for form, more in FORMS]


def same(x, expected):
    """Equal, entry by entry, to the nested list `expected`, as fractions."""
    expected = fractions(expected)
    assert x.shape == expected.shape and (x == expected).all(), (x, expected)


# Two tokens by hand, K = 2, V = 1, scale 1.  First state (4, 2), sum of earlier keys (1, 1); decays 1/2 and 1/3; strengths 1/2 and 2.
# The gradients are those of o[2] alone: dS[2] = q[2] = (2, 1), or for the normalised form (2, 1) / 7.
Q, K, V = fractions([[1, 1], [2, 1]]), fractions([[1, 0], ["1/2", 1]]), fractions([[3], [5]])
STATE, GATE, BETA = fractions([[4], [2]]), log(["1/2", "1/3"]), fractions(["1/2", 2])

BY_HAND = {
    "linear attention": (
        linear_attention, dict(scale=1, state=STATE),
        [[9], [26]], ([["19/2"], [7]],),                                     # S[1] = (7, 2)
        dict(q=[[0, 0], ["19/2", 7]], k=[[6, 3], [10, 5]], v=[[2], [2]], state=([[2], [1]],))),
    "normalised": (
        normalized_linear_attention, dict(state=Normalized(STATE, fractions([1, 1]))),
        [[3], ["26/7"]], ([["19/2"], [7]], ["5/2", 2]),                      # z[1] = (2, 1); dn[2] = -26/49
        dict(q=[[0, 0], ["3/98", "-3/49"]], k=[["-10/49", "-5/49"], ["18/49", "9/49"]], v=[["2/7"], ["2/7"]],
             state=([["2/7"], ["1/7"]], ["-52/49", "-26/49"]))),
    "one gate a token": (
        simple_gla, dict(scale=1, g=GATE, state=STATE),
        [[6], ["41/3"]], ([["25/6"], ["16/3"]],),                            # S[1] = (5, 1); dS[1] = (2/3, 1/3)
        dict(q=[[0, 0], ["25/6", "16/3"]], k=[[2, 1], [10, 5]], v=[["2/3"], [2]], g=["5/3", "11/3"], state=([["1/3"], ["1/6"]],))),
    "delta rule": (
        delta_rule, dict(scale=1, beta=BETA, state=STATE),
        [["11/2"], [14]], ([["19/4"], ["9/2"]],),                            # e = -1, 5/4; S[1] = (7/2, 2); dS[1] = (0, -3)
        dict(q=[[0, 0], ["19/4", "9/2"]], k=[[0, "3/2"], [-9, "-11/2"]], v=[[0], [4]], beta=[0, "5/2"], state=([[0], [-3]],))),
    "decay first": (
        gated_delta_rule, dict(scale=1, g=GATE, beta=BETA, state=STATE),
        [["7/2"], [19]], ([["61/12"], ["53/6"]],),                           # F = (2, 1), (5/6, 1/3); e = 1, 17/4; dF[2] = (0, -3), dF[1] = (0, -1)
        dict(q=[[0, 0], ["61/12", "53/6"]], k=[[0, "-1/2"], ["41/3", "43/6"]], v=[[0], [4]], g=[-1, -1], beta=[0, "17/2"], state=([[0], ["-1/2"]],))),
    "predict first": (
        gated_delta_rule_predict_first, dict(scale=1, g=GATE, beta=BETA, state=STATE),
        [["5/2"], ["43/3"]], ([["15/4"], ["41/6"]],),                        # e = -1, 13/4; S[1] = (3/2, 1); dS[1] = (-4/3, -11/3)
        dict(q=[[0, 0], ["15/4", "41/6"]], k=[["10/3", "19/6"], [7, "5/2"]], v=[["-2/3"], [4]], g=["-19/3", "4/3"], beta=["4/3", "13/2"],
             state=([[0], ["-11/6"]],))),
    "predict first, reset": (                                                # token 2 predicts from what the reset then clears
        gated_delta_rule_predict_first, dict(scale=1, g=log(["1/2", 0]), beta=BETA, state=STATE),
        [["5/2"], [13]], ([["13/4"], ["13/2"]],),                            # e as before; dS[1] = (-2, -4)
        dict(q=[[0, 0], ["13/4", "13/2"]], k=[[5, 4], [7, "5/2"]], v=[[-1], [4]], g=[-8, 0], beta=[2, "13/2"], state=([[0], [-2]],))),
}


@pytest.mark.parametrize("case", BY_HAND)
def test_two_tokens_by_hand(case):
    module, others, o, state, gradients = BY_HAND[case]
    for got, final in every(module, Q, K, V, **others):
        same(got, o)
        for x, expected in zip(leaves(final), state, strict=True):
            same(x, expected)
    for d in every_vjp(module, fractions([[0], [1]]), Q, K, V, **others):
        assert d.keys() == gradients.keys()
        for name, expected in gradients.items():
            for x, y in zip(leaves(d[name]), expected if name == "state" else [expected], strict=True):
                same(x, y)


WORKED = {                                               # keys = values = queries = e1, e2, e1, e2; decays 1, 1/2, 1, 1/2; beta = 1
    "decay first": (gated_delta_rule, [1, 1, 1, 1], ["1/2", 1]),
    "predict first": (gated_delta_rule_predict_first, [1, 1, 1, "1/2"], ["1/2", "1/2"]),
    "accumulation": (simple_gla, [1, 1, "3/2", "3/2"], ["3/4", "3/2"]),
}


@pytest.mark.parametrize("order", WORKED)
def test_the_three_orders_give_three_rows(order):
    module, active, diagonal = WORKED[order]
    x = fractions([[1, 0], [0, 1], [1, 0], [0, 1]])
    strength = {} if module is simple_gla else dict(beta=fractions([1, 1, 1, 1]))
    for o, S in every(module, x, x, x, g=log([1, "1/2", 1, "1/2"]), scale=1, **strength):
        same(o, fractions(active)[:, None] * x)
        same(S, np.diag(fractions(diagonal)))


def test_orthonormal_keys_and_full_strength_only_accumulate():
    k, v = np.diag(fractions([1, -1, 1])), fractions([["1/2", 3], [-2, "5/3"], [7, 0]])
    q = fractions([[1, 2, 3], ["1/2", 0, -1], [4, "1/3", 1]])
    expected, S = linear_attention.loop(q, k, v, scale=1)
    for o, final in every(delta_rule, q, k, v, beta=fractions([1, 1, 1]), scale=1):
        same(o, expected)
        same(final, S)


def test_predict_first_grows_where_the_strength_exceeds_one_plus_the_decay():
    one, zero = fractions([[1]] * 10), fractions([[0]] * 10)
    for _, S in every(gated_delta_rule_predict_first, one, one, zero, g=log([0] * 10), beta=fractions([2] * 10), state=fractions([[1]])):
        same(S, [[1024]])                                # times e^g - beta = -2 at every token


# --- the normaliser ----------------------------------------------------------------------------------------------

def test_weights_are_a_mean():
    q, k = fractions([[1, 1], [2, 1], [0, 3]]), fractions([["1/2", 1], [3, 0], ["1/3", 2]])
    for o, _ in every(normalized_linear_attention, q, k, fractions([[7], [7], [7]])):
        same(o, [[7], [7], [7]])


@pytest.mark.parametrize("array", [fractions, np.array], ids=["fractions", "floats"])
def test_a_row_that_has_met_nothing_gives_0_and_passes_no_gradient(array):
    q, k, v = array([[1, 2], [1, 0], [3, 1]]), array([[0, 0], [0, 4], [2, 0]]), array([[5], [6], [8]])      # rows 0 and 1: 0 / 0; row 2: (3 2 8 + 4 6) / 10
    if array is np.array:
        q, k, v = q.astype(np.float64), k.astype(np.float64), v.astype(np.float64)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        for o, state in every(normalized_linear_attention, q, k, v):
            assert o[:2].tolist() == [[0], [0]] and o[2] * 10 == 72
            assert state.S.tolist() == [[16], [24]] and state.z.tolist() == [2, 4]
        do = array([[1], [1], [0]]) * v
        for d in every_vjp(normalized_linear_attention, do, q, k, v):
            assert all((x == 0).all() for gradient in d.values() for x in leaves(gradient))


def test_a_pole_is_not_hidden():
    q, k, v = fractions([[1, 0], [1, 1]]), fractions([[1, 0], [-1, 0]]), fractions([[1], [2]])              # weights 1 and -1, values 1 and 2: -1 / 0
    for form, more in FORMS:
        with pytest.raises(ZeroDivisionError):
            getattr(normalized_linear_attention, form)(q, k, v, **more)
        with pytest.warns(RuntimeWarning, match="divide by zero"):
            o, _ = getattr(normalized_linear_attention, form)(q.astype(np.float64), k.astype(np.float64), v.astype(np.float64), **more)
        assert o.tolist() == [[1], [-np.inf]]


def test_eps_stands_beside_the_sum_of_the_weights():
    first = Normalized(STATE, fractions([1, 1]))
    for o, _ in every(normalized_linear_attention, Q, K, V, eps=1, state=first):
        same(o, [["9/4"], ["13/4"]])                     # 9 / (3 + 1), 26 / (7 + 1)
    scale, tiny = fractions("1/2")[()], fractions("1/100")[()]                # as frameworks have it: scale x / (scale n + tiny)
    for o, _ in every(normalized_linear_attention, Q, K, V, eps=tiny / scale, state=first):
        same(o, [[scale * 9 / (scale * 3 + tiny)], [scale * 26 / (scale * 7 + tiny)]])


def test_eps_is_one_number_and_widens_nothing():
    q, k, v = (x.astype(np.float32) for x in (Q, K, V))
    for o, state in every(normalized_linear_attention, q, k, v, eps=np.float64(1e-6)):
        assert {x.dtype for x in (o, *leaves(state))} == {np.dtype(np.float32)}
    for d in every_vjp(normalized_linear_attention, v, q, k, v, eps=np.float64(1e-6)):
        assert {x.dtype for gradient in d.values() for x in leaves(gradient)} == {np.dtype(np.float32)}
    for eps in (None, "1", np.array([1e-6]), True):
        with pytest.raises(TypeError, match="eps must be one number"):
            normalized_linear_attention.loop(q, k, v, eps=eps)
    with pytest.raises(TypeError, match="scale"):
        normalized_linear_attention.loop(q, k, v, scale=1)
