"""Gated DeltaNet, gated attention and the decoder layer: against Transformers (float64), against the tape through their mechanisms' loops, split, padded."""
import numpy as np
import pytest

from npattn.core.states import Cache
from npattn.delta import gated_delta_rule
from npattn.layers import decoder, gated_attention, gated_deltanet, moe, rotary
from npattn.layers.gated_deltanet import State
from npattn.proof import vjp
from npattn.softmax import softmax_attention

from test_layer_parts import MODELS, close, close_gradients, normal, recorded

C, H, G, K, V, D, R, TAPS = 7, 2, 3, 5, 4, 6, 4, 3       # every size different: what is confused does not fit
CHANNELS = 2 * H * K + H * G * V


def weights_of(name, seed=0):
    shapes = dict(
        separate={"in_proj_qkv.weight": (CHANNELS, C), "in_proj_z.weight": (H * G * V, C), "in_proj_b.weight": (H * G, C), "in_proj_a.weight": (H * G, C)},
        by_head={"in_proj_qkvz.weight": (CHANNELS + H * G * V, C), "in_proj_ba.weight": (2 * H * G, C)},
        attention={"q_proj.weight": (2 * H * G * D, C), "k_proj.weight": (H * D, C), "v_proj.weight": (H * D, C), "o_proj.weight": (C, H * G * D),
                   "q_proj.bias": (2 * H * G * D,), "q_norm.weight": (D,), "k_norm.weight": (D,)},
        swiglu={"gate_proj.weight": (8, C), "up_proj.weight": (8, C), "down_proj.weight": (C, 8)},
        mixture={"gate.weight": (5, C), "experts.gate_up_proj": (5, 8, C), "experts.down_proj": (5, C, 4), "shared_expert.gate_proj.weight": (3, C),
                 "shared_expert.up_proj.weight": (3, C), "shared_expert.down_proj.weight": (C, 3), "shared_expert_gate.weight": (1, C)})[name]
    if name in ("separate", "by_head"):
        shapes |= {"conv1d.weight": (CHANNELS, 1, TAPS), "A_log": (H * G,), "dt_bias": (H * G,), "norm.weight": (V,), "out_proj.weight": (C, H * G * V)}
    return dict(zip(shapes, normal(seed, *shapes.values())))


def decoder_weights(mixer, block):
    prefix = "self_attn." if mixer == "attention" else "linear_attn."
    norms = dict(zip(("input_layernorm.weight", "post_attention_layernorm.weight"), normal(1, (C,), (C,))))
    return norms | {prefix + n: w for n, w in weights_of(mixer).items()} | {"mlp." + n: w for n, w in weights_of(block).items()}


def tables(start, T):
    cos, sin = rotary.tables(np.arange(start, start + T), R)
    return dict(cos=cos, sin=sin)


def fixed_state(n):
    return State(*normal(2, (2, TAPS, CHANNELS), (2, H * G, K, V)))


# name: (module, weights, state of the right shape for n tokens before, options for tokens start … start + T)
LAYERS = {
    "separate": (gated_deltanet, weights_of("separate"), fixed_state, lambda start, T: dict(key_heads=H)),
    "by_head": (gated_deltanet, weights_of("by_head"), fixed_state, lambda start, T: dict(key_heads=H)),
    "attention": (gated_attention, weights_of("attention"), lambda n: Cache(*normal(2, (2, H, n, D), (2, H, n, D))), tables)}
LAYERS |= {
    "linear_swiglu": (decoder, decoder_weights("separate", "swiglu"), LAYERS["separate"][2], lambda start, T: dict(key_heads=H)),
    "linear_mixture": (decoder, decoder_weights("by_head", "mixture"), LAYERS["by_head"][2], lambda start, T: dict(key_heads=H, topk=2, renormalize=False)),
    "attention_mixture": (decoder, decoder_weights("attention", "mixture"), LAYERS["attention"][2], lambda start, T: dict(tables(start, T), topk=2))}


def mask_for(name, n, T, pads):
    """A row without padding, and one with `pads` tokens of it on the left: of the cached tokens too where the layer is to know them."""
    mask = np.arange(n + T) >= np.array([[0], [pads]])
    return mask[:, n:] if name in ("separate", "by_head") else mask


