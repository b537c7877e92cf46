"""What goes wrong around the recurrence: the stages of a Gated DeltaNet layer."""
import numpy as np

from ...core.functions import gated_rms_norm, l2norm, rms_norm, sigmoid, silu, softplus
from ...core.heads import group, ungroup
from ...delta import gated_delta_rule_predict_first
from ...layers import conv, gated_deltanet, linear
from ..hypothesis import Hypothesis
from ..layer import NAME, changed_stage, core, gates, normed, projection
from .scale import length


# --- projection --------------------------------------------------------------------------------------------------

def swapped(p, layer):
    made = projection(p, layer)
    return dict(made, b=made["a"], a=made["b"])


def halves(p, layer):
    """The fused b | a as two halves."""
    y = linear.forward(gated_deltanet.hide(layer.x, layer.mask), layer.weights, "in_proj_ba")
    H = y.shape[-1] // 2
    return dict(projection(p, layer), b=y[..., :H], a=y[..., H:])


def quarters(p, layer):
    """The fused q | k | v | z as four parts, one after the other."""
    y, n = linear.forward(gated_deltanet.hide(layer.x, layer.mask), layer.weights, "in_proj_qkvz"), layer.n
    channels = 2 * n.H * n.K + n.H * n.G * n.V
    return dict(projection(p, layer), qkv=y[..., :channels], z=group(y[..., channels:], n.H * n.G, -1))


def unmasked(p, layer):
    return dict(zip(("qkv", "z", "b", "a"), gated_deltanet.project(layer.x, layer.weights, layer.n)))


# --- convolution -------------------------------------------------------------------------------------------------

def convolved(filtered=lambda p, w, state: conv.loop(p, w, state=state), activation=silu, state=True):
    def stage(p, layer):
        y, window = filtered(p["qkv"], layer.weights["conv1d.weight"][:, 0, :], layer.state.conv if state else None)
        return {"conv": activation(y), "final_state.conv": window}
    return stage


def shifted(by):
    """The filter stands `by` tokens later; where there is nothing, it sees zeros."""
    def filtered(p, w, state):
        y, window = conv.loop(np.concatenate([p, np.zeros_like(p[:, :1])], 1), w, state=state)
        return (y[:, 1:] if by > 0 else np.concatenate([np.zeros_like(y[:, :1]), y[:, :-2]], 1)), conv.loop(p, w, state=state)[1]
    return filtered


def plain(x):
    return x


# --- gates, core -------------------------------------------------------------------------------------------------

def with_beta(function):
    return lambda p, layer: dict(gates(p, layer), beta=function(p["b"]))


def with_g(function):
    return lambda p, layer: dict(gates(p, layer), g=function(p["a"], layer.weights["A_log"], layer.weights["dt_bias"]))


def core_with(**options):
    return lambda p, layer: core(p, layer, **{name: f(layer) if callable(f) and name != "form" else f for name, f in options.items()})


# --- gated norm and output ----------------------------------------------------------------------------------------

def gated(function):
    return lambda p, layer: dict(gated=function(p["core"], p["z"], layer.weights["norm.weight"], layer.eps))


def over_all_heads(x, z, w, eps):
    """One norm over the channels of all heads."""
    whole = rms_norm(ungroup(x, -1), 0, eps)
    return w * whole.reshape(x.shape) * silu(z)


def transposed(p, layer):
    return dict(y=ungroup(p["gated"], -1) @ layer.weights["out_proj.weight"])


def fused(layer):
    return "in_proj_ba.weight" in layer.weights


def rows(stage, *table):
    return tuple(Hypothesis(name, stage, changed_stage(stage, function), says, remedy, shows, only=NAME, meant=meant) for name, function,
                 says, remedy, shows, meant in table)


def always(layer):
    return True


