"""SwiGLU, the feed-forward block:  y = down(silu(gate x) * up x).

Shazeer, 2020, arXiv 2002.05202.  Weights: gate_proj.weight, up_proj.weight (I, C), down_proj.weight (C, I).  x, y (..., T, C).
"""
from ..core.functions import silu, silu_vjp
from . import linear


def forward(x, weights):
    """
    >>> import numpy as np
    >>> one = np.array([[1.]])
    >>> forward(np.array([[-1.]]), {"gate_proj.weight": one, "up_proj.weight": 10 * one, "down_proj.weight": one}).round(4).tolist()
    [[2.6894]]
    """
    g, u = linear.forward(x, weights, "gate_proj"), linear.forward(x, weights, "up_proj")    # T I, T I
    return linear.forward(silu(g) * u, weights, "down_proj")                 # T C


def vjp(dy, x, weights):
    """(dx, dweights): through down, then both factors of the product, then gate and up."""
    g, u = linear.forward(x, weights, "gate_proj"), linear.forward(x, weights, "up_proj")    # T I, T I
    s = silu(g)                                                              # T I
    dh, ddown = linear.vjp(dy, s * u, weights, "down_proj")                  # T I
    dxg, dgate = linear.vjp(silu_vjp(dh * u, g), x, weights, "gate_proj")    # T C
    dxu, dup = linear.vjp(dh * s, x, weights, "up_proj")                     # T C
    return dxg + dxu, {**dgate, **dup, **ddown}