# --- against Transformers ----------------------------------------------------------------------------------------

@pytest.mark.parametrize("model", MODELS)
def test_gated_deltanet_of_transformers(model):
    z, weights = recorded(f"{model}_gated_deltanet_layer")
    x = z["in.hidden_states"]
    close(gated_deltanet.forward(x, weights, key_heads=2)[0], z["out.y"])
    dx, dweights, _ = gated_deltanet.vjp(z["R.y"], x, weights, key_heads=2)
    close_gradients(dx, dweights, z, "hidden_states", 1e-11)


@pytest.mark.parametrize("model", MODELS)
def test_gated_attention_of_transformers(model):
    z, weights = recorded(f"{model}_gated_attention_layer")
    x, turned = z["in.hidden_states"], dict(cos=z["in.cos"][..., :4], sin=z["in.sin"][..., :4])
    close(gated_attention.forward(x, weights, **turned)[0], z["out.y"])
    dx, dweights, _ = gated_attention.vjp(z["R.y"], x, weights, **turned)
    close_gradients(dx, dweights, z, "hidden_states", 1e-11)


# --- gradients ---------------------------------------------------------------------------------------------------

@pytest.fixture
def definitions(monkeypatch):
    """Forward by the definitions, which the tape can follow; the gradients by hand take their own ways, unchanged."""
    monkeypatch.setattr(gated_delta_rule, "chunk", gated_delta_rule.loop)
    monkeypatch.setattr(softmax_attention, "chunk", softmax_attention.loop)
    monkeypatch.setattr(moe, "forward", moe.matrix)


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("n, T, padded", [(0, 6, False), (0, 5, True), (4, 3, False), (4, 3, True), (2, 1, False)])
def test_gradients_against_the_tape(definitions, name, n, T, padded):
    """Of x, of every weight and of the state, from those of y and of the final state."""
    module, weights, state_of, options = LAYERS[name]
    x, dy = normal(3, (2, T, C), (2, T, C))
    state = state_of(n) if n else None
    options = dict(options(n, T), mask=mask_for(name, n, T, n + 2 if n else 3) if padded else None)
    (y, after), pull = vjp(lambda x, s, *w: module.forward(x, dict(zip(weights, w)), state=s, **options), x, state, *weights.values())
    dafter = type(after)(*normal(4, *(leaf.shape for leaf in after)))
    dx, dweights, dstate = module.vjp(dy, x, weights, state=state, dfinal_state=dafter, **options)
    assert dweights.keys() == weights.keys()
    its = pull((dy, dafter))
    for mine, theirs in zip([dx, *(dstate if n else ()), *(dweights[w] for w in weights)], [its[0], *(its[1] or ()), *its[2:]], strict=True):
        close(mine, theirs, 1e-11)
    for mine, theirs in zip(module.vjp(dy, x, weights, state=state, **options)[1].values(),
                            module.vjp(dy, x, weights, state=state, dfinal_state=type(after)(*map(np.zeros_like, after)), **options)[1].values()):
        close(mine, theirs, 1e-13)


@pytest.mark.parametrize("name", LAYERS)
def test_complex_step(name):
    """Through the forms that layers really use, long enough for several blocks of 64: one direction of all arguments at once."""
    module, weights, _, options = LAYERS[name]
    x, dy, direction = normal(5, (1, 70, C), (1, 70, C), (1, 70, C))
    ways = dict(zip(weights, normal(6, *(w.shape for w in weights.values()))))
    moved = module.forward(x + 1e-30j * direction, {n: w + 1e-30j * ways[n] for n, w in weights.items()}, **options(0, 70))[0]
    dx, dweights, _ = module.vjp(dy, x, weights, **options(0, 70))
    expected = (moved.imag * dy).sum() / 1e-30
    assert abs((dx * direction).sum() + sum((dweights[n] * ways[n]).sum() for n in weights) - expected) < 1e-11 * abs(expected)