G = "g = -exp(A_log) softplus(a + dt_bias)."
NORM = "norm(core) first, then the gate: norm.weight n silu(z); the weight is used as it is stored."
LAYER = rows(
    "projection",
    ("b and a swapped", swapped, "b is used as a, and a as b.", "b goes through the sigmoid, a into the decay.", "any inputs", always),
    ("b and a split in the middle", halves, "The fused b and a are taken for two halves.",
     "They stand by key head: b of its value heads, then a of the same.", "more than one key head", fused),
    ("q, k, v, z split in four", quarters, "The fused q, k, v and z are taken for four parts, one after the other.",
     "They stand by key head: q, k, v, z of the first, then of the second, and so on.",
     "more than one key head", lambda layer: "in_proj_qkvz.weight" in layer.weights),
    ("padding not hidden", unmasked, "Padded tokens are projected like real ones.", "Set the layer's inputs to 0 there.", "padding",
     lambda layer: layer.mask is not None)) + rows(
    "convolution",
    ("taps flipped", convolved(lambda p, w, state: conv.loop(p, w[:, ::-1], state=state)), "The first tap meets the newest token.",
     "The last tap meets the newest token.", "any inputs", always),
    ("activation missing", convolved(activation=plain), "There is no SiLU after the convolution.", "Apply it to q, k and v.", "any inputs",
     always),
    ("convolution one token ahead", convolved(shifted(1)), "The filter sees the next token.", "It sees the token itself and those before.",
     "any inputs", always),
    ("convolution one token late", convolved(shifted(-1)), "The filter does not see the token itself.",
     "It sees the token itself and those before.", "any inputs", always),
    ("convolution's state ignored", convolved(state=False), "The convolution begins with zeros.",
     "Begin with the last inputs of the call before.", "an initial state",
     lambda layer: layer.state.conv is not None)) + rows(
    "norm",
    ("l2 norm missing in the layer", normed(plain), "q and k go into the recurrence as they are.",
     "Divide q and k by sqrt(sum x^2 + 1e-6).", "any inputs", always),
    ("RMS norm in place of the layer's l2 norm", normed(lambda x: x.shape[-1] ** 0.5 * l2norm(x, eps=1e-6 * x.shape[-1])),
     "q and k are divided by the root of the mean of squares.",
     "Divide by the root of the sum.", "any inputs", always),
    ("eps on the mean in the layer's l2 norm", normed(lambda x: l2norm(x, eps=1e-6 * x.shape[-1])),
     "The eps is added to the mean of squares.", "Add it to the sum.", "short q or k", always),
    ("eps outside the root in the layer's l2 norm", normed(lambda x: x / (length(x) + 1e-6)), "The norm is |x| + 1e-6.",
     "Take sqrt(sum x^2 + 1e-6).", "short q or k", always)) + rows(
    "gates",
    ("sigmoid missing", with_beta(plain), "beta is b itself.", "beta = sigmoid(b).", "any inputs", always),
    ("sigmoid doubled", with_beta(lambda b: 2 * sigmoid(b)), "beta is 2 sigmoid(b), as for negative eigenvalues.", "beta = sigmoid(b).",
     "any inputs", always),
    ("softplus missing", with_g(lambda a, A, dt: -np.exp(A) * abs(a + dt)), "The decay takes |a + dt_bias| without softplus.", G,
     "any inputs", always),
    ("dt_bias missing", with_g(lambda a, A, dt: -np.exp(A) * softplus(a)), "dt_bias is not added.", G, "a dt_bias other than 0", always),
    ("dt_bias after softplus", with_g(lambda a, A, dt: -np.exp(A) * abs(softplus(a) + dt)), "dt_bias is added to softplus(a).", G,
     "a dt_bias other than 0", always),
    ("exp of A_log missing", with_g(lambda a, A, dt: -abs(A) * softplus(a + dt)), "The decay takes A_log for A.", G, "any inputs", always),
    ("A_log left out", with_g(lambda a, A, dt: -softplus(a + dt)), "The decay is -softplus(a + dt_bias).", G, "an A_log other than 0",
     always),
    ("bounded gate, -5", with_g(lambda a, A, dt: -5 * sigmoid(np.exp(A) * (a + dt))),
     "The decay is -5 sigmoid(exp(A_log) (a + dt_bias)), of a later generation.", G, "any inputs", always)) + rows(
    "core",
    ("scale missing in the layer", core_with(scale=1.0), "q is not multiplied by K ** -0.5.", "Multiply it, after its norm.",
     "K other than 1", always),
    ("scale twice in the layer", core_with(scale=lambda layer: 1 / layer.n.K), "q is multiplied by K ** -0.5 twice.", "Multiply it once.",
     "K other than 1", always),
    ("key heads tiled in the layer", core_with(key_heads=lambda layer: np.arange(layer.n.H * layer.n.G) % layer.n.H),
     "Value head h uses key head h mod H.",
     "Repeat every key head G times in a row.", "more than one key head, and several value heads for each",
     lambda layer: layer.n.H > 1 and layer.n.G > 1),
    ("predict before decay in the layer", core_with(form=gated_delta_rule_predict_first.chunk),
     "The prediction is made from the undecayed state.", "Decay first.", "any inputs", always),
    ("recurrence's state ignored", core_with(state=False), "The recurrence begins with zeros.", "Begin with the state that is given.",
     "an initial state", lambda layer: layer.state.S is not None)) + rows(
    "gated_norm",
    ("gate before the norm", gated(lambda x, z, w, eps: w * rms_norm(x * silu(z), 0, eps)),
     "The gate is applied before the norm, as in Mamba-2.", NORM, "any inputs", always),
    ("sigmoid gate", gated(lambda x, z, w, eps: w * rms_norm(x, 0, eps) * sigmoid(z)), "The gate is sigmoid(z), as in KDA.", NORM,
     "any inputs", always),
    ("gate missing", gated(lambda x, z, w, eps: w * rms_norm(x, 0, eps)), "The gate is not applied.", NORM, "any inputs", always),
    ("1 + w in the gated norm", gated(lambda x, z, w, eps: gated_rms_norm(x, z, 1 + w, eps)),
     "The weight of the gated norm is taken for an offset from 1.",
     "It is used as it is stored; only the layer, q and k norms of attention are 1 + w.", "any inputs", always),
    ("w - 1 in the gated norm", gated(lambda x, z, w, eps: gated_rms_norm(x, z, w - 1, eps)),
     "1 is taken off the weight of the gated norm.", "It is used as it is stored.", "any inputs", always),
    ("norm over all heads", gated(over_all_heads), "The norm runs over the channels of all heads.",
     "It runs over the channels of each head.", "more than one head", always)) + rows(
    "output",
    ("output weight transposed", transposed, "The output is gated out_proj, not gated out_proj^T.", "Linear weights are stored [out, in].",
     "a layer of another width than its heads together",
     lambda layer: layer.weights["out_proj.weight"].shape[0] == layer.weights["out_proj.weight"].shape[1]))
