"""A dump of a Gated DeltaNet layer: its input, its weights, and what it computed on the way, by name.

Every stage is a function of what came before it; a hypothesis puts another function in the place of one.
derivations/dump_format.md names the arrays.
"""
from dataclasses import dataclass, field, replace
from difflib import get_close_matches
from typing import Any, Mapping

import numpy as np

from ..core.functions import gated_rms_norm, l2norm, sigmoid, softplus
from ..core.heads import ungroup
from ..delta import gated_delta_rule
from ..layers import conv as convolution
from ..layers import gated_deltanet, linear
from .layout import DumpError, check_values
from .measure import error

NAME = "gated_deltanet"
MAKES = dict(projection="qkv z b a", convolution="conv final_state.conv", norm="q k v", gates="beta g", core="core final_state.S",
             gated_norm="gated", output="y")
AXES = dict(qkv="T C", z="T H V", b="T H", a="T H", conv="T C", q="T H K", k="T H K", v="T H V", beta="T H", g="T H", core="T H V",
            gated="T H V", y="T C") | \
    {"final_state.conv": "n C", "final_state.S": "H K V"}


@dataclass(frozen=True, repr=False)
class Layer:
    """What was meant, and what was computed: a Case for a whole layer."""
    x: Any                                               # (B, T, C)
    weights: Mapping[str, Any]                           # by their names in the Hugging Face state dict
    n: gated_deltanet.Sizes
    eps: float
    mask: Any                                            # (B, T) booleans, or None
    state: gated_deltanet.State
    got: Mapping[str, Any]                               # by name: (B, T, …), states (B, …)
    stages: Mapping[str, Any] = field(default_factory=dict)  # functions in place of those below

    def stage(self, name):
        return self.stages.get(name, STAGES[name])


# --- the stages: (what came before, layer) -> what is made ----------------------------------------------------------

def projection(p, layer):
    x = gated_deltanet.hide(layer.x, layer.mask)                             # B T C
    return dict(zip(("qkv", "z", "b", "a"), gated_deltanet.project(x, layer.weights, layer.n)))


def convolve(p, layer):
    u, window = convolution.forward(p["qkv"], layer.weights, state=layer.state.conv)
    return {"conv": u, "final_state.conv": window}


def normed(unit=l2norm):
    def norm(p, layer):
        q, k, v = (ungroup(part).swapaxes(1, 2) for part in gated_deltanet.split(p["conv"], layer.n))          # B T H K, B T H K, B T HG V
        return dict(q=unit(q), k=unit(k), v=v)
    return norm


def gates(p, layer):
    w = layer.weights
    return dict(beta=sigmoid(p["b"]), g=-np.exp(w["A_log"]) * softplus(p["a"] + w["dt_bias"]))


def core(p, layer, form=gated_delta_rule.chunk, state=True, key_heads=None, **options):
    H, G = layer.n.H, layer.n.G
    heads = np.arange(H * G) // G if key_heads is None else key_heads
    q, k, v = (p[name].swapaxes(1, 2) for name in "qkv")                     # B H T K, B H T K, B HG T V
    o, S = form(q[:, heads], k[:, heads], v, g=p["g"].swapaxes(1, 2), beta=p["beta"].swapaxes(1, 2), state=layer.state.S if state else None,
                **options)
    return {"core": o.swapaxes(1, 2), "final_state.S": S}


def gated_norm(p, layer):
    return dict(gated=gated_rms_norm(p["core"], p["z"], layer.weights["norm.weight"], layer.eps))


def output(p, layer):
    return dict(y=linear.forward(ungroup(p["gated"], -1), layer.weights, "out_proj"))


STAGES = dict(projection=projection, convolution=convolve, norm=normed(), gates=gates, core=core, gated_norm=gated_norm, output=output)


def outcome(layer, given=None):
    """Everything by name; each stage on what the ones before made, or on what is `given` of it."""
    p, y = {}, {}
    for name in STAGES:
        made = layer.stage(name)(p, layer)
        y |= made
        p |= {key: x if given is None else given.get(key, x) for key, x in made.items()}
    return y


# --- errors --------------------------------------------------------------------------------------------------------

def heads_first(name, x):
    """(B, heads, T, …); one head where there is none."""
    axes = AXES[name].split()
    return x if axes[0] == "H" else x[:, None] if "H" not in axes else x.swapaxes(1, 2)


def axes_of(name):
    letters = AXES[name].split()
    return ["B", "H", *(letter for letter in letters if letter != "H")]


@dataclass(frozen=True)
class Subject:
    """As search.Subject."""
    case: Layer
    right: dict
    level: float

    def error(self, name, y):
        got, y = (heads_first(name, x) for x in (self.case.got[name], y))
        return error(got, y, self.case.mask if "T" in AXES[name].split() else None)

    def errors(self, y):
        return {name: self.error(name, y[name]).relative if y[name].shape == x.shape else np.inf for name, x in self.case.got.items()}


# --- reading -------------------------------------------------------------------------------------------------------

def is_layer(arrays, mechanism):
    return mechanism == NAME or mechanism is None and "x" in arrays and any(key.startswith("weight.") for key in arrays)


