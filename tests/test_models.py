"""The hybrid model against Transformers (five tiny models, float64 runs), its caches, its gradients, its configuration and weights."""
import json
from dataclasses import replace
from functools import cache
from pathlib import Path

import numpy as np
import pytest

from npattn.models import hybrid, sampling
from npattn.models.hybrid import Config

GOLDEN = Path(__file__).parent / "golden" / "models"
ABOUT = json.loads((GOLDEN / "provenance.json").read_text())
NAMES = sorted(ABOUT)


@cache
def recorded(name):
    """(config, weights in float64, the recorded arrays)."""
    with np.load(GOLDEN / f"{name}.npz") as z:
        z = dict(z)
    widened = {key: (x.astype(np.uint32) << 16).view(np.float32).astype(np.float64) for key, x in z.items() if key.startswith("weights.")}
    weights = {key.removeprefix("weights."): x for key, x in widened.items()}
    return Config.from_dict(ABOUT[name]["config"]), weights, z


def close(a, b, tolerance):
    assert a.shape == b.shape
    assert np.abs(a - b).max(initial=0) <= tolerance * np.abs(b).max(initial=0)


def close_caches(mine, theirs, tolerance=1e-10):
    assert (mine.mask == theirs.mask).all()
    for a, b in zip(mine.layers, theirs.layers, strict=True):
        assert type(a) is type(b)
        for x, y in zip(a, b):
            close(x, y, tolerance)


def tiny(**changes):
    """A model of two layers, smaller than the recorded ones."""
    config = Config.from_dict(dict(model_type="qwen3_5_text", vocab_size=11, hidden_size=6, intermediate_size=5, num_hidden_layers=2, full_attention_interval=2,
                                   num_attention_heads=4, num_key_value_heads=2, head_dim=4, linear_num_key_heads=1, linear_num_value_heads=2,
                                   linear_key_head_dim=3, linear_value_head_dim=2, partial_rotary_factor=0.5) | changes)
    return config, hybrid.random_weights(config, np.random.default_rng(0), np.float64)


# --- against Transformers ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", NAMES)
def test_logits_and_residual_stream(name):
    config, weights, z = recorded(name)
    ids = z["forward_f64.input_ids"]
    close(hybrid.forward(ids, weights, config)[0], z["forward_f64.logits"], 1e-10)
    embedded, *layers, _ = hybrid.residuals(ids, weights, config)
    assert (embedded == weights["model.embed_tokens.weight"][ids]).all()
    for i, x in enumerate(layers):
        close(x, z[f"forward_f64.layer{i}"], 1e-10)
    assert i == 3


@pytest.mark.parametrize("name", NAMES)
def test_float32(name):
    """The same source in float32 is as near to the float64 logits as the framework's own float32 run is near to ours: 2e-4."""
    config, weights, z = recorded(name)
    logits, cache = hybrid.forward(z["forward_f64.input_ids"], {n: w.astype(np.float32) for n, w in weights.items()}, config)
    assert {x.dtype for x in (logits, *(part for layer in cache.layers for part in layer))} == {np.dtype(np.float32)}
    for reference in (z["forward_f64.logits"], z["forward_f32.logits_f32"]):
        assert np.abs(logits - reference).max() < 2e-4