# --- states ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("name", LAYERS)
def test_any_split_of_a_sequence_gives_the_same(name):
    module, weights, state_of, options = LAYERS[name]
    x, = normal(7, (2, 70, C))
    whole, end = module.forward(x, weights, **options(0, 70))
    for cuts in ([1, 69], [66, 4], [2, 0, 68], [64] + [1] * 6):
        parts, state, start = [], None, 0
        for T in cuts:
            y, state = module.forward(x[:, start:start + T], weights, state=state, **options(start, T))
            parts.append(y)
            start += T
        close(np.concatenate(parts, 1), whole, 1e-11)
        for mine, theirs in zip(state, end):
            close(mine, theirs, 1e-11)


@pytest.mark.parametrize("name", LAYERS)
def test_an_old_state_stays_valid(name):
    """Nothing is written in place: a rejected continuation is undone by going on from the state before it."""
    module, weights, state_of, options = LAYERS[name]
    state = state_of(3)
    for part in (*state, *weights.values()):
        part.flags.writeable = False
    draft, x = normal(8, (2, 4, C), (2, 1, C))
    fresh = module.forward(x, weights, state=state, **options(3, 1))[0]
    _, drafted = module.forward(draft, weights, state=state, **options(3, 4))
    assert drafted is not state
    assert (module.forward(x, weights, state=state, **options(3, 1))[0] == fresh).all()
    for part in (*state, *weights.values()):
        part.flags.writeable = True


@pytest.mark.parametrize("name", LAYERS)
def test_padding_on_the_left_leaves_no_trace(name):
    """Two pads of any content; for attention the positions of the tokens stay as they were (a common shift would only change rounding)."""
    module, weights, _, options = LAYERS[name]
    x, = normal(9, (2, 8, C))
    masked, state = module.forward(x, weights, mask=mask_for(name, 0, 8, 2), **options(0, 8))
    alone, expected = module.forward(x[1:, 2:], weights, **options(2, 6))
    close(masked[1:, 2:], alone)
    close(state[-1][1:, :, -6:], expected[-1][:, :, -6:])
    later, = normal(10, (2, 3, C))
    close(module.forward(later, weights, state=state, mask=mask_for(name, 8, 3, 2), **options(8, 3))[0][1:],
          module.forward(later[1:], weights, state=type(state)(*expected), **options(8, 3))[0])
    with_it, _ = module.forward(x, weights, **options(0, 8))
    assert np.abs(with_it[1, 2:] - masked[1, 2:]).max() > 1e-3
    close(with_it[0], masked[0])


@pytest.mark.parametrize("name", LAYERS)
def test_no_token(name):
    module, weights, state_of, options = LAYERS[name]
    x, state = np.zeros((2, 0, C)), state_of(3)
    y, after = module.forward(x, weights, state=state, **options(3, 0))
    assert y.shape == (2, 0, C)
    for mine, theirs in zip(after, state):
        assert (mine == theirs).all()
    dx, dweights, dstate = module.vjp(x, x, weights, state=state, dfinal_state=state, **options(3, 0))
    assert dx.shape == (2, 0, C) and all((d == 0).all() and d.shape == weights[n].shape for n, d in dweights.items())
    for mine, theirs in zip(dstate, state):
        assert (mine == theirs).all()


@pytest.mark.parametrize("name", LAYERS)
def test_types_and_batch_axes(name):
    module, weights, _, options = LAYERS[name]
    x, = normal(11, (2, 2, 9, C))
    y, _ = module.forward(x, weights, **options(0, 9))
    close(module.forward(x[1, 0], weights, **options(0, 9))[0], y[1, 0])                     # no batch axis at all
    low = {n: w.astype(np.float32) for n, w in weights.items()}
    turned = {n: t.astype(np.float32) if isinstance(t, np.ndarray) else t for n, t in options(0, 9).items()}
    y32, state32 = module.forward(x.astype(np.float32), low, **turned)
    dx32, dweights32, dstate32 = module.vjp(y32, x.astype(np.float32), low, **turned)
    assert {a.dtype for a in (y32, *state32, dx32, *dweights32.values(), *dstate32)} == {np.dtype(np.float32)}
    close(y32, y, 1e-5)
    dx, dweights, _ = module.vjp(y, x, weights, **options(0, 9))
    close(dx32, dx, 1e-4)
    for n in weights:
        close(dweights32[n], dweights[n], 1e-4)


# --- what is refused ---------------------------------------------------------------------------------------------

