"""Gated attention, the full-attention layer of Qwen3-Next and Qwen3.5: normed and rotated queries and keys, and a gate on what is read.

    q | e  = q_proj x                                    per head: its query, then its gate
    k, v   = k_proj x, v_proj x
    q, k   = rotary(rms_norm(q; q_norm)), rotary(rms_norm(k; k_norm))        the norm over D, with 1 + w; rotated after it
    o      = softmax attention of q, k, v                scale D^-1/2; query head h uses key head h // G
    y      = o_proj(o sigmoid(e))

Qiu et al., 2025, arXiv 2505.06708.  H key heads, G query heads per key head, D = head_dim.

Weights: q_proj.weight (2 H G D, C), k_proj.weight and v_proj.weight (H D, C), o_proj.weight (C, H G D), q_norm.weight and k_norm.weight
(D); biases q_proj.bias … o_proj.bias if there are any.

x, y (..., T, C).  cos, sin (..., T, R/2): the tables of `rotary.tables` for the positions of the tokens of x, in the type of x.
Hugging Face's tables hold each angle twice, (..., T, R): give their first half.
state: Cache(k, v) (..., H, n, D) of the n tokens before, keys after norm and rotation; returned with the T new ones behind them.
mask (..., n + T), True for real tokens: the others are seen by nobody.
"""
from typing import NamedTuple

from ..core.arguments import fit
from ..core.arrays import array_module
from ..core.functions import rms_norm, rms_norm_vjp, sigmoid, sigmoid_vjp
from ..core.heads import group, ungroup
from ..core.states import Cache, map_state
from ..softmax import softmax_attention
from . import linear, rotary
from .arguments import check_state, check_tables, check_tokens


class Sizes(NamedTuple):
    H: int
    G: int
    D: int


def forward(x, weights, *, cos, sin, eps=1e-6, state=None, mask=None):
    """y (..., T, C) and the Cache, longer by T; any split of x into calls gives the same."""
    check_all(x, weights, cos, sin, state, mask)
    n, (q, k, v, e) = project(x, weights)
    rule = softmax_attention.loop if x.shape[-2] == 1 else softmax_attention.chunk
    o, cache = rule(rotated(q, weights["q_norm.weight"], cos, sin, eps), rotated(k, weights["k_norm.weight"], cos, sin, eps), v,
                    mask=over_scores(mask), state=grouped(state, n))
    return linear.forward(by_token(o) * sigmoid(e), weights, "o_proj"), map_state(ungroup, cache)


def vjp(dy, x, weights, *, cos, sin, eps=1e-6, state=None, mask=None, dfinal_state=None):
    """(dx, dweights, dstate) of sum(y dy) + sum(final dfinal_state): the lines of `forward`, then backwards."""
    check_all(x, weights, cos, sin, state, mask, dfinal_state)
    n, (q, k, v, e) = project(x, weights)
    rule = dict(q=rotated(q, weights["q_norm.weight"], cos, sin, eps), k=rotated(k, weights["k_norm.weight"], cos, sin, eps), v=v,
                mask=over_scores(mask), state=grouped(state, n))
    o = by_token(softmax_attention.chunk(**rule)[0])                         # T HGD

    dgated, do_proj = linear.vjp(dy, o * sigmoid(e), weights, "o_proj")      # T HGD
    d = softmax_attention.chunk_vjp(by_head(dgated * sigmoid(e), n), **rule, dfinal_state=grouped(dfinal_state, n))
    dq, dq_norm = rotated_vjp(d["q"], q, weights["q_norm.weight"], cos, sin, eps)            # H G T D
    dk, dk_norm = rotated_vjp(d["k"], k, weights["k_norm.weight"], cos, sin, eps)            # H 1 T D
    dx, dweights = project_vjp(dq, dk, d["v"], sigmoid_vjp(dgated * o, e), x, weights, n)
    return fit(dx, x), {**dweights, "q_norm.weight": dq_norm, "k_norm.weight": dk_norm, **do_proj}, map_state(ungroup, d["state"])


def check_all(x, weights, cos, sin, state, mask, dfinal_state=None):
    check_state("state", state, Cache)
    check_state("dfinal_state", dfinal_state, Cache)
    check_tokens(x, mask, 0 if state is None else state.k.shape[-2])
    check_tables(cos, sin, x, weights["q_norm.weight"].shape[0])


def project(x, weights):
    """Sizes, and (q (..., H, G, T, D), k and v (..., H, 1, T, D), e (..., T, H G D))."""
    D = weights["q_norm.weight"].shape[0]
    n = Sizes(weights["k_proj.weight"].shape[0] // D, weights["q_proj.weight"].shape[0] // weights["k_proj.weight"].shape[0] // 2, D)
    q, e = (ungroup(part, -1) for part in array_module(x).split(group(linear.forward(x, weights, "q_proj"), n.H * n.G, -1), 2, axis=-1))
    return n, (by_head(q, n), by_head(linear.forward(x, weights, "k_proj"), n), by_head(linear.forward(x, weights, "v_proj"), n), e)


def project_vjp(dq, dk, dv, de, x, weights, n):
    """(dx, dweights): every row back to where it came from."""
    dqe = array_module(x).concatenate([group(part, n.H * n.G, -1) for part in (by_token(dq), de)], axis=-1)                # T HG 2D
    d = dict(q_proj=ungroup(dqe, -1), k_proj=by_token(dk), v_proj=by_token(dv))
    pairs = [linear.vjp(part, x, weights, name) for name, part in d.items()]
    return sum(dx for dx, _ in pairs), {name: dW for _, dweights in pairs for name, dW in dweights.items()}


def rotated(q, weight, cos, sin, eps):
    """Norm, then rotation; the tables are the same for every head."""
    return rotary.turn(rms_norm(q, weight, eps), cos[..., None, None, :, :], sin[..., None, None, :, :])


def rotated_vjp(dq, q, weight, cos, sin, eps):
    """(dq, dweight): turned back, then through the norm."""
    return rms_norm_vjp(rotary.turn(dq, cos[..., None, None, :, :], -sin[..., None, None, :, :]), q, weight, eps)


def over_scores(mask):
    """Over (..., H, G, T, n + T)."""
    return None if mask is None else mask[..., None, None, None, :]


def by_head(x, n):
    """(..., T, H G D) to (..., H, G, T, D); of keys and values, which have no G, to (..., H, 1, T, D)."""
    return group(group(x, x.shape[-1] // n.D, -1).swapaxes(-3, -2), n.H)


def by_token(x):
    """The inverse of `by_head`."""
    return ungroup(ungroup(x).swapaxes(-3, -2), -1)


def grouped(state, n):
    return None if state is None else map_state(lambda part: group(part, n.H), state)