@pytest.mark.parametrize("name", NAMES)
def test_left_padded_batch(name):
    config, weights, z = recorded(name)
    ids, mask = z["padded.input_ids"], z["padded.attention_mask"]
    assert mask.sum(-1).tolist() == [31, 37]
    logits, end = hybrid.forward(ids, weights, config, attention_mask=mask)
    close(logits[mask == 1], z["padded.logits"], 1e-10)
    alone, _ = hybrid.forward(ids[0, 6:], weights, config)                   # no batch axis, no padding, other positions
    close(logits[0, 6:], alone, 1e-10)
    first, cache = hybrid.forward(ids[:, :20], weights, config, attention_mask=mask[:, :20])
    for again in (dict(attention_mask=mask), {}):                            # the cache knows what was padding
        later, whole = hybrid.forward(ids[:, 20:], weights, config, cache=cache, **again)
        close(np.concatenate([first, later], 1), logits, 1e-10)
        close_caches(whole, end)
    other = ids.copy()
    other[0, :6] = 1                                                         # what stands under the padding is nobody's business
    close(hybrid.forward(other, weights, config, attention_mask=mask)[0][mask == 1], z["padded.logits"], 1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_generation_and_caches(name):
    config, weights, z = recorded(name)
    prompt, tokens = z["generate.prompt"], z["generate.tokens"]
    out = hybrid.generate(prompt, weights, config, max_new_tokens=12)
    assert out.dtype == np.int64 and (out == np.concatenate([prompt, tokens], 1)).all()
    _, after = hybrid.forward(prompt, weights, config)
    _, one = hybrid.forward(tokens[:, :1], weights, config, cache=after)
    for cache, when in ((after, "prefill"), (one, "after_1_decode")):
        for i, (kind, state) in enumerate(zip(config.layer_types, cache.layers)):
            key = f"generate.cache.{when}.layer{i}."
            pairs = [(state.k, "keys"), (state.v, "values")] if kind == "full_attention" else [(state.conv.mT, "conv_state"), (state.S, "recurrent_state")]
            for mine, its in pairs:
                close(mine, z[key + its], 1e-10)
    close(hybrid.forward(z["generate.continue_ids"], weights, config, cache=after)[0], z["generate.continue_logits"], 1e-10)


@pytest.mark.parametrize("name", NAMES)
def test_loss_and_gradients(name):
    config, weights, z = recorded(name)
    loss, gradients = hybrid.loss_and_gradients(z["grads.input_ids"], weights, config)
    assert abs(loss - z["grads.loss"]) < 1e-10
    assert {n: d.shape for n, d in gradients.items()} == hybrid.shapes(config)
    recorded_names = set()
    for key, its in z.items():
        kind, _, parameter = key.removeprefix("grads.").partition(".")
        if key.startswith("grads.grad"):
            recorded_names.add(parameter)
            d = gradients[parameter]
            if kind == "grad":
                close(d, its, 1e-9)
            elif kind == "grad_norm":
                assert abs(np.linalg.norm(d) - its) < 1e-9 * its
            else:
                assert np.abs(d.reshape(-1, d.shape[-1])[0] - its).max() <= 1e-9 * np.abs(d).max()
    assert recorded_names == gradients.keys()


# --- gradients ---------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("changes", [{}, dict(tie_word_embeddings=True, attention_bias=True), dict(
    model_type="qwen3_next", num_experts=3, num_experts_per_tok=2, moe_intermediate_size=3, shared_expert_intermediate_size=2, norm_topk_prob=False,
    mlp_only_layers=[1])])
def test_every_entry_of_every_gradient(changes):
    """Against the complex step, one entry of one weight after the other."""
    config, weights = tiny(**changes)
    ids = np.array([[1, 4, 4, 7, 0], [2, 2, 9, 10, 3]])

    def loss(weights):
        logits = hybrid.forward(ids, weights, config)[0][:, :-1]
        e = np.exp(logits)
        return -np.log(np.take_along_axis(e, ids[:, 1:, None], -1)[..., 0] / e.sum(-1)).mean()

    value, gradients = hybrid.loss_and_gradients(ids, weights, config)
    assert abs(value - loss(weights)) < 1e-14
    assert gradients.keys() == weights.keys()
    for name, w in weights.items():
        found = np.zeros(w.shape)
        for at in np.ndindex(w.shape):
            moved = w.astype(complex)
            moved[at] += 1e-30j
            found[at] = loss(weights | {name: moved}).imag / 1e-30
        assert np.abs(found - gradients[name]).max() < 1e-12, name


def test_gradients_keep_types_and_leave_weights_alone():
    config, weights = tiny()
    weights = {n: w.astype(np.float32 if "layers.0" in n else np.float64) for n, w in weights.items()}
    for w in weights.values():
        w.flags.writeable = False
    _, gradients = hybrid.loss_and_gradients(np.arange(8), weights, config)
    assert {n: d.dtype for n, d in gradients.items()} == {n: w.dtype for n, w in weights.items()}


# --- caches ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", ["qwen3_5_tied_vdim", "qwen3_next_moe"])
@pytest.mark.parametrize("cuts", [[1] * 37, [36, 1], [2, 0, 35], [10, 11, 16]])
def test_any_split_is_one_call(name, cuts):
    config, weights, z = recorded(name)
    ids, parts, state = z["forward_f64.input_ids"], [], None
    for part in np.split(ids, np.cumsum(cuts)[:-1], axis=1):
        logits, state = hybrid.forward(part, weights, config, cache=state)
        parts.append(logits)
    close(np.concatenate(parts, 1), z["forward_f64.logits"], 1e-10)
    close_caches(state, hybrid.forward(ids, weights, config)[1])


