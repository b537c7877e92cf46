"""Packed sequences by hand: caches of different lengths, masks and biases over all scores, and what is refused; the rest is a law."""
import re

import numpy as np
import pytest

from npattn import block_topk_attention, gated_delta_rule, normalized_linear_attention, softmax_attention
from npattn.core.packed import packed, packed_vjp
from npattn.core.states import Cache, Normalized

every_form = pytest.mark.parametrize("form, more", [("loop", {}), ("matrix", {}), ("chunk", dict(chunk_size=2))], ids=["loop", "matrix", "chunk"])
ENDS = [0, 1, 1, 3]
V = np.array([[6.], [10], [20]])
ZERO = np.zeros((3, 1))                                              # equal scores: o is the mean of what is seen


def cache(*values):
    return Cache(np.zeros((len(values), 1)), np.array(values, dtype=float).reshape(-1, 1))


@every_form
def test_caches_of_different_lengths(form, more):
    """Means by hand: of 2, 4, 6; nothing; of 10, and of 10, 20."""
    o, states = packed(getattr(softmax_attention, form), ZERO, ZERO, V, cu_seqlens=ENDS, **more, state=[cache(2, 4), cache(8), None])
    assert o.T.tolist() == [[4, 10, 15]]
    assert type(states) is list and [S.v.T.tolist() for S in states] == [[[2, 4, 6]], [[8]], [[10, 20]]] and all(type(S) is Cache for S in states)
    again, _ = packed(getattr(softmax_attention, form), ZERO, ZERO, V, cu_seqlens=ENDS, **more, state=tuple(states))
    assert again[:, 0] == pytest.approx([(2 + 4 + 6 + 6) / 4, (10 + 20 + 10) / 3, (10 + 20 + 10 + 20) / 4])


@every_form
def test_a_mask_and_a_bias_are_cut(form, more):
    """Columns: cached 2 and 4, then 6; cached 8; then 10, 20.  Entries between sequences are traps that would change everything."""
    see = np.array([[1, 0, 1, 0, 1, 1], [1, 1, 1, 1, 1, 0], [1, 1, 1, 1, 1, 1]], bool)
    ln3 = np.log(3)
    bias = np.array([[0, 0, ln3, 99, 99, 99], [99, 99, 99, 99, 0, 0], [99, 99, 99, 99, 0, ln3]])
    o, _ = packed(getattr(softmax_attention, form), ZERO, ZERO, V, cu_seqlens=ENDS, **more, state=[cache(2, 4), cache(8), None], mask=see, bias=bias)
    assert o[:, 0] == pytest.approx([(2 + 3 * 6) / 4, 10, (10 + 3 * 20) / 4])


@every_form
def test_without_caches_a_bias_is_over_tokens_and_its_gradient_too(form, more):
    """Sequence 0 alone sees itself: no gradient.  Of two equal weights, ds = p (do v - do o): 1/2 (10 - 15) and 1/2 (20 - 15)."""
    do, bias = np.ones((3, 1)), np.full((3, 3), 99.)
    bias[0, 0] = bias[1:, 1:] = 0
    d = packed_vjp(getattr(softmax_attention, form + "_vjp"), do, ZERO, ZERO, V, cu_seqlens=ENDS, **more, bias=bias)
    wanted = np.array([[0, 0, 0], [0, 0, 0], [0, -2.5, 2.5]])
    assert np.allclose(d["bias"], wanted, atol=1e-15) and [S.k.shape for S in d["state"]] == [(0, 1)] * 3
    for shape, gradient in ((1, 3), wanted.sum(0, keepdims=True)), ((3,), wanted.sum(0)), ((1, 1), [[0.]]), ((2, 1, 3), [wanted.sum(0, keepdims=True)] * 2):
        heads = np.zeros(shape[:-2] + (3, 1))
        got = packed_vjp(getattr(softmax_attention, form + "_vjp"), heads + do, heads, ZERO, V, cu_seqlens=ENDS, **more, bias=np.zeros(shape))["bias"]
        assert got.shape == shape and np.allclose(got, gradient, atol=1e-15)


@every_form
def test_the_gradient_of_a_cache_is_that_of_its_sequence(form, more):
    d = packed_vjp(getattr(softmax_attention, form + "_vjp"), np.ones((3, 1)), ZERO, ZERO, V, cu_seqlens=ENDS, **more, state=[cache(2, 4), cache(8), None],
                   dfinal_state=[cache(1, 1, 1), cache(5), cache(0, 0)])
    assert [S.v.T.tolist() for S in d["state"]] == [[pytest.approx([4 / 3, 4 / 3])], [[5]], [[]]]
    assert d["v"][:, 0] == pytest.approx([4 / 3, 1.5, .5])


def test_blocks_are_counted_in_each_sequence():
    """topk = 1 and causal: the own block alone, of two keys.  Cached 2, 4 and 5 make 6 the second of its block."""
    o, _ = packed(block_topk_attention.matrix, ZERO, ZERO, V, cu_seqlens=ENDS, state=[cache(2, 4, 5), cache(8), cache(7)], block_size=2, topk=1, causal=True)
    assert o.T.tolist() == [[5.5, 8.5, 20]]


def test_states_of_fixed_size_are_stacked():
    x = dict(q=np.ones((3, 1)), k=np.ones((3, 1)), v=V)
    o, S = packed(gated_delta_rule.loop, **x, g=np.zeros(3), beta=np.ones(3), cu_seqlens=ENDS, state=np.array([[[1.]], [[2.]], [[3.]]]))
    assert o.T.tolist() == [[6, 10, 20]] and S.tolist() == [[[6]], [[2]], [[20]]]
    _, S = packed(normalized_linear_attention.chunk, **x, cu_seqlens=ENDS)
    assert type(S) is Normalized and S.S.tolist() == [[[6]], [[0]], [[30]]] and S.z.tolist() == [[1], [0], [2]]


@pytest.mark.parametrize("error, words, change", [
    (ValueError, "a packed state of caches is a list with one Cache for each of the 3 sequences, not Cache", dict(state=cache(1))),
    (ValueError, "for each of the 3 sequences, not 2 of them", dict(state=[cache(1), cache(1)])),
    (ValueError, "a packed state of caches is a list with one Cache for each of the 3 sequences, not ndarray", dict(state=np.zeros((3, 1)))),
    (TypeError, "state[0] must be a Cache, not ndarray", dict(state=[np.zeros((1, 1))] * 3)),
    (ValueError, "mask (2, 3) does not fit the scores of all packed sequences, (..., 3, 3)", dict(mask=np.ones((2, 3), bool))),
    (ValueError, "bias (3, 3) does not fit the scores of all packed sequences, (..., 3, 5)", dict(bias=np.ones((3, 3)), state=[cache(1), cache(2), None])),
    (TypeError, "mask must be an array of booleans", dict(mask=np.ones((3, 3)))), (TypeError, "mask must be an array of booleans", dict(mask=[[True]])),
    (TypeError, "bias must be a NumPy or CuPy array, not list", dict(bias=[[0.]])),
    (ValueError, "packed sequences have as many keys as queries, not 2 and 3", dict(k=ZERO[:2], v=V[:2]))])
def test_refused(error, words, change):
    x = dict(q=ZERO, k=ZERO, v=V) | change
    with pytest.raises(error, match=re.escape(words)):
        packed(softmax_attention.loop, **x, cu_seqlens=ENDS)
    with pytest.raises(error, match=re.escape(words)):
        packed_vjp(softmax_attention.loop_vjp, np.ones((3, 1)), **x, cu_seqlens=ENDS)
