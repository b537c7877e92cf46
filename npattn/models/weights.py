"""The hybrid model's weights: which names and shapes a config asks for, and any mapping that has them made into one that does."""
from collections.abc import Mapping

import numpy

from ..core.arrays import array_module
from .config import Config

EXPERT = ("gate_proj.weight", "up_proj.weight", "down_proj.weight")
ELSEWHERE = ("model.visual.", "mtp.")                    # of other parts of a checkpoint


def shapes(config):
    """{name: shape} of every weight, by the names of the Hugging Face state dict."""
    if not isinstance(config, Config):
        raise TypeError(f"config must be a Config, which Config.from_dict makes, not {type(config).__name__}")
    c, all_shapes = config, {"model.embed_tokens.weight": (config.vocab_size, config.hidden_size)}
    for i, kind in enumerate(c.layer_types):
        layer = {"input_layernorm.weight": (c.hidden_size,), "post_attention_layernorm.weight": (c.hidden_size,)}
        layer |= linear_shapes(c) if kind == "linear_attention" else attention_shapes(c)
        layer |= mixture_shapes(c) if c.is_mixture(i) else swiglu_shapes(c, "mlp.", c.intermediate_size)
        all_shapes |= {f"model.layers.{i}.{name}": shape for name, shape in layer.items()}
    all_shapes["model.norm.weight"] = (c.hidden_size,)
    return all_shapes if c.tie_word_embeddings else all_shapes | {"lm_head.weight": (c.vocab_size, c.hidden_size)}


def linear_shapes(c):
    H, K, values = c.linear_num_key_heads, c.linear_key_head_dim, c.linear_num_value_heads * c.linear_value_head_dim
    channels = 2 * H * K + values
    if c.model_type == "qwen3_next":
        rows = dict(in_proj_qkvz=channels + values, in_proj_ba=2 * c.linear_num_value_heads)
    else:
        rows = dict(in_proj_qkv=channels, in_proj_z=values, in_proj_b=c.linear_num_value_heads, in_proj_a=c.linear_num_value_heads)
    return {f"linear_attn.{name}.weight": (n, c.hidden_size) for name, n in rows.items()} | {
        "linear_attn.conv1d.weight": (channels, 1, c.linear_conv_kernel_dim), "linear_attn.A_log": (c.linear_num_value_heads,),
        "linear_attn.dt_bias": (c.linear_num_value_heads,), "linear_attn.norm.weight": (c.linear_value_head_dim,),
        "linear_attn.out_proj.weight": (c.hidden_size, values)}


def attention_shapes(c):
    queries, keys = c.num_attention_heads * c.head_dim, c.num_key_value_heads * c.head_dim
    rows = dict(q_proj=(2 * queries, c.hidden_size), k_proj=(keys, c.hidden_size), v_proj=(keys, c.hidden_size), o_proj=(c.hidden_size, queries))
    all_shapes = {f"self_attn.{name}.weight": shape for name, shape in rows.items()}
    if c.attention_bias:
        all_shapes |= {f"self_attn.{name}.bias": shape[:1] for name, shape in rows.items()}
    return all_shapes | {"self_attn.q_norm.weight": (c.head_dim,), "self_attn.k_norm.weight": (c.head_dim,)}


def mixture_shapes(c):
    E, I, C = c.num_experts, c.moe_intermediate_size, c.hidden_size
    return {"mlp.gate.weight": (E, C), "mlp.experts.gate_up_proj": (E, 2 * I, C), "mlp.experts.down_proj": (E, C, I),
            **swiglu_shapes(c, "mlp.shared_expert.", c.shared_expert_intermediate_size), "mlp.shared_expert_gate.weight": (1, C)}


def swiglu_shapes(c, prefix, I):
    return {prefix + "gate_proj.weight": (I, c.hidden_size), prefix + "up_proj.weight": (I, c.hidden_size),
            prefix + "down_proj.weight": (c.hidden_size, I)}


class Weights(Mapping):
    """The weights of a model by the names of `shapes`; each is read when it is asked for, every time."""

    def __init__(self, config, readers):
        self.config, self.readers = config, readers
        self.layers = [[f"model.layers.{i}."] for i in range(len(config.layer_types))]
        for name in readers:
            if name.startswith("model.layers."):
                self.layers[int(name.split(".")[2])].append(name)

    def __getitem__(self, name):
        return self.readers[name]()

    def __contains__(self, name):
        return name in self.readers                      # without reading it

    def __iter__(self):
        return iter(self.readers)

    def __len__(self):
        return len(self.readers)

    def layer(self, i):
        """Those of layer i as a dict, by the rest of their names."""
        prefix, *names = self.layers[i]
        return {name[len(prefix):]: self[name] for name in names}