def test_padding_one_token_at_a_time():
    """Also when a pad comes alone."""
    config, weights = tiny()
    ids, mask, state, parts = np.array([[3, 3, 5, 1, 4]]), np.array([[0, 0, 1, 1, 1]]), None, []
    for t in range(5):
        logits, state = hybrid.forward(ids[:, t:t + 1], weights, config, cache=state, attention_mask=mask[:, :t + 1])
        parts.append(logits)
    close(np.concatenate(parts, 1)[:, 2:], hybrid.forward(ids[:, 2:], weights, config)[0], 1e-12)


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_next_moe"])
def test_a_rejected_draft_is_undone(name):
    """Four drafted tokens are checked in one call, two of them accepted: going on from the old cache gives what a run on the accepted tokens gives."""
    config, weights, z = recorded(name)
    prompt, right = z["generate.prompt"], z["generate.tokens"]
    _, before = hybrid.forward(prompt, weights, config)
    kept = [[part.copy() for part in layer] for layer in before.layers]
    draft = right[:, :4].copy()
    draft[:, 2:] = (draft[:, 2:] + 1) % config.vocab_size
    logits, spoilt = hybrid.forward(draft, weights, config, cache=before)
    assert (logits[:, :2].argmax(-1) == right[:, 1:3]).all() and (right[:, 2:3] != draft[:, 2:3]).all()
    for layer, copies in zip(before.layers, kept):
        for part, copy in zip(layer, copies):
            assert (part == copy).all()
    _, accepted = hybrid.forward(draft[:, :2], weights, config, cache=before)
    close_caches(accepted, hybrid.forward(np.concatenate([prompt, draft[:, :2]], 1), weights, config)[1])
    state, tokens = accepted, right[:, 2:3]
    for t in range(2, 11):
        logits, state = hybrid.forward(tokens, weights, config, cache=state)
        tokens = logits[:, -1:].argmax(-1)
        assert (tokens[:, 0] == right[:, t + 1]).all()
    assert np.abs(spoilt.layers[0].S - hybrid.forward(right[:, :4], weights, config, cache=before)[1].layers[0].S).max() > 1e-3


@pytest.mark.parametrize("name", ["qwen3_5", "qwen3_next_moe"])
def test_a_cache_holds_no_more_memory_than_its_arrays(name):
    """None of them is a view of something larger, such as the inputs of the convolution."""
    config, weights, z = recorded(name)
    _, cache = hybrid.forward(z["forward_f64.input_ids"], weights, config)
    for part in (*(part for layer in cache.layers for part in layer), cache.mask):
        owner = part if part.base is None else part.base
        assert owner.base is None and owner.nbytes == part.nbytes


def test_no_token():
    config, weights = tiny()
    _, before = hybrid.forward(np.array([1, 2, 3]), weights, config)
    logits, after = hybrid.forward(np.zeros(0, int), weights, config, cache=before)
    assert logits.shape == (0, 11)
    close_caches(after, before, 0)


# --- choosing tokens ---------------------------------------------------------------------------------------------

def test_sampling_follows_the_probabilities():
    p = np.array([.1, .4, .2, .3])
    rng, count = np.random.default_rng(0), 40_000
    draw = lambda t, **k: np.bincount(sampling.choose(np.broadcast_to(np.log(p), (count, 4)), t, rng=rng, **k), minlength=4) / count
    near = lambda found, expected: (np.abs(found - np.array(expected)) < 0.012).all() and (found[np.array(expected) == 0] == 0).all()
    assert near(draw(1), p)
    assert near(draw(.5), p * p / (p * p).sum())
    assert near(draw(1, top_k=2), [0, 4 / 7, 0, 3 / 7])
    assert near(draw(1, top_p=.7), [0, 4 / 7, 0, 3 / 7])                     # 0.4 + 0.3 reach 0.7
    assert near(draw(1, top_p=.71), [0, 4 / 9, 2 / 9, 3 / 9])
    assert near(draw(1, top_p=1e-9), [0, 1, 0, 0])
    assert near(draw(1, top_k=3, top_p=.7), [0, 4 / 7, 0, 3 / 7])            # of the 3 left, 4/9 + 3/9 reach 0.7
    assert near(draw(1, top_k=9, top_p=1), p)


def test_the_tail_of_a_large_vocabulary_is_drawn():
    """One token of 0.999 and 250 000 of 4e-9 each: a running sum in float32 would never move, and the first one always be drawn."""
    class Fixed:
        def random(self, shape):
            return np.full(shape, 0.9995)
    logits = np.full(250_001, -19.3, np.float32)
    logits[0] = 0
    tail = np.exp(-19.3)
    total = 1 + 250_000 * tail
    expected = (0.9995 * total - 1) / tail                                   # 129 000 tokens into the tail
    for more in ({}, dict(top_p=1)):
        assert abs(sampling.choose(logits, 1, rng=Fixed(), **more) - expected) < 0.001 * expected