def call(name, **changes):
    """The layer on five tokens, after three; some arguments changed."""
    module, weights, state_of, options = LAYERS[name]
    x, = normal(13, (2, 5, C))
    return module.forward(changes.pop("x", x), weights, **dict(state=state_of(3), **options(3, 5)) | changes)


ONES = np.ones((2, 5), bool)


@pytest.mark.parametrize("name, error, text, changes", [
    ("separate", ValueError, r"in_proj_qkv.weight \(44, 7\) does not fit x \(2, 5, 8\)", dict(x=np.ones((2, 5, 8)))),
    ("attention", ValueError, r"q_proj.weight \(72, 7\) does not fit x \(2, 5, 8\)", dict(x=np.ones((2, 5, 8)))),
    ("separate", ValueError, r"x must end in \(T, C\).*x \(7,\)", dict(x=np.ones(7), state=None)),
    ("attention", ValueError, r"x must end in \(T, C\).*x \(7,\)", dict(x=np.ones(7), state=None)),
    ("attention", TypeError, "x must be a NumPy or CuPy array, not list", dict(x=[[0.]])),
    ("by_head", TypeError, "x must hold floats.*, not int64", dict(x=np.ones((2, 5, C), int))),
    ("separate", ValueError, "key_heads must be an integer of at least 1, not 0", dict(key_heads=0)),
    ("linear_swiglu", ValueError, "key_heads must be an integer of at least 1, not None", dict(key_heads=None)),
    ("separate", ValueError, r"key_heads = 4 does not fit A_log \(6,\), norm.weight \(4,\) and the 44 channels", dict(key_heads=4)),
    ("separate", TypeError, r"state must be a State\(conv, S\) or None, not tuple", dict(state=(1, 2))),
    ("separate", TypeError, r"state must be a State\(conv, S\) or None, not ndarray", dict(state=np.ones((2, 6, 5, 4)))),
    ("separate", TypeError, r"state must be a State\(conv, S\) or None, not Cache", dict(state=Cache(1, 2))),
    ("attention", TypeError, r"state must be a Cache\(k, v\) or None, not State", dict(state=State(1, 2))),
    ("separate", TypeError, "mask must be an array of booleans, True for real tokens, not float64", dict(mask=np.zeros((2, 5)))),
    ("attention", TypeError, "mask must be an array of booleans, True for real tokens, not int64", dict(mask=np.ones((2, 8), int))),
    ("separate", TypeError, "mask must be an array of booleans, True for real tokens, not list", dict(mask=[[True] * 5] * 2)),
    ("separate", ValueError, r"mask must end in 5, 0 cached and 5 new tokens: mask \(2, 4\), x \(2, 5, 7\)", dict(mask=ONES[:, 1:])),
    ("attention", ValueError, r"mask must end in 8, 3 cached and 5 new tokens: mask \(2, 5\), x \(2, 5, 7\)", dict(mask=ONES)),
    ("separate", ValueError, r"the leading axes do not broadcast: mask \(3, 5\), x \(2, 5, 7\)", dict(mask=np.ones((3, 5), bool))),
    ("attention", ValueError, r"cos and sin must be \(..., T, R/2\), R at most 6: cos \(1, 2\)", tables(3, 1)),
    ("attention", ValueError, r"R at most 6: cos \(5, 4\)", dict(cos=np.ones((5, 4)), sin=np.ones((5, 4)))),
    ("attention_mixture", TypeError, "cos must be a NumPy or CuPy array, not NoneType", dict(cos=None)),
    ("linear_mixture", TypeError, "renormalise", dict(renormalise=False))])
def test_refused_arguments(name, error, text, changes):
    with pytest.raises(error, match=text):
        call(name, **changes)


@pytest.mark.parametrize("name", LAYERS)
def test_refused_gradients(name):
    module, weights, state_of, options = LAYERS[name]
    x, dy = normal(14, (2, 5, C), (5, 2, C))
    for wrong in (dy, x[:1], x[..., :1]):
        with pytest.raises(ValueError, match="dy must have the shape of y"):
            module.vjp(wrong, x, weights, **options(0, 5))
    with pytest.raises(TypeError, match="dfinal_state must be a .* or None, not tuple"):
        module.vjp(x, x, weights, dfinal_state=(1, 2), **options(0, 5))


