"""The founding mechanisms as maps onto the master forms: what goes in, and how gradients come back.

Each is written out in its own file; that the master form of its kind gives the same is a law over the catalogue.  Each function below
makes the pair (matrix, matrix_vjp) of a mechanism, without a scale; `fade` gives the decay factors from the arguments.  Later mechanisms
are such maps in their own files.
"""
from .core import diagonal, erase_write
from .core.arrays import array_module, dot
from .core.states import Normalized


def nothing(x):
    return array_module(x["k"]).ones_like(x["k"][..., :1])                   # T 1   nothing fades


def scalar(x):
    return array_module(x["g"]).exp(x["g"])[..., None]                       # T 1   one decay for all channels


def channel(x):
    return array_module(x["g"]).exp(x["g"])                                  # T K


def adds(fade):
    """The diagonal form, as it stands."""
    def matrix(*, state, **x):
        return diagonal.matrix(x["q"], x["k"], x["v"], f=fade(x), state=state)

    def matrix_vjp(do, *, state, dfinal_state, **x):
        return back(diagonal.matrix_vjp(do, x["q"], x["k"], x["v"], f=fade(x), state=state, dfinal_state=dfinal_state), x)

    return matrix, matrix_vjp


def corrects(fade):
    """Erase and write, with the erase key beta k and the value beta v."""
    def arguments(beta, x):
        b = beta[..., None]                                                  # T 1
        return dict(q=x["q"], k=x["k"], v=b * x["v"], e=b * x["k"], f=fade(x))

    def matrix(*, beta, state, **x):
        return erase_write.matrix(**arguments(beta, x), state=state)

    def matrix_vjp(do, *, beta, state, dfinal_state, **x):
        d = erase_write.matrix_vjp(do, **arguments(beta, x), state=state, dfinal_state=dfinal_state)
        b = beta[..., None]                                                  # T 1
        dbeta = dot(x["k"], d["e"]) + dot(x["v"], d["v"])                    # T
        return dict(back(d, x), k=d["k"] + b * d["e"], v=b * d["v"], beta=dbeta)

    return matrix, matrix_vjp


def adds_and_divides():
    """The diagonal form on values with a column of ones: what it adds up in that column is z, and what it reads there is the divisor.

    Without eps, and for rows whose divisor is not 0.
    """
    plain, plain_vjp = adds(nothing)

    def with_ones(v):
        return array_module(v).concatenate([v, array_module(v).ones_like(v[..., :1])], axis=-1)              # T V+1

    def joined(state):
        return array_module(state.S).concatenate([state.S, state.z[..., None]], axis=-1)                     # K V+1

    def parted(S):
        return Normalized(S[..., :-1], S[..., -1])

    def matrix(*, q, k, v, state):
        o, S = plain(q=q, k=k, v=with_ones(v), state=joined(state))
        return o[..., :-1] / o[..., -1:], parted(S)

    def matrix_vjp(do, *, q, k, v, state, dfinal_state):
        x = dict(q=q, k=k, v=with_ones(v), state=joined(state))
        o = plain(**x)[0]
        dx = do / o[..., -1:]                                                # T V
        dn = -(dx * o[..., :-1] / o[..., -1:]).sum(-1, keepdims=True)        # T 1
        d = plain_vjp(array_module(do).concatenate([dx, dn], axis=-1), **x, dfinal_state=joined(dfinal_state))
        return dict(d, v=d["v"][..., :-1], state=parted(d["state"]))

    return matrix, matrix_vjp


def back(d, x):
    """The gradients that come back unchanged; the master forms keep an axis of channels where one gate serves them all."""
    return {name: d[name] for name in ("q", "k", "v", "state")} | ({"g": d["g"].reshape(x["g"].shape)} if "g" in x else {})
