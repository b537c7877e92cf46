"""The hybrid model's configuration, read from Hugging Face's: every field that changes the result is understood or refused by name."""
import math
from dataclasses import dataclass
from dataclasses import fields as fields_of

KINDS = {"qwen3_next": "qwen3_next", "qwen3_5": "qwen3_5_text", "qwen3_5_text": "qwen3_5_text",
         "qwen3_5_moe": "qwen3_5_moe_text", "qwen3_5_moe_text": "qwen3_5_moe_text"}

# What a file may leave out, as Transformers 5.24 fills it in.
DEFAULTS = dict(num_attention_heads=16, head_dim=256, rms_norm_eps=1e-6, tie_word_embeddings=False, attention_bias=False,
                linear_conv_kernel_dim=4, linear_key_head_dim=128, linear_value_head_dim=128, linear_num_key_heads=16,
                linear_num_value_heads=32, rope_theta=10000.0, partial_rotary_factor=0.25, intermediate_size=0, num_experts=0,
                num_experts_per_tok=0, moe_intermediate_size=0, shared_expert_intermediate_size=0, norm_topk_prob=True, decoder_sparse_step=1,
                mlp_only_layers=(), full_attention_interval=4)
OF_KIND = dict(
    qwen3_next=dict(vocab_size=151936, hidden_size=2048, intermediate_size=5632, num_hidden_layers=48, num_key_value_heads=2, num_experts=512,
                    num_experts_per_tok=10, moe_intermediate_size=512, shared_expert_intermediate_size=512),
    qwen3_5_text=dict(vocab_size=248320, hidden_size=4096, intermediate_size=12288, num_hidden_layers=32, num_key_value_heads=4),
    qwen3_5_moe_text=dict(vocab_size=248320, hidden_size=2048, num_hidden_layers=40, num_key_value_heads=2, num_experts=256,
                          num_experts_per_tok=8, moe_intermediate_size=512, shared_expert_intermediate_size=512))

# Fields that would change the result if they had another value than these.
ONLY = dict(hidden_act=("silu", "swish"), attn_output_gate=(True,), output_gate_type=("silu", "swish"), rope_type=("default",),
            mrope_interleaved=(True,), use_sliding_window=(False,), output_router_logits=(False,), is_encoder_decoder=(False,),
            add_cross_attention=(False,), is_decoder=(False,), pruned_heads=({},))
ONLY_OF_KIND = dict(
    qwen3_next={},
    qwen3_5_text=dict(num_experts=(0,), mlp_only_layers=([], ())),
    qwen3_5_moe_text=dict(norm_topk_prob=(True,), decoder_sparse_step=(1,), mlp_only_layers=([], ())))
ROPE = {"rope_theta", "partial_rotary_factor", "rope_type", "type", "mrope_section", "mrope_interleaved"}

# Fields that change nothing here: bookkeeping, training, other parts of the checkpoint, generation.
IGNORED = set("""
    _name_or_path name_or_path architectures transformers_version torch_dtype dtype use_cache return_dict output_attentions
    output_hidden_states attn_implementation _attn_implementation _attn_implementation_autoset _attn_implementation_internal
    _experts_implementation experts_implementation chunk_size_feed_forward id2label label2id num_labels problem_type tokenizer_class
    task_specific_params torchscript tf_legacy_loss use_bfloat16 initializer_range max_position_embeddings attention_dropout
    router_aux_loss_coef mamba_ssm_dtype mrope_section sliding_window max_window_layers bos_token_id eos_token_id pad_token_id sep_token_id
    cls_token_id decoder_start_token_id image_token_id video_token_id vision_start_token_id vision_end_token_id vision_config
    language_model_only mtp_num_hidden_layers mtp_use_dedicated_embeddings finetuning_task prefix tie_encoder_decoder max_length min_length
    do_sample early_stopping num_beams num_beam_groups diversity_penalty temperature top_k top_p typical_p repetition_penalty length_penalty
    no_repeat_ngram_size encoder_no_repeat_ngram_size bad_words_ids num_return_sequences output_scores return_dict_in_generate
    forced_bos_token_id forced_eos_token_id remove_invalid_values exponential_decay_length_penalty suppress_tokens begin_suppress_tokens
""".split())