# --- by hand -----------------------------------------------------------------------------------------------------

def test_rows_of_the_projection_by_key_head():
    """H = 2, G = 2, K = 1, V = 1: rows q k v v z z of key head 0, then of key head 1; b b a a, then b b a a."""
    n = gated_deltanet.Sizes(2, 2, 1, 1)
    weights = {"in_proj_qkvz.weight": np.arange(12.)[:, None], "in_proj_ba.weight": np.arange(8.)[:, None]}
    mix, z, b, a = gated_deltanet.project(np.ones((1, 1)), weights, n)
    assert mix[0].tolist() == [0, 6, 1, 7, 2, 3, 8, 9] and z[0, :, 0].tolist() == [4, 5, 10, 11]
    assert b[0].tolist() == [0, 1, 4, 5] and a[0].tolist() == [2, 3, 6, 7]


def test_both_layouts_are_one_layer():
    """The rows of Qwen3-Next's matrices, sorted into Qwen3.5's."""
    fused = weights_of("by_head")
    S = 2 * K + 2 * G * V
    row = dict(q=lambda j, d: j * S + d, k=lambda j, d: j * S + K + d, v=lambda j, d: j * S + 2 * K + d, z=lambda j, d: j * S + 2 * K + G * V + d)
    rows = lambda part, width: [row[part](j, d) for j in range(H) for d in range(width)]
    big, small = fused.pop("in_proj_qkvz.weight"), fused.pop("in_proj_ba.weight")
    apart = fused | {"in_proj_qkv.weight": big[rows("q", K) + rows("k", K) + rows("v", G * V)], "in_proj_z.weight": big[rows("z", G * V)],
                     "in_proj_b.weight": small[[2 * G * j + i for j in range(H) for i in range(G)]],
                     "in_proj_a.weight": small[[2 * G * j + G + i for j in range(H) for i in range(G)]]}
    x, = normal(12, (2, 9, C))
    close(gated_deltanet.forward(x, weights_of("by_head"), key_heads=H)[0], gated_deltanet.forward(x, apart, key_heads=H)[0], 1e-15)


def test_query_and_gate_are_halves_of_each_head():
    """Two heads of D = 2, rows numbered: the queries are rows 0 1 and 4 5, the gates 2 3 and 6 7."""
    weights = {"q_proj.weight": np.arange(8.)[:, None], "k_proj.weight": np.ones((2, 1)), "v_proj.weight": np.ones((2, 1)), "q_norm.weight": np.zeros(2)}
    n, (q, k, v, e) = gated_attention.project(np.ones((1, 1)), weights)
    assert n == (1, 2, 2) and q[0, :, 0].tolist() == [[0, 1], [4, 5]] and e[0].tolist() == [2, 3, 6, 7]


def test_one_token_by_hand():
    """One head, all widths 1, one token: o = beta v q k K^-1/2 with q = k = 1, and the gated norm leaves silu(z)."""
    one = np.ones((1, 1))
    weights = {"in_proj_qkv.weight": np.full((3, 1), 2.), "in_proj_z.weight": one, "in_proj_b.weight": one, "in_proj_a.weight": one,
               "conv1d.weight": np.array([[[9., 1]]] * 3), "A_log": np.zeros(1), "dt_bias": np.zeros(1), "norm.weight": np.full(1, 3.),
               "out_proj.weight": 5 * one}
    y, state = gated_deltanet.forward(one, weights, key_heads=1, eps=0)
    silu = lambda x: x / (1 + np.exp(-x))
    close(y, np.array([[5 * 3 * silu(1)]]), 1e-15)
    unit = silu(2) / np.sqrt(silu(2) ** 2 + 1e-6)
    close(state.S, np.array([[[unit * silu(2) / (1 + np.exp(-1))]]]), 1e-15)
    assert state.conv.tolist() == [[0] * 3, [2] * 3]
    _, second = gated_deltanet.forward(0 * one, weights, key_heads=1, eps=0, state=State(0 * state.conv, state.S))
    # a token of zeros writes nothing, and decays by e^-ln 2
    close(second.S, state.S / 2, 1e-15)
