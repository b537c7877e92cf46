"""The language model of Qwen3-Next and Qwen3.5: Gated DeltaNet and gated attention in turn, from the weights of a Hugging Face state dict.

    x      = embedding of ids
    x      = decoder layer l of x                        l = 0, 1, …: layers/decoder.py, its mixer by config.layer_types
    logits = head of rms_norm(x; model.norm)             the head is the embedding where they are tied

ids (..., T): integers, with any leading axes (a batch, or none).  config: a `Config`.  weights: any mapping from names to arrays, which
`prepare` looks at; give it `prepare`'s result to have that done once, and `dict(…)` of a checkpoint on disk to have it read once.  Nothing
is converted: float32 weights make a float32 run.

From a folder of the hub, or from a Transformers model:

    config, weights = Config.from_dict(json.load(open(folder + "/config.json"))), safetensors.load(folder)
    config, weights = Config.from_dict(model.config.to_dict()), {name: w.float().numpy() for name, w in model.state_dict().items()}
    ids = generate(prompt, dict(prepare(weights, config)), config, max_new_tokens=20)
"""
import time
from typing import Any, NamedTuple

import numpy

from ..core.arguments import fit
from ..core.arrays import array_module
from ..core.functions import logsumexp, rms_norm, rms_norm_vjp, softmax
from ..layers import decoder, linear, rotary
from .arguments import check_ids, check_memory, check_sampling
from .config import Config
from .sampling import choose, progress
from .weights import prepare, random_weights, shapes

__all__ = ["Cache", "Config", "forward", "generate", "loss_and_gradients", "prepare", "random_weights", "residuals", "shapes"]


class Cache(NamedTuple):
    """What the model remembers of n tokens: plain arrays, never written in place, so that one can go back to an old one."""
    layers: Any                                          # one state per layer: gated_deltanet.State, of fixed size, or keys and values of n tokens
    mask: Any                                            # (..., n), True for real tokens


def forward(ids, weights, config, *, cache=None, attention_mask=None):
    """logits (..., T, vocabulary) and the Cache after the last token.  Any split of ids into calls gives the same.

    attention_mask (..., n + T), 1 for real tokens and 0 for padding, of the n cached tokens too; without it all new tokens are real.
    Padding belongs on the left: there it leaves no trace.  On the right it changes no logits before it, but spoils the cache, and going on
    from that is refused.  ValueError or TypeError for ids, masks, caches and weights that do not fit.
    """
    weights = prepare(weights, config)
    x, cache = hidden(ids, weights, config, cache, attention_mask)
    return linear.forward(x, weights, head(weights)), cache


def residuals(ids, weights, config, *, cache=None, attention_mask=None):
    """The residual stream x (..., T, C), one after the other: embedded, after every layer, and after the last norm."""
    weights = prepare(weights, config)
    for x, _ in stream(ids, weights, config, cache, check_memory(ids, config, cache, attention_mask, Cache)):
        yield x
    yield rms_norm(x, weights["model.norm.weight"], config.rms_norm_eps)


def generate(prompt, weights, config, *, max_new_tokens, temperature=0, top_k=None, top_p=None, rng=None, eos=None, attention_mask=None):
    """The prompt (..., n) and up to max_new_tokens tokens after it, int64.

    temperature     0 takes the likeliest token, the lowest of equals; else tokens are drawn from softmax(logits / temperature)
    top_k, top_p    draw among the k likeliest only; among the fewest likeliest whose probabilities reach p (after top_k)
    rng             a NumPy Generator; a fresh one if None
    eos             a token or several: a row that has drawn one repeats it, and when every row has, that is the end
    attention_mask  (..., n), 0 for padding on the left of the shorter prompts
    """
    weights = prepare(weights, config)
    check_ids(prompt, config, least=1)
    stops = check_sampling(max_new_tokens, temperature, top_k, top_p, rng, eos)
    rng, started = rng or numpy.random.default_rng(), time.monotonic()
    xp, cache = array_module(weights["model.norm.weight"]), None
    ids = xp.asarray(prompt).astype(numpy.int64)                             # n
    new, done = ids, xp.zeros(ids.shape[:-1], bool)
    for i in range(max_new_tokens):
        x, cache = hidden(new, weights, config, cache, attention_mask)
        chosen = choose(linear.forward(x[..., -1, :], weights, head(weights)), temperature, top_k, top_p, rng)
        new, attention_mask = xp.where(done, ids[..., -1], chosen)[..., None], None          # 1
        ids = xp.concatenate([ids, new], axis=-1)
        done = done | xp.isin(new[..., 0], xp.asarray(stops))
        if done.all():
            break
        progress(i + 1, max_new_tokens, time.monotonic() - started)
    progress(0, 0, time.monotonic() - started)
    return ids


