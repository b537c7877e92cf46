"""Mixture of experts with a shared expert: every token through the `topk` experts that its router likes best, and through the shared one.

    P[e] = softmax over e of (gate x)                    over all E experts, before the choice
    W[e] = P[e] if e is among the topk largest, else 0;  over their sum unless `renormalize` is false
    y    = sum over e of W[e] expert[e](x)  +  sigmoid(shared_expert_gate x) shared_expert(x)

Every expert is a SwiGLU (mlp.py).  The choice carries no gradient; among equal probabilities the lower index is chosen.

Weights: gate.weight (E, C); experts.gate_up_proj (E, 2 I, C), gate above up; experts.down_proj (E, C, I); shared_expert.… as in mlp.py;
shared_expert_gate.weight (1, C).  x, y (..., T, C).
"""
import numpy

from ..core.arguments import fit
from ..core.arrays import array_module
from ..core.functions import sigmoid, sigmoid_vjp, silu, softmax, softmax_vjp
from . import linear, mlp
from .arguments import check_gradient
from .linear import above, under


def forward(x, weights, *, topk, renormalize=True):
    """Expert by expert, each on the tokens that chose it."""
    xp, rows = array_module(x), x.reshape(-1, x.shape[-1])                   # N C
    _, W = route(rows, weights, topk, renormalize)                           # N E
    y = shared(rows, weights)                                                # N C
    y = y + xp.zeros((), numpy.result_type(W, weights["experts.gate_up_proj"], weights["experts.down_proj"]))
    for e, chosen in choices(W):
        y[chosen] += W[chosen, e, None] * mlp.forward(rows[chosen], expert(weights, e))
    return y.reshape(x.shape)


def matrix(x, weights, *, topk, renormalize=True):
    """The same, every expert on every token, weighted with 0 where it was not chosen: for small sizes."""
    rows = x.reshape(-1, x.shape[-1])                                        # N C
    _, W = route(rows, weights, topk, renormalize)                           # N E
    I = weights["experts.down_proj"].shape[-1]
    gu = rows @ weights["experts.gate_up_proj"].mT                           # E N 2I
    out = (silu(gu[..., :I]) * gu[..., I:]) @ weights["experts.down_proj"].mT                # E N C
    return ((W.mT[..., None] * out).sum(0) + shared(rows, weights)).reshape(x.shape)


def vjp(dy, x, weights, *, topk, renormalize=True):
    """(dx, dweights): what every expert sends to its tokens and to its weight in W; then from W to the router, and the shared expert."""
    check_gradient(dy, x.shape)
    xp, rows, dy = array_module(x), x.reshape(-1, x.shape[-1]), dy.reshape(-1, x.shape[-1])  # N C
    P, W = route(rows, weights, topk, renormalize)                           # N E
    big, small = weights["experts.gate_up_proj"], weights["experts.down_proj"]               # E 2I C, E C I
    gate_up, down, dW = (xp.zeros(a.shape, numpy.result_type(a.dtype, W.dtype, dy.dtype)) for a in (big, small, W))
    dx, dweights = shared_vjp(dy, rows, weights)                             # N C
    for e, chosen in choices(W):
        one = expert(weights, e)
        dW[chosen, e] = (mlp.forward(rows[chosen], one) * dy[chosen]).sum(-1)
        d, done = mlp.vjp(W[chosen, e, None] * dy[chosen], rows[chosen], one)
        dx[chosen] += d
        gate_up[e] = xp.concatenate([done["gate_proj.weight"], done["up_proj.weight"]], axis=0)                   # 2I C
        down[e] = done["down_proj.weight"]                                   # C I
    if renormalize:
        dW = (dW - (dW * W).sum(-1, keepdims=True)) / xp.where(W != 0, P, 0).sum(-1, keepdims=True)
    dlogits = softmax_vjp(xp.where(W != 0, dW, 0), linear.forward(rows, weights, "gate"))    # N E
    d, dgate = linear.vjp(dlogits, rows, weights, "gate")
    return fit((dx + d).reshape(x.shape), x), {
        **dgate, "experts.gate_up_proj": fit(gate_up, big), "experts.down_proj": fit(down, small), **dweights}


def route(rows, weights, topk, renormalize):
    """All probabilities P and the weights W of the experts, 0 for those that are not chosen: N E, N E."""
    xp, E = array_module(rows), weights["gate.weight"].shape[0]
    if isinstance(topk, bool) or not isinstance(topk, (int, numpy.integer)) or not 1 <= topk <= E:
        raise ValueError(f"topk must be between 1 and the number of experts, {E}, not {topk}")
    P = softmax(linear.forward(rows, weights, "gate"))                       # N E
    rank = xp.argsort(xp.argsort(-P.real, axis=-1, kind="stable"), axis=-1)  # N E
    W = xp.where(rank < topk, P, 0)
    return P, W / W.sum(-1, keepdims=True) if renormalize else W


def choices(W):
    """Every expert that some token chose, with the indices of those tokens."""
    for e in range(W.shape[-1]):
        chosen = W[:, e].nonzero()[0]
        if chosen.size:
            yield e, chosen


def expert(weights, e):
    """Expert e with the names of mlp.py."""
    gate_up, down = weights["experts.gate_up_proj"][e], weights["experts.down_proj"][e]      # 2I C, C I
    I = down.shape[-1]
    return {"gate_proj.weight": gate_up[:I], "up_proj.weight": gate_up[I:], "down_proj.weight": down}


def shared(x, weights):
    return sigmoid(linear.forward(x, weights, "shared_expert_gate")) * mlp.forward(x, under(weights, "shared_expert."))


def shared_vjp(dy, x, weights):
    mine = under(weights, "shared_expert.")
    gate = linear.forward(x, weights, "shared_expert_gate")                  # N 1
    dgate = sigmoid_vjp((dy * mlp.forward(x, mine)).sum(-1, keepdims=True), gate)            # N 1
    dx, dmine = mlp.vjp(dy * sigmoid(gate), x, mine)
    d, dweight = linear.vjp(dgate, x, weights, "shared_expert_gate")
    return dx + d, {**above(dmine, "shared_expert."), **dweight}