def prepare(weights, config):
    """`weights`, any mapping of names to arrays, as `Weights`: looked at whole, by name, shape and type, before anything runs.

    Understood besides the names of `shapes`: the prefix `model.language_model.` of the hub, experts one by one
    (`mlp.experts.7.up_proj.weight`), a tied head that is there nevertheless and equal to the embedding; `model.visual.…` and `mtp.…` are
    left alone.  ValueError that lists every weight that is missing, not needed, misshapen or no array of floats.
    """
    if isinstance(weights, Weights) and weights.config == config:
        return weights
    if not isinstance(weights, Mapping):
        raise TypeError(f"weights must be a mapping of names to arrays, not {type(weights).__name__}")
    about, wanted, problems = getattr(weights, "about", lambda name: described(weights[name])), shapes(config), {}
    note = lambda problem, text: problems.setdefault(problem, []).append(text)
    found = {}
    for name in weights:
        if not isinstance(name, str):
            raise TypeError(f"weights must be named by strings, not {name!r}")
        own = "model." + name.removeprefix("model.language_model.") if name.startswith("model.language_model.") else name
        if own in found:
            note("there twice", name)
        elif not own.startswith(ELSEWHERE):
            found[own] = name

    def check(own, shape):
        if own not in found:
            note("missing", own)
            return None
        name = found.pop(own)
        has, kind = about(name)
        if getattr(kind, "kind", "") not in ("f", "c", "O"):
            note("no array of floats", f"{name} ({getattr(kind, '__name__', kind)})")
        elif has != shape:
            note("of another shape", f"{name} {has}, not {shape}")
        return lambda: weights[name]

    readers, names = {}, set(found)
    for own, shape in wanted.items():
        parts = own.rpartition(".experts.")
        if parts[1] and own not in names and f"{parts[0]}.experts.0.{EXPERT[0]}" in names:
            E, rows, C = shape
            each = [(EXPERT[0], (rows // 2, C)), (EXPERT[1], (rows // 2, C))] if parts[2] == "gate_up_proj" else [(EXPERT[2], (rows, C))]
            readers[own] = stacked([[check(f"{parts[0]}.experts.{e}.{name}", s) for name, s in each] for e in range(E)])
        else:
            readers[own] = check(own, shape)
    embedding, head = "model.embed_tokens.weight", found.get("lm_head.weight")
    if config.tie_word_embeddings and head and readers[embedding] and equal(weights[head], readers[embedding]()):
        del found["lm_head.weight"]
    for name in found.values():
        note("not needed", name + " (it is not the embedding, to which the config ties it)" * (config.tie_word_embeddings and name == head))
    if problems:
        raise ValueError("the weights do not fit the config; " + "; ".join(f"{problem}: {listed(names)}" for problem, names in problems.items()))
    return Weights(config, readers)


def stacked(readers):
    """A reader of one array for all experts, whose parts stand one above the other."""
    def join(parts):
        return array_module(*parts).concatenate(parts, axis=0)

    def read():
        experts = [join([part() for part in parts]) for parts in readers]
        return array_module(*experts).stack(experts)
    return read


def equal(a, b):
    return bool(array_module(a, b).array_equal(a, b))


def described(x):
    """(shape, dtype) of an array of NumPy or CuPy, (None, class) of anything else."""
    if hasattr(x, "__array_ufunc__") and not isinstance(x, (numpy.ma.MaskedArray, numpy.matrix)):
        return x.shape, x.dtype
    return None, type(x)


def listed(names, most=40):
    return ", ".join(names[:most]) + (f" and {len(names) - most} more" if len(names) > most else "")


def random_weights(config, rng, dtype=numpy.float32):
    """{name: array} of a model that has learnt nothing but is not degenerate.

    Normal of variance 1 / inputs, with noise in all that usually starts constant.  Where in_proj_a gives 0, decays lie between e^-1.6 and
    e^-0.001 per token: A in 1 … 16 and softplus(dt_bias) in 0.001 … 0.1, both even in the logarithm.
    """
    log_even = lambda low, high, shape: numpy.exp(rng.uniform(numpy.log(low), numpy.log(high), shape))
    makers = {"A_log": lambda shape: numpy.log(log_even(1, 16, shape)), "dt_bias": lambda shape: numpy.log(numpy.expm1(log_even(0.001, 0.1, shape))),
              "linear_attn.norm.weight": lambda shape: 1 + 0.1 * rng.standard_normal(shape)}

    def make(name, shape):
        for end, maker in makers.items():
            if name.endswith(end):
                return maker(shape)
        return rng.standard_normal(shape) * (0.1 if len(shape) == 1 else shape[-1] ** -0.5)

    return {name: make(name, shape).astype(dtype) for name, shape in shapes(config).items()}