def loss_and_gradients(ids, weights, config):
    """The mean of -ln p(next token), and its gradients by the names of `shapes`, derived by hand, each of its weight's shape and type.

    Every token counts, pad_token_id too, to whose row of the embedding torch gives no gradient from the lookup.
    Kept on the way is one x per layer; what happens inside a layer is made again when its turn comes.
    """
    weights = prepare(weights, config)
    check_ids(ids, config, least=2)
    w, eps = weights["model.norm.weight"], config.rms_norm_eps
    xp = array_module(w)
    kept = [x for x, _ in stream(ids, weights, config, None, numpy.ones((), bool))]          # T C each
    ids, x = xp.asarray(ids), kept.pop()
    n = rms_norm(x, w, eps)[..., :-1, :]                                     # T-1 C
    loss, dlogits = cross_entropy(linear.forward(n, weights, head(weights)), ids[..., 1:])   # T-1 vocabulary

    dn, gradients = linear.vjp(dlogits, n, weights, head(weights))           # T-1 C
    dn = xp.concatenate([dn, xp.zeros_like(x[..., :1, :])], axis=-2)         # T C   nothing is predicted from the last token
    dx, gradients["model.norm.weight"] = rms_norm_vjp(dn, x, w, eps)
    for i in reversed(range(len(kept))):
        dx, dlayer, _ = decoder.vjp(dx, kept.pop(), weights.layer(i), **options(config, 0, ids.shape[-1], x))
        gradients |= {f"model.layers.{i}.{name}": d for name, d in dlayer.items()}
    dE = xp.zeros((config.vocab_size, config.hidden_size), dx.dtype)         # vocabulary C
    xp.add.at(dE, ids.reshape(-1), dx.reshape(-1, dx.shape[-1]))
    tied = gradients.get("model.embed_tokens.weight", 0)                     # as the head
    gradients["model.embed_tokens.weight"] = fit(dE + tied, weights["model.embed_tokens.weight"])
    return loss, {name: gradients[name] for name in weights}


# --- parts -------------------------------------------------------------------------------------------------------

def stream(ids, weights, config, cache, seen):
    """Pairs: the embedded ids and None, then x after each layer and that layer's new state.  seen (..., n + T), True for real tokens."""
    E = weights["model.embed_tokens.weight"]
    xp, T, n = array_module(E), ids.shape[-1], 0 if cache is None else cache.mask.shape[-1]
    x = E[xp.asarray(ids)]                                                   # T C
    yield x, None
    settings, mask = options(config, n, T, x), None if seen.all() else xp.asarray(seen)
    for i in range(len(config.layer_types)):
        x, state = decoder.forward(x, weights.layer(i), state=None if cache is None else cache.layers[i], mask=mask, **settings)
        yield x, state


def hidden(ids, weights, config, cache, attention_mask):
    """x after the last layer and norm, and the new Cache."""
    seen, states = check_memory(ids, config, cache, attention_mask, Cache), []
    for x, state in stream(ids, weights, config, cache, seen):
        states.append(state)
    return rms_norm(x, weights["model.norm.weight"], config.rms_norm_eps), Cache(tuple(states[1:]), seen)


def options(config, n, T, x):
    """What every layer is told: n tokens are cached, T new ones come."""
    cos, sin = rotary.tables(array_module(x).arange(n, n + T), config.rotary_width, config.rope_theta)       # T R/2
    return dict(key_heads=config.linear_num_key_heads, cos=cos.astype(x.dtype), sin=sin.astype(x.dtype), eps=config.rms_norm_eps,
                topk=config.num_experts_per_tok, renormalize=config.norm_topk_prob)


def head(weights):
    """The name of the head among the weights."""
    return "lm_head" if "lm_head.weight" in weights else "model.embed_tokens"


def cross_entropy(logits, targets):
    """The mean of ln sum e^logits - logits[target], and its gradient, (softmax - 1 at the target) / number of targets."""
    xp = array_module(logits)
    loss = (logsumexp(logits) - xp.take_along_axis(logits, targets[..., None], axis=-1)[..., 0]).mean()
    right = targets[..., None] == xp.arange(logits.shape[-1])                # T vocabulary
    return loss, (softmax(logits) - right) / targets.size