def test_generation_draws_from_its_generator():
    config, weights = tiny()
    prompt = np.array([[1, 2], [3, 4]], np.uint8)
    draw = lambda seed, **k: hybrid.generate(prompt, weights, config, max_new_tokens=20, temperature=1., rng=np.random.default_rng(seed), **k)
    assert (draw(1) == draw(1)).all() and (draw(1) != draw(2)).any()
    assert (draw(1, top_k=1) == hybrid.generate(prompt, weights, config, max_new_tokens=20)).all()
    assert hybrid.generate(prompt[0], weights, config, max_new_tokens=3, temperature=2.).shape == (5,)
    assert (hybrid.generate(prompt, weights, config, max_new_tokens=0) == prompt).all()


def test_end_of_sequence():
    """A row that is done repeats its last token; the others are not disturbed; the last one to end ends it all."""
    config, weights, z = recorded("qwen3_5")
    prompt, tokens = z["generate.prompt"], z["generate.tokens"]
    first, second = tokens[0, 3], tokens[1, 6]
    assert first not in tokens[0, :3] and first not in tokens[1, :6] and second not in tokens[1, :6] and second not in tokens[0, :4]
    out = hybrid.generate(prompt, weights, config, max_new_tokens=12, eos=[int(first), int(second)])[:, 9:]
    assert (out[0] == [*tokens[0, :4], *[first] * 3]).all() and (out[1] == tokens[1, :7]).all()
    alone = hybrid.generate(prompt[0], weights, config, max_new_tokens=12, eos=int(first))
    assert (alone[9:] == tokens[0, :4]).all()


def test_generation_from_a_padded_prompt():
    config, weights, z = recorded("qwen3_next_dense")
    prompt, tokens = z["generate.prompt"], z["generate.tokens"]
    padded = np.concatenate([np.full((2, 3), 5), prompt], 1)
    padded[1] = np.concatenate([prompt[1, :1], prompt[1, :1], prompt[1, :1], prompt[1]])
    out = hybrid.generate(padded, weights, config, max_new_tokens=6, attention_mask=np.array([[0] * 3 + [1] * 9, [1] * 12]))
    assert (out[0, 12:] == tokens[0, :6]).all()
    assert (out[1] == hybrid.generate(padded[1], weights, config, max_new_tokens=6)).all()


def test_progress_on_a_terminal(monkeypatch, capsys):
    config, weights = tiny()
    seconds = iter(range(100))
    monkeypatch.setattr(hybrid.time, "monotonic", lambda: next(seconds))
    monkeypatch.setattr(sampling.sys.stderr, "isatty", lambda: True, raising=False)
    hybrid.generate(np.array([1]), weights, config, max_new_tokens=4)
    text = capsys.readouterr().err
    assert "3 of 4 tokens, 1.0 a second" in text and "2 of 4" not in text and text.endswith("\r" + " " * 60 + "\r")
    monkeypatch.setattr(sampling.sys.stderr, "isatty", lambda: False, raising=False)
    hybrid.generate(np.array([1]), weights, config, max_new_tokens=4)
    assert capsys.readouterr().err == ""


# --- what is refused ---------------------------------------------------------------------------------------------

def calls():
    """(error, what it says, ids, further arguments)."""
    config, weights = tiny()
    _, cache = hybrid.forward(np.array([[1, 2, 3]]), weights, config)
    _, spoilt = hybrid.forward(np.array([[1, 2, 3]]), weights, config, attention_mask=np.array([[1, 1, 0]]))
    one = np.array([[5]])
    return [
        (TypeError, "ids must be an array of integers, not float64", np.array([1., 2]), {}),
        (TypeError, "ids must be an array of integers, not list", [1, 2], {}),
        (ValueError, r"ids must be \(..., T\)", np.array(3), {}),
        (ValueError, r"ids must be from 0 to 10, not -1 … 4: ids \(2,\)", np.array([-1, 4]), {}),
        (ValueError, "ids must be from 0 to 10, not 0 … 11", np.array([0, 11]), {}),
        (ValueError, r"attention_mask \(1, 1\) must be \(1, 4\): 3 cached tokens and ids \(1, 1\)", one,
         dict(cache=cache, attention_mask=np.ones((1, 1), int))),
        (ValueError, "attention_mask must be an array of booleans, or of the integers 0 and 1, not float64", one, dict(attention_mask=np.ones((1, 1)))),
        (ValueError, "attention_mask must be an array of booleans", one, dict(attention_mask=np.array([[2]]))),
        (ValueError, "attention_mask must be an array of booleans.*, not list", one, dict(attention_mask=[[1]])),
        (ValueError, "attention_mask differs from that of the 3 cached tokens", one, dict(cache=cache, attention_mask=np.array([[0, 1, 1, 1]]))),
        (TypeError, "cache must be what `forward` returned, or None, not tuple", one, dict(cache=tuple(cache))),
        (ValueError, r"cache of 2 layers, mask \(1, 3\), does not fit 2 layers and ids \(2, 1\)", np.array([[5], [5]]), dict(cache=cache)),
        (ValueError, "cache was made with padding behind a token", one, dict(cache=spoilt)),
        (ValueError, r"cache is of another model: layer 0 keeps State\(conv=\(1, 4, 10\), S=\(1, 2, 3, 2\)\), not Cache", one,
         dict(cache=cache._replace(layers=cache.layers[::-1]))),
        (ValueError, "layer 1 keeps .*, not NoneType", one, dict(cache=cache._replace(layers=(cache.layers[0], None)))),
        (ValueError, r"layer 1 keeps Cache\(k=\(1, 2, 2, 4\), v=\(1, 2, 2, 4\)\), not Cache\(k=\(1, 2, 3, 4\), v=\(1, 2, 3, 4\)\)", one,
         dict(cache=cache._replace(mask=cache.mask[:, 1:]))),
        (ValueError, r"layer 0 keeps .*, not State\(conv=\(1, 3, 10\), S=\(1, 2, 3, 2\)\)", one,
         dict(cache=hybrid.forward(one, *tiny(linear_conv_kernel_dim=3)[::-1])[1])),
    ]


