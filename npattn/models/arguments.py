"""What the model is called with, checked in one place."""
import numpy

from ..core.arrays import array_module
from ..core.states import Cache
from ..layers.gated_deltanet import State


def check_ids(ids, config, least=0):
    """TypeError or ValueError unless ids is an array of integers (..., T), each a token of the vocabulary, and T at least `least`."""
    if getattr(getattr(ids, "dtype", None), "kind", "") not in ("i", "u"):
        raise TypeError(f"ids must be an array of integers, not {getattr(ids, 'dtype', type(ids).__name__)}")
    if ids.ndim < 1 or least and (ids.shape[-1] < least or not ids.size):
        raise ValueError(f"ids must be (..., T) with T at least {least}: ids {ids.shape}")
    if ids.size and not (0 <= ids.min() and ids.max() < config.vocab_size):
        raise ValueError(f"ids must be from 0 to {config.vocab_size - 1}, not {ids.min()} … {ids.max()}: ids {ids.shape}")


def check_memory(ids, config, cache, attention_mask, kind):
    """Check all three together; returns (..., n + T), True for real tokens: the mask as given, or the cached one followed by real tokens only."""
    check_ids(ids, config)
    xp, lead, T = array_module(ids), ids.shape[:-1], ids.shape[-1]
    if cache is not None and not isinstance(cache, kind):
        raise TypeError(f"cache must be what `forward` returned, or None, not {type(cache).__name__}")
    before = xp.ones(lead + (0,), bool) if cache is None else cache.mask
    if cache is not None and (len(cache.layers) != len(config.layer_types) or before.shape[:-1] != lead):
        raise ValueError(f"cache of {len(cache.layers)} layers, mask {before.shape}, does not fit "
                         f"{len(config.layer_types)} layers and ids {ids.shape}")
    for i, layer in enumerate(() if cache is None else cache.layers):
        check_state(i, layer, state_shapes(config, i, lead, before.shape[-1]))
    if (before[..., :-1] > before[..., 1:]).any():
        raise ValueError("cache was made with padding behind a token, which has spoilt its states: pad on the left instead")
    if attention_mask is None:
        return xp.concatenate([before, xp.ones(ids.shape, bool)], axis=-1)

    n, dtype = before.shape[-1], getattr(attention_mask, "dtype", None)
    if getattr(dtype, "kind", "") not in ("b", "i", "u") or not ((attention_mask == 0) | (attention_mask == 1)).all():
        raise ValueError(f"attention_mask must be an array of booleans, or of the integers 0 and 1, not {dtype or type(attention_mask).__name__}")
    attention_mask = xp.asarray(attention_mask)
    if attention_mask.shape != lead + (n + T,):
        raise ValueError(f"attention_mask {attention_mask.shape} must be {lead + (n + T,)}: {n} cached tokens and ids {ids.shape}")
    if (attention_mask[..., :n] != before).any():
        raise ValueError(f"attention_mask differs from that of the {n} cached tokens")
    return attention_mask != 0


def check_state(i, state, wanted):
    """ValueError unless the cached state of layer i is of the kind and the shapes that are wanted."""
    fits = type(state) is type(wanted)
    if not fits or tuple(part.shape for part in state) != tuple(wanted):
        has = type(wanted)(*(part.shape for part in state)) if fits else type(state).__name__
        raise ValueError(f"cache is of another model: layer {i} keeps {wanted}, not {has}")


def state_shapes(c, i, lead, n):
    """The shapes of what layer i of config c remembers of n tokens, in their named tuple."""
    if c.layer_types[i] == "full_attention":
        return Cache(*[lead + (c.num_key_value_heads, n, c.head_dim)] * 2)
    heads, K, V = c.linear_num_value_heads, c.linear_key_head_dim, c.linear_value_head_dim
    return State(lead + (c.linear_conv_kernel_dim, 2 * c.linear_num_key_heads * K + heads * V), lead + (heads, K, V))


def check_sampling(max_new_tokens, temperature, top_k, top_p, rng, eos):
    """ValueError or TypeError for settings without a meaning; returns the tokens that end a row."""
    whole = lambda n: isinstance(n, (int, numpy.integer)) and not isinstance(n, bool)
    real = lambda x: isinstance(x, (int, float, numpy.integer, numpy.floating)) and not isinstance(x, bool)
    if not whole(max_new_tokens) or max_new_tokens < 0:
        raise ValueError(f"max_new_tokens must be an integer of at least 0, not {max_new_tokens!r}")
    if not real(temperature) or not 0 <= temperature < numpy.inf:
        raise ValueError(f"temperature must be 0 or a positive number, not {temperature!r}")
    if top_k is not None and (not whole(top_k) or top_k < 1):
        raise ValueError(f"top_k must be an integer of at least 1, not {top_k!r}")
    if top_p is not None and not (real(top_p) and 0 < top_p <= 1):
        raise ValueError(f"top_p must be above 0 and at most 1, not {top_p!r}")
    if temperature == 0 and not top_k is top_p is None:
        raise ValueError("top_k and top_p choose among tokens that are drawn at random: they need a temperature above 0")
    if rng is not None and not isinstance(rng, numpy.random.Generator):
        raise TypeError(f"rng must be a NumPy Generator, such as numpy.random.default_rng(0), not {type(rng).__name__}")
    stops = [] if eos is None else eos if isinstance(eos, (list, tuple)) else [eos]
    if not all(map(whole, stops)):
        raise ValueError(f"eos must be a token or a list of tokens, not {eos!r}")
    return list(stops)
