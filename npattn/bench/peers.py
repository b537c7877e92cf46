"""Others that do the same work, in the same process on the same arrays: Transformers, flash-linear-attention, torch.

Imported only when asked for.

A peer is named by where it is; it is loaded as `f(q, k, v, g=…, beta=…, state=…) -> o or (o, …)`, on tensors of its layout: "bthd" (batch,
tokens, heads, width) or "bhtd".  A first batch axis of 1 is put in front.
"""
import importlib
import inspect
from typing import Callable, NamedTuple

import numpy as np

from ..core.states import map_state

FORWARD, GRADIENTS, ONE = "forward", "forward + gradients", "one token"


class Peer(NamedTuple):
    name: str
    load: Callable                                       # () -> f; ImportError if it is not installed
    layout: str = "bthd"
    works: tuple = (FORWARD, GRADIENTS)
    devices: tuple = ("cpu", "cuda")
    compiles: bool = True
    tolerance: float = 1e-4                              # of the largest value; float32


def function(module, name):
    """`name` of `module` itself, without what is wrapped around it.

    Transformers would send the call to flash-linear-attention, where that is installed.
    """
    return inspect.unwrap(getattr(importlib.import_module(module), name))


def transformers(name):
    def load():
        f = function("transformers.models.qwen3_next.modeling_qwen3_next", name)
        return lambda q, k, v, g, beta, state: f(q, k, v, g=g, beta=beta, initial_state=state, output_final_state=True)

    return load


def sdpa():
    import torch
    f = torch.nn.functional.scaled_dot_product_attention

    def attention(q, k, v, state):
        if state is None:
            return f(q, k, v, is_causal=True)
        return f(q, torch.cat([state[0], k], -2), torch.cat([state[1], v], -2))              # one query, which sees all

    return attention


def fla(module, name, *gates, **options):
    """A function of flash-linear-attention that takes `gates`, by our names."""
    def load():
        f = function(f"fla.ops.{module}", name)
        knows = inspect.signature(f).parameters

        def call(q, k, v, state, **given):
            more = dict(options, **{gate: given[gate] for gate in gates})
            if state is not None or "initial_state" in knows:
                more["initial_state"] = state
            return f(q, k, v, **more)

        return call

    return load


NAIVE = dict(devices=("cpu",), works=(FORWARD, GRADIENTS))            # on a GPU their gradients take minutes
# On a GPU its products may be made in TF32, 10 bits of mantissa.
TRITON = dict(devices=("cuda",), compiles=False, tolerance=2e-2)

PEERS = dict(
    linear_attention=[
        Peer("FLA naive_chunk_linear_attn", fla("linear_attn.naive", "naive_chunk_linear_attn"), **NAIVE),
        Peer("FLA chunk_linear_attn, Triton", fla("linear_attn", "chunk_linear_attn", normalize=False), **TRITON)],
    simple_gla=[
        Peer("FLA naive_chunk_simple_gla", fla("simple_gla.naive", "naive_chunk_simple_gla", "g"), **NAIVE),
        Peer("FLA chunk_simple_gla, Triton", fla("simple_gla", "chunk_simple_gla", "g"), **TRITON)],
    gla=[
        Peer("FLA chunk_gla, Triton", fla("gla", "chunk_gla", "g"), **TRITON)],
    delta_rule=[
        Peer("FLA delta_rule_chunkwise", fla("delta_rule.naive", "delta_rule_chunkwise", "beta"), layout="bhtd", **NAIVE),
        Peer("FLA chunk_delta_rule, Triton", fla("delta_rule", "chunk_delta_rule", "beta"), **TRITON)],
    gated_delta_rule=[
        Peer("Transformers torch_chunk_gated_delta_rule", transformers("torch_chunk_gated_delta_rule")),
        Peer("FLA naive_chunk_gated_delta_rule", fla("gated_delta_rule.naive", "naive_chunk_gated_delta_rule", "g", "beta"), **NAIVE),
        Peer("FLA chunk_gated_delta_rule, Triton", fla("gated_delta_rule", "chunk_gated_delta_rule", "g", "beta"), **TRITON),
        Peer("Transformers torch_recurrent_gated_delta_rule", transformers("torch_recurrent_gated_delta_rule"), works=(ONE,)),
        Peer("FLA fused_recurrent_gated_delta_rule, Triton", fla("gated_delta_rule", "fused_recurrent_gated_delta_rule", "g", "beta"),
             **dict(TRITON, works=(ONE,)))],
    kda=[
        Peer("FLA naive_chunk_kda", fla("kda.naive", "naive_chunk_kda", "g", "beta"), **NAIVE),
        Peer("FLA chunk_kda, Triton", fla("kda", "chunk_kda", "g", "beta"), **TRITON)],
    softmax_attention=[
        Peer("torch scaled_dot_product_attention", sdpa, layout="bhtd", works=(FORWARD, GRADIENTS, ONE))],
)


class Prepared(NamedTuple):
    name: str
    call: Callable                                       # does the work, returns tensors
    values: Callable                                     # of those tensors, as arrays in our layout: o, then gradients as the arguments
    tolerance: float


def prepare(peer, work, x, do, device, compiled=False):
    """`peer` on the host arrays `x`, and `do` where gradients are wanted.  ImportError if it is not installed."""
    import torch
    f = peer.load()
    if compiled:
        f = torch.compile(f)
    put = lambda y: to_torch(torch, y, peer.layout, device)
    given = {name: put(y) for name, y in x.items() if name != "state"}
    given["state"] = None if x["state"] is None else map_state(lambda y: torch.from_numpy(np.ascontiguousarray(y)).to(device)[None], x["state"])
    first = lambda result: result[0] if isinstance(result, (tuple, list)) else result

    if work == GRADIENTS:
        wanted = {name: y.requires_grad_() for name, y in given.items() if name != "state"}
        back = put(do)

        def call():
            o = first(f(**dict(given, **wanted)))
            return o.detach(), *torch.autograd.grad(o, list(wanted.values()), back)
    else:
        def call():
            with torch.no_grad():
                return (first(f(**given)),)

    name = peer.name + (", torch.compile" if compiled else "")
    return Prepared(name, call, lambda result: [from_torch(y, peer.layout) for y in result], peer.tolerance)


def to_torch(torch, x, layout, device):
    """(heads, tokens, …) as (1, heads, tokens, …); for "bthd" a view with the axes the other way round: that costs nothing to turn back."""
    y = torch.from_numpy(np.ascontiguousarray(x)).to(device)[None]
    return y.transpose(1, 2).detach() if layout == "bthd" else y.detach()


def from_torch(y, layout):
    y = y.detach().to("cpu")
    return (y.transpose(1, 2) if layout == "bthd" else y)[0].numpy()