@pytest.mark.parametrize("case", range(17))
def test_refused_calls(case):
    config, weights = tiny()
    error, text, ids, arguments = calls()[case]
    with pytest.raises(error, match=text):
        hybrid.forward(ids, weights, config, **arguments)
    assert len(calls()) == 17


@pytest.mark.parametrize("text, ids, arguments", [
    (r"T at least 1: ids \(1, 0\)", np.zeros((1, 0), int), {}), ("max_new_tokens must be", None, dict(max_new_tokens=-1)),
    ("temperature must be", None, dict(temperature=-1)), ("temperature must be", None, dict(temperature=np.nan)),
    ("temperature must be .*, not '1'", None, dict(temperature="1")), ("temperature must be .*, not None", None, dict(temperature=None)),
    ("temperature must be", None, dict(temperature=np.ones(1))), ("top_p must be .*, not '1'", None, dict(temperature=1, top_p="1")),
    ("top_k must be", None, dict(temperature=1, top_k=0)), ("top_p must be", None, dict(temperature=1, top_p=0)),
    ("top_p must be", None, dict(temperature=1, top_p=1.5)), ("need a temperature", None, dict(top_k=3)), ("need a temperature", None, dict(top_p=.5)),
    ("eos must be", None, dict(eos="end"))])
def test_refused_generation(text, ids, arguments):
    config, weights = tiny()
    with pytest.raises(ValueError, match=text):
        hybrid.generate(np.array([[1]]) if ids is None else ids, weights, config, **dict(max_new_tokens=1) | arguments)


def test_what_is_no_generator_config_or_mapping_is_refused():
    config, weights = tiny()
    ids = np.array([1, 2])
    for rng in (5, np.random, np.random.RandomState(0)):
        with pytest.raises(TypeError, match=r"rng must be a NumPy Generator, such as numpy.random.default_rng\(0\), not"):
            hybrid.generate(ids, weights, config, max_new_tokens=1, temperature=1, rng=rng)
    for call in (hybrid.forward, hybrid.loss_and_gradients, lambda *x: hybrid.generate(*x, max_new_tokens=1)):
        with pytest.raises(TypeError, match="config must be a Config, which Config.from_dict makes, not dict"):
            call(ids, weights, dict(model_type="qwen3_5_text"))
        with pytest.raises(TypeError, match="weights must be a mapping of names to arrays, not list"):
            call(ids, [weights], config)
        with pytest.raises(TypeError, match="weights must be named by strings, not 3"):
            call(ids, weights | {3: np.ones(1)}, config)


def test_a_loss_needs_two_tokens():
    config, weights = tiny()
    for shape in ((1,), (2, 1), (0, 3)):
        with pytest.raises(ValueError, match="T at least 2"):
            hybrid.loss_and_gradients(np.zeros(shape, int), weights, config)


# --- weights -----------------------------------------------------------------------------------------------------

def mixture():
    return tiny(model_type="qwen3_5_moe_text", num_experts=3, num_experts_per_tok=2, moe_intermediate_size=4, shared_expert_intermediate_size=2)