@dataclass(frozen=True)
class Config:
    """Sizes and choices, by Hugging Face's names.  ValueError, naming the field, for what cannot be."""
    model_type: str                                      # a value of KINDS
    vocab_size: int
    hidden_size: int
    intermediate_size: int                               # of a layer that is no mixture
    layer_types: tuple                                   # "linear_attention" or "full_attention", one per layer
    num_attention_heads: int
    num_key_value_heads: int
    head_dim: int
    rms_norm_eps: float
    tie_word_embeddings: bool                            # the head is the embedding
    attention_bias: bool
    linear_conv_kernel_dim: int
    linear_key_head_dim: int
    linear_value_head_dim: int
    linear_num_key_heads: int
    linear_num_value_heads: int
    rope_theta: float
    partial_rotary_factor: float
    num_experts: int
    num_experts_per_tok: int
    moe_intermediate_size: int
    shared_expert_intermediate_size: int
    norm_topk_prob: bool
    decoder_sparse_step: int
    mlp_only_layers: tuple

    @classmethod
    def from_dict(cls, config):
        """From the contents of a config.json of qwen3_next, qwen3_5_text or qwen3_5_moe_text, or of one that holds such under "text_config".

        Where both levels have tie_word_embeddings the outer one holds, as in Transformers.  TypeError for what is no dict; ValueError, naming
        the field, for what is not understood.

        >>> Config.from_dict(dict(model_type="qwen3_next", num_hidden_layers=8)).layer_types.index("full_attention")
        3
        >>> Config.from_dict(dict(model_type="qwen3_next", hidden_act="gelu"))
        Traceback (most recent call last):
        ValueError: hidden_act must be 'silu' or 'swish', not 'gelu'
        """
        if not isinstance(config, dict):
            raise TypeError(f"config must be a dict, the contents of a config.json or what to_dict() gives, not {type(config).__name__}")
        given = config | inner(config, "text_config")
        if config.get("tie_word_embeddings") is not None:
            given["tie_word_embeddings"] = config["tie_word_embeddings"]
        given = {name: x for name, x in given.items() if x is not None and name != "text_config"}
        model_type = given.pop("model_type", None)
        kind = KINDS.get(model_type) if isinstance(model_type, str) else None
        if kind is None:
            raise ValueError(f"model_type must be one of {', '.join(KINDS)}, not {model_type!r}")
        rope(given)
        for name, allowed in (ONLY | ONLY_OF_KIND[kind]).items():
            if given.get(name, allowed[0]) not in allowed:
                raise ValueError(f"{name} must be {' or '.join(map(repr, allowed))}{f' for {kind}' if name not in ONLY else ''}, "
                                 f"not {given[name]!r}")
        known = DEFAULTS | OF_KIND[kind]
        unknown = given.keys() - known - IGNORED - ONLY.keys() - {"layer_types"}
        if unknown:
            raise ValueError(f"the config has fields that this model does not know, which may change the result: {', '.join(sorted(unknown))}")
        for name in given.keys() & {"layer_types", "mlp_only_layers"}:
            if not isinstance(given[name], (list, tuple)):
                raise ValueError(f"{name} must be a list, not {given[name]!r}")
        if "layer_types" in given:
            given.setdefault("num_hidden_layers", len(given["layer_types"]))
        values = known | {name: x for name, x in given.items() if name in known}
        layers, interval = (whole(name, values.pop(name)) for name in ("num_hidden_layers", "full_attention_interval"))
        types = given.get("layer_types", ["linear_attention" if (i + 1) % interval else "full_attention" for i in range(layers)])
        if len(types) != layers:
            raise ValueError(f"layer_types has {len(types)} entries for num_hidden_layers = {layers}")
        return cls(model_type=kind, layer_types=tuple(types), **values | dict(mlp_only_layers=tuple(values["mlp_only_layers"])))

    def __post_init__(self):
        if self.model_type not in KINDS.values():
            raise ValueError(f"model_type must be one of {', '.join(OF_KIND)}, not {self.model_type!r}")
        for field in fields_of(self):
            x = getattr(self, field.name)
            if field.type is bool and not isinstance(x, bool):
                raise ValueError(f"{field.name} must be true or false, not {x!r}")
            if field.type is int:
                whole(field.name, x, least=0 if field.name in DEFAULTS and not DEFAULTS[field.name] else 1)
            if field.type is float and (isinstance(x, bool) or not isinstance(x, (int, float)) or not 0 < x < math.inf):
                raise ValueError(f"{field.name} must be a positive number, not {x!r}")
        for i, layer in enumerate(self.mlp_only_layers):
            whole(f"mlp_only_layers[{i}]", layer, least=0)
        for i, kind in enumerate(self.layer_types):
            if kind not in ("linear_attention", "full_attention"):
                raise ValueError(f"layer_types must be 'linear_attention' or 'full_attention', not {kind!r} for layer {i}")
            needed = "num_experts_per_tok moe_intermediate_size shared_expert_intermediate_size" if self.is_mixture(i) else "intermediate_size"
            for name in needed.split():
                whole(name, getattr(self, name))
        for many, few in (("num_attention_heads", "num_key_value_heads"), ("linear_num_value_heads", "linear_num_key_heads")):
            if getattr(self, many) % getattr(self, few):
                raise ValueError(f"{many} = {getattr(self, many)} is no multiple of {few} = {getattr(self, few)}")
        if self.rotary_width % 2 or self.rotary_width > self.head_dim:
            raise ValueError(f"partial_rotary_factor = {self.partial_rotary_factor} turns {self.rotary_width} of "
                             f"head_dim = {self.head_dim} channels: must be even, and no more than there are")
        if self.num_experts_per_tok > self.num_experts and any(map(self.is_mixture, range(len(self.layer_types)))):
            raise ValueError(f"num_experts_per_tok = {self.num_experts_per_tok} is more than num_experts = {self.num_experts}")

    @property
    def rotary_width(self):
        return int(self.head_dim * self.partial_rotary_factor)

    def is_mixture(self, layer):
        """Is the feed-forward block of this layer a mixture of experts?"""
        if self.model_type != "qwen3_next":
            return self.model_type == "qwen3_5_moe_text"
        return layer not in self.mlp_only_layers and self.num_experts > 0 and (layer + 1) % self.decoder_sparse_step == 0


def whole(name, x, least=1):
    """`x`, an integer of at least `least`."""
    if isinstance(x, bool) or not isinstance(x, int) or x < least:
        raise ValueError(f"{name} must be an integer of at least {least}, not {x!r}")
    return x


def rope(given):
    """Both spellings as one: what stands under rope_parameters (or the older rope_scaling) moves to the top."""
    for outer in ("rope_parameters", "rope_scaling"):
        for name, x in inner(given, outer).items():
            if name not in ROPE:
                raise ValueError(f"{outer}.{name} is not known, and may change the result")
            name = "rope_type" if name == "type" else name
            if x is not None and given.setdefault(name, x) != x:
                raise ValueError(f"{name} is {given[name]!r} and, under {outer}, {x!r}")
        given.pop(outer, None)


def inner(config, name):
    """The fields under `name`, if there are any."""
    x = config.get(name)
    if x is not None and not isinstance(x, dict):
        raise ValueError(f"{name} must be an object of names and values, not {x!r}")
    return x or {}