def read_layer(arrays):
    """A Layer of arrays by key; DumpError, one line, for what cannot be used."""
    names, options = list(AXES), ("opt.key_heads", "opt.eps")
    weights = {key.removeprefix("weight."): x for key, x in arrays.items() if key.startswith("weight.")}
    for key in arrays:
        if not key.startswith("weight.") and key not in (*names, *options, "x", "mask", "state.conv", "state.S"):
            close = get_close_matches(key, names, 1)
            raise DumpError(f"unknown key {key!r}: a dump of {NAME} knows x, weight.NAME, mask, state.conv, state.S, "
                            f"{', '.join([*options, *names])}" +
                            (f"; did you mean {close[0]}?" if close else ""))
    fused = "in_proj_qkvz.weight" in weights
    needed = [f"in_proj_{part}.weight" for part in (("qkvz", "ba") if fused else ("qkv", "z", "b", "a"))] + \
        ["conv1d.weight", "A_log", "dt_bias", "norm.weight", "out_proj.weight"]
    missing = [f"weight.{name}" for name in needed if name not in weights] + [key for key in ("x", "opt.key_heads") if key not in arrays]
    if missing:
        raise DumpError(f"{' and '.join(missing)} missing: {NAME} needs x, opt.key_heads and "
                        f"{', '.join(f'weight.{name}' for name in needed)}")
    for key, x in arrays.items():
        if not key.startswith("opt.") and key != "mask" and (x.dtype.kind != "f" or x.dtype.itemsize > 8):
            raise DumpError(f"{key} holds {x.dtype}: it must be float16, float32 or float64")
    for key in options:
        if key in arrays and (arrays[key].size != 1 or arrays[key].dtype.kind not in "fiu" or not np.isfinite(arrays[key]).all()):
            raise DumpError(f"{key} must be one finite number")
    return checked(arrays, {name: x.astype(np.float64) for name, x in weights.items()})


def checked(arrays, weights):
    """The Layer, shapes and values checked."""
    x, heads = arrays["x"].astype(np.float64), int(arrays["opt.key_heads"].item())
    if x.ndim != 3 or weights["conv1d.weight"].ndim != 3 or heads < 1 or weights["A_log"].ndim != 1 or weights["A_log"].size % heads:
        raise DumpError(f"x must be [B, T, C] = {x.shape}, weight.conv1d.weight [channels, 1, taps] = {weights['conv1d.weight'].shape}, "
                        f"and opt.key_heads = {heads} must divide the {weights['A_log'].size} entries of weight.A_log")
    n = gated_deltanet.sizes(weights, heads)
    (B, T, C), H, channels, taps = x.shape, n.H * n.G, 2 * n.H * n.K + n.H * n.G * n.V, weights["conv1d.weight"].shape[2]
    shapes = {"conv1d.weight": (channels, 1, taps), "A_log": (H,), "dt_bias": (H,), "norm.weight": (n.V,), "out_proj.weight": (C, H * n.V),
              "in_proj_qkv.weight": (channels, C), "in_proj_z.weight": (H * n.V, C), "in_proj_b.weight": (H, C), "in_proj_a.weight": (H, C),
              "in_proj_qkvz.weight": (channels + H * n.V, C), "in_proj_ba.weight": (2 * H, C)}
    for name, w in weights.items():
        if w.shape != shapes.get(name, w.shape):
            raise DumpError(f"weight.{name} {w.shape} must be {shapes[name]}, with {n.H} key heads of {n.K} and {H} value heads of {n.V}")
    sizes = dict(T=(T,), H=(H,), V=(n.V,), K=(n.K,), n=(taps,))
    got, state = {}, {}
    for key in (*AXES, "state.conv", "state.S"):
        if key in arrays:
            of = key if key in AXES else f"final_{key}"
            kind = AXES[of].split()
            whole = (B, *(C if (letter, key) == ("C", "y") else channels if letter == "C" else n.H if letter == "H" and key in "qk"
                          else sizes[letter][0] for letter in kind))
            (got if key in AXES else state)[key] = shaped(key, arrays[key].astype(np.float64), whole)
    if not got:
        raise DumpError(f"there is nothing to compare: none of {', '.join(AXES)}")
    mask = arrays.get("mask")
    if mask is not None and (mask.shape != (B, T) or mask.dtype.kind not in "biuf" or not np.isin(mask, (0, 1)).all()):
        raise DumpError(f"mask must be [B, T] = {(B, T)} of 1 (real) and 0 (padding)")
    for key, y in dict(x=x, **{f"weight.{name}": w for name, w in weights.items()}, **state).items():
        check_values(key, y, ["B", "C", "C"], None)
    return Layer(x, weights, n, arrays["opt.eps"].item() if "opt.eps" in arrays else 1e-6, None if mask is None else mask.astype(bool),
                 gated_deltanet.State(state.get("state.conv"), state.get("state.S")), got)


def shaped(key, x, whole):
    """In the shape that it should have: heads may be joined with channels, and channels may stand before tokens."""
    if x.ndim == 3 and x.shape != whole and x.swapaxes(1, 2).shape == whole:
        return x.swapaxes(1, 2)
    if x.size != np.prod(whole) or x.ndim > 1 and x.shape[0] not in (whole[0], x.size // whole[-1]):
        raise DumpError(f"{key} {x.shape} must be {whole}")
    return x.reshape(whole)


def changed_stage(name, function):
    """For the table: `function` in place of a stage."""
    return lambda layer: replace(layer, stages=dict(layer.stages, **{name: function}))
