"""Decoder layer: a token mixer, then a feed-forward block, each on the normed stream and added to it.

    h = x + mixer(rms_norm(x; input_layernorm))
    y = h + block(rms_norm(h; post_attention_layernorm))

The weights say which: self_attn.… is gated attention, linear_attn.… Gated DeltaNet; mlp.gate.weight makes the block a mixture of experts,
else it is a SwiGLU.  Weights: input_layernorm.weight and post_attention_layernorm.weight (C), and those of mixer and block under these
names.

x, y (..., T, C).  Of these a layer uses what it needs: key_heads (Gated DeltaNet); cos, sin (gated attention); topk, renormalize (mixture).
state: that of the mixer.  mask (..., n + T), True for real tokens, of the n tokens before as well.
"""
from ..core.arguments import fit
from ..core.functions import rms_norm, rms_norm_vjp
from . import gated_attention, gated_deltanet, mlp, moe
from .linear import above, under


def forward(x, weights, *, eps=1e-6, state=None, mask=None, key_heads=None, cos=None, sin=None, topk=None, renormalize=True):
    """y and the mixer's state after the last token."""
    mixer, name, settings = mixer_of(x, weights, eps, state, mask, key_heads, cos, sin)
    block, chosen = block_of(weights, topk, renormalize)
    m, state = mixer.forward(rms_norm(x, weights["input_layernorm.weight"], eps), under(weights, name), **settings)
    h = x + m                                                                # T C
    return h + block.forward(rms_norm(h, weights["post_attention_layernorm.weight"], eps), under(weights, "mlp."), **chosen), state


def vjp(dy, x, weights, *, eps=1e-6, state=None, mask=None, dfinal_state=None, key_heads=None, cos=None, sin=None, topk=None, renormalize=True):
    """(dx, dweights, dstate) of sum(y dy) + sum(final dfinal_state): through the block and around it, then through the mixer and around it."""
    mixer, name, settings = mixer_of(x, weights, eps, state, mask, key_heads, cos, sin)
    block, chosen = block_of(weights, topk, renormalize)
    first, second, mine = weights["input_layernorm.weight"], weights["post_attention_layernorm.weight"], under(weights, name)
    n = rms_norm(x, first, eps)                                              # T C
    h = x + mixer.forward(n, mine, **settings)[0]                            # T C

    du, dblock = block.vjp(dy, rms_norm(h, second, eps), under(weights, "mlp."), **chosen)
    dh, dsecond = rms_norm_vjp(du, h, second, eps)
    dh = dy + dh                                                             # T C
    dn, dmine, dstate = mixer.vjp(dh, n, mine, **settings, dfinal_state=dfinal_state)
    dx, dfirst = rms_norm_vjp(dn, x, first, eps)
    return fit(dh + dx, x), {"input_layernorm.weight": dfirst, **above(dmine, name),
                             "post_attention_layernorm.weight": dsecond, **above(dblock, "mlp.")}, dstate


def mixer_of(x, weights, eps, state, mask, key_heads, cos, sin):
    """The module, the prefix of its weights, and its arguments."""
    if "self_attn.q_proj.weight" in weights:
        return gated_attention, "self_attn.", dict(cos=cos, sin=sin, eps=eps, state=state, mask=mask)
    recent = None if mask is None else mask[..., mask.shape[-1] - x.shape[-2]:]              # T
    return gated_deltanet, "linear_attn.", dict(key_heads=key_heads, eps=eps, state=state, mask=recent)


def block_of(weights, topk, renormalize):
    """The module, and its arguments."""
    return (moe, dict(topk=topk, renormalize=renormalize)) if "mlp.gate.weight" in weights else (mlp, {})