def test_names_of_the_hub():
    """The prefix of the vision-language wrapper, parts that are not ours, experts one by one."""
    config, weights = mixture()
    ids = np.arange(9)
    expected = hybrid.forward(ids, weights, config)[0]
    hub = {"model.visual.patch_embed.weight": np.zeros(3), "mtp.fc.weight": np.zeros((2, 2))}
    for name, w in weights.items():
        name = name.replace("model.", "model.language_model.")
        if name.endswith("experts.gate_up_proj"):
            for e in range(3):
                stem = name.removesuffix("gate_up_proj") + f"{e}."
                hub |= {stem + "gate_proj.weight": w[e, :4], stem + "up_proj.weight": w[e, 4:]}
        elif name.endswith("experts.down_proj"):
            hub |= {name.removesuffix("down_proj") + f"{e}.down_proj.weight": w[e] for e in range(3)}
        else:
            hub[name] = w
    assert (hybrid.forward(ids, hub, config)[0] == expected).all()
    del hub["model.language_model.layers.1.mlp.experts.2.up_proj.weight"]
    with pytest.raises(ValueError, match=r"missing: model.layers.1.mlp.experts.2.up_proj.weight$"):
        hybrid.forward(ids, hub, config)


def test_weights_that_do_not_fit_are_listed():
    config, weights = tiny()
    bad = dict(weights)
    del bad["model.norm.weight"], bad["model.layers.0.linear_attn.A_log"]
    bad |= {"lm_head.weight": np.zeros((6, 11)), "model.layers.2.mlp.up_proj.weight": np.zeros(1), "model.layers.1.self_attn.q_norm.weight": np.zeros(4, int),
            "model.language_model.embed_tokens.weight": np.zeros((11, 6))}
    with pytest.raises(ValueError) as error:
        hybrid.forward(np.arange(3), bad, config)
    assert str(error.value) == (
        "the weights do not fit the config; there twice: model.language_model.embed_tokens.weight; missing: model.layers.0.linear_attn.A_log, "
        "model.norm.weight; no array of floats: model.layers.1.self_attn.q_norm.weight (int64); "
        "of another shape: lm_head.weight (6, 11), not (11, 6); not needed: model.layers.2.mlp.up_proj.weight")
    for x, kind in (([0.] * 6, "list"), (None, "NoneType"), (np.zeros(6, np.uint16), "uint16"), (np.ma.zeros(6), "MaskedArray")):
        with pytest.raises(ValueError, match=rf"; no array of floats: model.norm.weight \({kind}\)$"):
            hybrid.prepare(weights | {"model.norm.weight": x}, config)
    with pytest.raises(ValueError, match="and 7 more"):
        hybrid.prepare(weights | {f"x{i}": np.zeros(1) for i in range(47)}, config)


def test_tied_heads():
    config, weights = tiny(tie_word_embeddings=True)
    assert "lm_head.weight" not in weights
    E = weights["model.embed_tokens.weight"]
    ids = np.arange(5)
    expected = hybrid.forward(ids, weights, config)[0]
    assert (hybrid.forward(ids, weights | {"lm_head.weight": E.copy()}, config)[0] == expected).all()
    for other in (E + 1, np.concatenate([E, E]), E[:1], None):
        with pytest.raises(ValueError, match="not needed: lm_head.weight .it is not the embedding"):
            hybrid.forward(ids, weights | {"lm_head.weight": other}, config)
    free = replace(config, tie_word_embeddings=False)
    assert (hybrid.forward(ids, weights | {"lm_head.weight": E}, free)[0] == expected).all()


def test_weights_are_looked_at_once_and_read_layer_by_layer():
    config, weights = tiny()
    read = []

    class Lazy(dict):
        def __getitem__(self, name):
            read.append(name)
            return super().__getitem__(name)

        def about(self, name):
            return super().__getitem__(name).shape, np.dtype(np.float64)

    prepared = hybrid.prepare(Lazy(weights), config)
    assert read == [] and hybrid.prepare(prepared, config) is prepared and len(prepared) == len(weights)
    assert "lm_head.weight" in prepared and "no" not in prepared and read == []
    hybrid.forward(np.arange(3), prepared, config)
    assert sorted(read) == sorted(weights)                                   # each of them once
    layers = [name.split(".")[2] for name in read if ".layers." in name]
    assert layers == sorted(layers)


def test_random_weights_make_a_lively_model():
    config, weights, _ = recorded("qwen3_5")
    weights = hybrid.random_weights(config, np.random.default_rng(3))
    assert {n: w.shape for n, w in weights.items()} == hybrid.shapes(config) and {w.dtype for w in weights.values()} == {np.dtype(np.float32)}
    logits, cache = hybrid.forward(np.random.default_rng(4).integers(97, size=(1, 50)), weights, config)
    assert 0.3 < logits.std() < 3 and np.isfinite(logits).all()
    assert np.abs(cache.layers[0].S).max() > 0.1
    assert all(w.std() > 0 for w in weights.values())


# --- configuration -----------------------------------------------------------------------------------------------

