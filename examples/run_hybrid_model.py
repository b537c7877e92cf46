"""Run a hybrid language model (Qwen3-Next, Qwen3.5): generate from its cache, and see what it remembers beside a model with full attention everywhere.

    python examples/run_hybrid_model.py                                      a tiny random model, by way of a checkpoint in a temporary folder
    python examples/run_hybrid_model.py --checkpoint FOLDER --prompt 9707,11 --tokens 20

FOLDER holds config.json and model.safetensors, or model.safetensors.index.json and its files, as the hub has them.  Tokens are numbers here: there is no
tokenizer.  A checkpoint in bfloat16 is widened to float32, so it needs twice its size in memory.
"""
import argparse
import json
import tempfile
import time
from pathlib import Path

import numpy as np

from npattn.models import hybrid, safetensors

TINY = dict(model_type="qwen3_5_text", vocab_size=256, hidden_size=64, intermediate_size=160, num_hidden_layers=8, num_attention_heads=4,
            num_key_value_heads=2, head_dim=32, linear_num_key_heads=2, linear_num_value_heads=4, linear_key_head_dim=16, linear_value_head_dim=16,
            rope_parameters=dict(rope_type="default", rope_theta=1e4, partial_rotary_factor=0.5))
FAR = 131_072                                            # tokens


def load(folder):
    config = hybrid.Config.from_dict(json.loads((folder / "config.json").read_text()))
    return config, dict(hybrid.prepare(safetensors.load(folder), config))


def tokens(text):
    return np.array([int(x) for x in text.split(",")])


def sizes(cache):
    """Bytes of every layer's state."""
    return [sum(part.nbytes for part in layer) for layer in cache.layers]


def table(config, cache, per_token):
    """One row a layer: what it keeps now, what it will keep, and what full attention would keep in its place."""
    n, layers = cache.mask.shape[-1], len(config.layer_types)
    print(f"{'':31}{'this model':>32}{'full attention':>32}\n{'layer':>5}  {'kind':16}{'keeps':>8}" + f"{f'at {n:,} tokens':>18}{f'at {FAR:,}':>14}" * 2)
    far = [size if kind == "linear_attention" else per_token * FAR for kind, size in zip(config.layer_types, sizes(cache))]
    for i, (kind, now, then) in enumerate(zip(config.layer_types, sizes(cache), far)):
        parts = "conv, S" if kind == "linear_attention" else "k, v"
        print(f"{i:5}  {kind:16}{parts:>8}{now:18,}{then:14,}{per_token * n:18,}{per_token * FAR:14,}")
    print(f"{'':5}  {'bytes in all':24}{sum(sizes(cache)):18,}{sum(far):14,}{layers * per_token * n:18,}{layers * per_token * FAR:14,}")
    print(f"At {FAR:,} tokens full attention keeps {layers * per_token * FAR / sum(far):.1f} times as much.")
    return far


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Run a hybrid language model and compare its cache with that of full attention.")
    parser.add_argument("--checkpoint", type=Path, help="a folder with config.json and safetensors; a tiny random model if not given")
    parser.add_argument("--prompt", type=tokens, help="as 1,2,3; some random ones if not given")
    parser.add_argument("--tokens", type=int, default=24, help="how many to generate")
    parser.add_argument("--temperature", type=float, default=0.0)
    given, rng = parser.parse_args(arguments), np.random.default_rng(0)

    if given.checkpoint:
        config, weights = load(given.checkpoint)
    else:
        with tempfile.TemporaryDirectory() as folder:
            made = hybrid.random_weights(hybrid.Config.from_dict(TINY), rng)
            safetensors.save(Path(folder) / "model.safetensors", made)
            (Path(folder) / "config.json").write_text(json.dumps(TINY))
            config, weights = load(Path(folder))
            weights = {name: w.copy() for name, w in weights.items()}        # the files go away
        assert all((weights[name] == w).all() for name, w in made.items())
    print(f"{config.model_type}: {len(config.layer_types)} layers, {sum(w.size for w in weights.values()):,} parameters")

    prompt = rng.integers(config.vocab_size, size=100) if given.prompt is None else given.prompt
    started = time.monotonic()
    ids = hybrid.generate(prompt, weights, config, max_new_tokens=given.tokens, temperature=given.temperature, rng=rng)
    seconds = time.monotonic() - started
    print(f"after {prompt.size} tokens: {','.join(map(str, ids[prompt.size:]))}   ({given.tokens / seconds:.1f} tokens a second)\n")

    # Token by token from the cache, or all in one call: the same.
    whole, cache = hybrid.forward(ids, weights, config)
    _, before = hybrid.forward(ids[:-1], weights, config)
    last, after = hybrid.forward(ids[-1:], weights, config, cache=before)
    assert np.abs(last[-1] - whole[-1]).max() <= 1e-3 * np.abs(whole[-1]).max()

    # A linear layer keeps the same number of bytes whatever it has read; full attention keeps keys and values of every token.
    per_token = 2 * config.num_key_value_heads * config.head_dim * whole.itemsize
    for kind, short, long in zip(config.layer_types, sizes(before), sizes(after)):
        assert long - short == (0 if kind == "linear_attention" else per_token)
        assert kind == "linear_attention" or long == per_token * ids.size
    return ids, table(config, cache, per_token)


if __name__ == "__main__":
    main()
