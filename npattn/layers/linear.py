"""Linear map over the last axis:  y = x W^T + b,  W [out, in], b absent unless NAME.bias is among the weights."""
from ..core.arguments import fit
from .arguments import check_linear


def forward(x, weights, name):
    """y (..., out) for x (..., in).

    >>> import numpy as np
    >>> forward(np.array([1., 10]), {"up_proj.weight": np.array([[1., 2], [3, 4], [0, 1]])}, "up_proj").tolist()
    [21.0, 43.0, 10.0]
    """
    W = weights[name + ".weight"]
    check_linear(x, W, name)
    y = x.reshape(-1, x.shape[-1]) @ W.mT                                    # N out   all tokens as rows: a batch of single tokens reads W once
    y = y.reshape(*x.shape[:-1], W.shape[0])                                 # T out
    return y + weights[name + ".bias"] if name + ".bias" in weights else y


def vjp(dy, x, weights, name):
    """dx = dy W,  dW = dy^T x and db = dy, both summed over all tokens: (dx, {NAME.weight: dW, …}).

    >>> import numpy as np
    >>> dx, dweights = vjp(np.array([1., 0, 2]), np.array([1., 10]), {"up_proj.weight": np.array([[1., 2], [3, 4], [0, 1]])}, "up_proj")
    >>> dx.tolist(), dweights["up_proj.weight"].tolist()
    ([1.0, 4.0], [[1.0, 10.0], [0.0, 0.0], [2.0, 20.0]])
    """
    W = weights[name + ".weight"]
    check_linear(x, W, name, dy)
    dW = dy.reshape(-1, dy.shape[-1]).mT @ x.reshape(-1, x.shape[-1])        # out in
    dweights = {name + ".weight": fit(dW, W)}
    if name + ".bias" in weights:
        dweights[name + ".bias"] = fit(dy, weights[name + ".bias"])
    return fit(dy @ W, x), dweights


def under(weights, prefix):
    """The weights below `prefix`, by the rest of their names.

    >>> under({"mlp.gate.weight": 1, "norm.weight": 2}, "mlp.")
    {'gate.weight': 1}
    """
    return {name[len(prefix):]: w for name, w in weights.items() if name.startswith(prefix)}


def above(weights, prefix):
    """The inverse of `under`.

    >>> above({"gate.weight": 1}, "mlp.")
    {'mlp.gate.weight': 1}
    """
    return {prefix + name: w for name, w in weights.items()}