# Fields as they stand in the config.json of published checkpoints.
WRAPPED = {
    "architectures": ["Qwen3_5MoeForConditionalGeneration"], "image_token_id": 248056, "model_type": "qwen3_5_moe", "tie_word_embeddings": False,
    "transformers_version": "4.57.0.dev0", "video_token_id": 248057, "vision_config": {"depth": 27, "hidden_act": "gelu_pytorch_tanh"},
    "vision_end_token_id": 248054, "vision_start_token_id": 248053, "text_config": {
        "attention_bias": False, "attention_dropout": 0.0, "attn_output_gate": True, "dtype": "bfloat16", "eos_token_id": 248044,
        "full_attention_interval": 4, "head_dim": 256, "hidden_act": "silu", "hidden_size": 2048, "initializer_range": 0.02,
        "layer_types": (["linear_attention"] * 3 + ["full_attention"]) * 10, "linear_conv_kernel_dim": 4, "linear_key_head_dim": 128,
        "linear_num_key_heads": 16, "linear_num_value_heads": 32, "linear_value_head_dim": 128, "max_position_embeddings": 262144, "mlp_only_layers": [],
        "model_type": "qwen3_5_moe_text", "moe_intermediate_size": 512, "mtp_num_hidden_layers": 1, "mtp_use_dedicated_embeddings": False,
        "num_attention_heads": 16, "num_experts": 256, "num_experts_per_tok": 8, "num_hidden_layers": 40, "num_key_value_heads": 2,
        "output_gate_type": "swish", "pad_token_id": None, "rms_norm_eps": 1e-06, "router_aux_loss_coef": 0.001, "shared_expert_intermediate_size": 512,
        "use_cache": True, "vocab_size": 248320, "mamba_ssm_dtype": "float32", "partial_rotary_factor": 0.25, "rope_parameters": {
            "mrope_interleaved": True, "mrope_section": [11, 11, 10], "rope_type": "default", "rope_theta": 10000000, "partial_rotary_factor": 0.25}}}


def test_configuration_of_a_checkpoint():
    config = Config.from_dict(WRAPPED)
    assert config.model_type == "qwen3_5_moe_text" and config.rope_theta == 1e7 and config.rotary_width == 64 and not config.tie_word_embeddings
    assert [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"] == list(range(3, 40, 4))
    assert all(map(config.is_mixture, range(40)))
    assert hybrid.shapes(config)["model.layers.0.mlp.experts.gate_up_proj"] == (256, 1024, 2048)
    text = {n: x for n, x in WRAPPED["text_config"].items() if n not in ("layer_types", "model_type")}
    assert Config.from_dict(WRAPPED | {"text_config": text}) == config


@pytest.mark.parametrize("outer, inner, tied", [
    (True, None, True), (True, False, True), (False, True, False), (True, True, True), (None, True, True), (None, None, False)])
def test_the_wrapper_says_whether_the_head_is_tied(outer, inner, tied):
    """Transformers asks the outer config; the inner one, saved with it, may hold the default that was not meant."""
    given = lambda x: {} if x is None else dict(tie_word_embeddings=x)
    config = Config.from_dict(dict(model_type="qwen3_5", text_config=dict(model_type="qwen3_5_text") | given(inner)) | given(outer))
    assert config.tie_word_embeddings is tied


def test_size_of_a_model():
    """24 layers, 18 of them linear: 752 393 024 parameters in 320 tensors, counted by the framework."""
    config = Config.from_dict(dict(model_type="qwen3_5_text", hidden_size=1024, num_hidden_layers=24, num_attention_heads=8, num_key_value_heads=2,
                                   head_dim=256, intermediate_size=3584, linear_num_value_heads=16, rope_theta=1e7, tie_word_embeddings=True))
    assert [i for i, kind in enumerate(config.layer_types) if kind == "full_attention"] == [3, 7, 11, 15, 19, 23]
    every = hybrid.shapes(config)
    assert len(every) == 320 and sum(np.prod(shape) for shape in every.values()) == 752_393_024


def test_both_spellings_of_the_rotary_settings():
    old = Config.from_dict(dict(model_type="qwen3_next", rope_theta=5e5, partial_rotary_factor=0.5, rope_scaling=None))
    new = Config.from_dict(dict(model_type="qwen3_next", rope_parameters=dict(rope_type="default", rope_theta=5e5, partial_rotary_factor=0.5)))
    assert old == new and old.rope_theta == 5e5 and old.rotary_width == 128


def test_which_layers_are_mixtures():
    small = dict(model_type="qwen3_next", num_hidden_layers=6)
    mixtures = lambda **more: [i for i in range(6) if Config.from_dict(small | more).is_mixture(i)]
    assert mixtures() == [0, 1, 2, 3, 4, 5] and mixtures(mlp_only_layers=[1, 4]) == [0, 2, 3, 5]
    assert mixtures(decoder_sparse_step=2) == [1, 3, 5] and mixtures(num_experts=0) == []


@pytest.mark.parametrize("text, fields", [
    ("model_type must be one of .*, not 'llama'", dict(model_type="llama")),
    ("model_type must be one of .*, not None", dict(model_type=None)),
    ("fields that this model does not know, which may change the result: hiden_size, quantization_config", dict(quantization_config={}, hiden_size=3)),
    ("hidden_act must be 'silu' or 'swish', not 'gelu'", dict(hidden_act="gelu")),
    ("attn_output_gate must be True, not False", dict(attn_output_gate=False)),
    ("output_gate_type must be", dict(output_gate_type="sigmoid")),
    ("output_router_logits must be False", dict(output_router_logits=True)),
    ("rope_type must be 'default', not 'yarn'", dict(rope_parameters=dict(rope_type="yarn"))),
    ("rope_type must be 'default', not 'linear'", dict(rope_scaling=dict(type="linear"))),
    ("rope_parameters.factor is not known", dict(rope_parameters=dict(factor=2))),
    ("rope_theta is 10.0 and, under rope_parameters, 20.0", dict(rope_theta=10., rope_parameters=dict(rope_theta=20.))),
    ("num_experts must be 0 for qwen3_5_text, not 8", dict(num_experts=8)),
    ("norm_topk_prob must be True for qwen3_5_moe_text", dict(model_type="qwen3_5_moe_text", norm_topk_prob=False)),
    ("mlp_only_layers must be", dict(model_type="qwen3_5_moe_text", mlp_only_layers=[1])),
    ("model_type must be one of .*, not \\['qwen3_next'\\]", dict(model_type=["qwen3_next"])),
    ("rope_parameters must be an object of names and values, not \\[1\\]", dict(rope_parameters=[1])),
    ("layer_types must be a list, not 'full_attention'", dict(layer_types="full_attention")),
    ("layer_types must be a list, not 4", dict(layer_types=4)),
    ("mlp_only_layers must be a list, not '12'", dict(model_type="qwen3_next", mlp_only_layers="12")),
    ("mlp_only_layers.0. must be an integer of at least 0, not '1'", dict(model_type="qwen3_next", mlp_only_layers=["1"])),
    ("layer_types has 2 entries for num_hidden_layers = 3", dict(layer_types=["full_attention"] * 2, num_hidden_layers=3)),
    ("layer_types must be .*, not 'sliding_attention' for layer 0", dict(layer_types=["sliding_attention"])),
    ("hidden_size must be an integer of at least 1, not 0", dict(hidden_size=0)),
    ("hidden_size must be an integer of at least 1, not 64.0", dict(hidden_size=64.)),
    ("num_hidden_layers must be an integer of at least 1, not True", dict(num_hidden_layers=True)),
    ("rms_norm_eps must be a positive number, not '1e-6'", dict(rms_norm_eps="1e-6")),
    ("tie_word_embeddings must be true or false, not 1", dict(tie_word_embeddings=1)),
    ("num_attention_heads = 16 is no multiple of num_key_value_heads = 3", dict(num_key_value_heads=3)),
    ("linear_num_value_heads = 33 is no multiple", dict(linear_num_value_heads=33)),
    ("partial_rotary_factor = 0.01 turns 1 of head_dim = 100", dict(head_dim=100, partial_rotary_factor=0.01)),
    ("partial_rotary_factor = 2.0 turns 512", dict(partial_rotary_factor=2.)),
    ("num_experts_per_tok = 10 is more than num_experts = 4", dict(model_type="qwen3_next", num_experts=4)),
    ("moe_intermediate_size must be an integer of at least 1, not 0", dict(model_type="qwen3_next", moe_intermediate_size=0)),
    ("intermediate_size must be an integer of at least 1, not 0", dict(intermediate_size=0))])
def test_refused_configurations(text, fields):
    with pytest.raises(ValueError, match=text):
        Config.from_dict(dict(model_type="qwen3_5_text") | fields)
    with pytest.raises(ValueError, match=text):
        Config.from_dict({"architectures": [], "text_config": dict(model_type="qwen3_5_text") | fields})


def test_what_is_no_configuration():
    for x in (None, "config.json", [1], Config.from_dict(dict(model_type="qwen3_next"))):
        with pytest.raises(TypeError, match=f"config must be a dict, the contents of a config.json or what .*, not {type(x).__name__}"):
            Config.from_dict(x)
    with pytest.raises(ValueError, match="text_config must be an object of names and values, not 'x'"):
        Config.from_dict(dict(text_config="x"))
