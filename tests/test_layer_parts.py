"""Parts of the layers against Transformers (float64 runs), against the tape, and in fractions: norms, convolution, rotary, SwiGLU, mixture of experts."""
from fractions import Fraction
from pathlib import Path

import numpy as np
import pytest

from npattn.core.functions import gated_rms_norm, gated_rms_norm_vjp, rms_norm, rms_norm_vjp
from npattn.layers import conv, linear, mlp, moe, rotary
from npattn.proof import tape

LAYERS = Path(__file__).parent / "golden" / "layers"
MODELS = ["qwen3_5", "qwen3_next_dense"]
MIXTURES = ["qwen3_next_moe"]


def recorded(name):
    """The arrays of a file, widened to float64 (they are exact), and the weights in it by their own names."""
    with np.load(LAYERS / f"{name}.npz") as z:
        z = {key: x.astype(np.float64) if x.dtype == np.float32 else x for key, x in z.items()}
    return z, {key.removeprefix("in.weight:"): x for key, x in z.items() if key.startswith("in.weight:")}


def close(a, b, tolerance=1e-12):
    assert a.shape == b.shape
    assert np.abs(a - b).max(initial=0) <= tolerance * np.abs(b).max(initial=0)


def close_gradients(dx, dweights, z, x="x", tolerance=1e-12):
    close(dx, z[f"grad_first.{x}"], tolerance)
    assert {f"grad_first.weight:{name}" for name in dweights} == {key for key in z if key.startswith("grad_first.weight:")}
    for name, d in dweights.items():
        close(d, z[f"grad_first.weight:{name}"], tolerance)


def against_tape(f, f_vjp, x, weights, **options):
    """f_vjp(dy, x, weights) = what the tape finds through f(x, weights), for every weight."""
    y, pull = tape.vjp(lambda x, *w: f(x, dict(zip(weights, w)), **options), x, *weights.values())
    dy = np.random.default_rng(1).standard_normal(y.shape)
    dx, dweights = f_vjp(dy, x, weights, **options)
    assert dweights.keys() == weights.keys()
    for mine, its in zip([dx, *(dweights[name] for name in weights)], pull(dy)):
        close(mine, its)


def normal(seed, *shapes):
    random = np.random.default_rng(seed)
    return [random.standard_normal(shape) for shape in shapes]


def fractions(seed, *shapes):
    random = np.random.default_rng(seed)
    return [np.array([Fraction(int(n), 6) for n in random.integers(-9, 9, int(np.prod(s)))] + [None], dtype=object)[:-1].reshape(s) for s in shapes]


def same(a, b):
    assert a.shape == b.shape
    assert (a == b).all()


# --- norms -------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("size", ["", "_tiny_input"])
@pytest.mark.parametrize("model", MODELS + MIXTURES)
def test_rms_norm(model, size):
    z, weights = recorded(f"{model}_rmsnorm{size}")
    close(rms_norm(z["in.x"], weights["weight"]), z["out.y"])
    dx, dweight = rms_norm_vjp(z["R.y"], z["in.x"], weights["weight"])
    close_gradients(dx, dict(weight=dweight), z)


@pytest.mark.parametrize("model", MODELS)
def test_gated_rms_norm(model):
    z, weights = recorded(f"{model}_rmsnorm_gated")
    arguments = z["in.hidden_states"], z["in.gate"], weights["weight"]
    close(gated_rms_norm(*arguments), z["out.y"])
    dx, dz, dweight = gated_rms_norm_vjp(z["R.y"], *arguments)
    close_gradients(dx, dict(weight=dweight), z, "hidden_states")
    close(dz, z["grad_first.gate"])


# --- convolution -------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("model", MODELS)
def test_convolution_of_transformers(model):
    z, _ = recorded(f"{model}_causal_conv1d_silu")
    x, weights = z["in.hidden_states"].mT, {"conv1d.weight": z["in.weight"][:, None, :]}
    close(conv.forward(x, weights)[0].mT, z["out.y"])
    dx, dweights, _ = conv.vjp(z["R.y"].mT, x, weights)
    close(dx.mT, z["grad_first.hidden_states"])
    close(dweights["conv1d.weight"][:, 0], z["grad_first.weight"])
    y, after = conv.forward(z["update.x"].mT, weights, state=z["update.conv_state_before"].mT)
    close(y.mT, z["update.y"])
    same(after.mT, z["update.conv_state_after"])


@pytest.mark.parametrize("T", [0, 1, 2, 3, 4, 7])
@pytest.mark.parametrize("state", [True, False])
def test_convolution_is_exact(T, state):
    """Both forms, and both gradients, equal as fractions.  y is linear in each argument, so central differences of any step are its derivative."""
    x, w, s, dy, ds = fractions(2, (2, T, 3), (3, 4), (2, 4, 3), (2, T, 3), (2, 4, 3))
    s = s if state else None
    (y, after), (y2, after2) = conv.loop(x, w, state=s), conv.matrix(x, w, state=s)
    same(y, y2)
    same(after, after2)
    zeros = np.zeros((2, 4, 3), object)
    arguments = [x, w, zeros if s is None else s]
    gradients = conv.loop_vjp(dy, x, w, state=s, dfinal_state=ds)
    for i, (d, d2) in enumerate(zip(gradients, conv.matrix_vjp(dy, x, w, state=s, dfinal_state=ds))):
        same(d, d2)
        for at in np.ndindex(d.shape):
            up, down = ([a.copy() for a in arguments] for _ in range(2))
            up[i][at] += 1
            down[i][at] -= 1
            (y1, s1), (y0, s0) = (conv.loop(a, b, state=c) for a, b, c in (up, down))
            assert d[at] == (((y1 - y0) * dy).sum() + ((s1 - s0) * ds).sum()) / 2
    for d, d2 in zip(conv.loop_vjp(dy, x, w, state=s), conv.loop_vjp(dy, x, w, state=s, dfinal_state=zeros)):
        same(d, d2)


def test_which_token_meets_which_tap():
    """The short state of the pitfall: one token, three old ones; the state keeps the last of both, and hands its gradient to both."""
    old, x, w = np.array([[1.], [2], [3]]), np.array([[10.]]), np.array([[100., 10, 1]])
    y, after = conv.loop(x, w, state=old)
    assert y.ravel().tolist() == [2 * 100 + 3 * 10 + 10] and after.ravel().tolist() == [2, 3, 10]
    dx, dw, dold = conv.loop_vjp(np.ones((1, 1)), x, w, state=old, dfinal_state=np.array([[5.], [6], [7]]))
    assert dx.ravel().tolist() == [1 + 7] and dw.tolist() == [[2, 3, 10]] and dold.ravel().tolist() == [0, 100 + 5, 10 + 6]


@pytest.mark.parametrize("T", [1, 2, 6])
def test_convolution_layer_against_the_tape(T):
    x, w, s, ds = normal(3, (2, T, 3), (3, 1, 4), (2, 4, 3), (2, 4, 3))
    (y, _), pull = tape.vjp(lambda x, w, s: conv.forward(x, {"conv1d.weight": w}, state=s), x, w, s)
    dy, = normal(4, y.shape)
    dx, dweights, dstate = conv.vjp(dy, x, {"conv1d.weight": w}, state=s, dfinal_state=ds)
    for mine, its in zip((dx, dweights["conv1d.weight"], dstate), pull((dy, ds))):
        close(mine, its)


def test_any_split_of_a_sequence_gives_the_same():
    x, w, s = normal(5, (2, 9, 3), (3, 4), (2, 4, 3))
    for form in (conv.loop, conv.matrix):
        whole, end = form(x, w, state=s)
        for cuts in ([1] * 9, [4, 5], [2, 0, 7], [8, 1]):
            parts, state = [], s
            for part in np.split(x, np.cumsum(cuts)[:-1], axis=1):
                y, state = form(part, w, state=state)
                parts.append(y)
            close(np.concatenate(parts, 1), whole, 1e-15)
            same(state, end)


def test_convolution_without_batch_axes_and_with_broadcast_ones():
    x, w, s, dy = normal(6, (5, 3), (3, 2), (4, 1, 2, 3), (4, 2, 5, 3))
    y, after = conv.loop(x, w, state=s)
    assert y.shape == (4, 1, 5, 3) and after.shape == (4, 1, 2, 3)
    dx, dw, ds = conv.loop_vjp(dy[:, :1], x, w, state=s)
    parts = [conv.loop_vjp(dy[i, 0], x, w, state=s[i, 0]) for i in range(4)]
    close(dx, sum(p[0] for p in parts))
    close(dw, sum(p[1] for p in parts))
    close(ds[:, 0], np.stack([p[2] for p in parts]))


def test_convolution_rejects():
    x, w = normal(7, (5, 3), (4, 2))
    with pytest.raises(ValueError, match=r"C is 3 in x and 4 in w: x \(5, 3\), w \(4, 2\)"):
        conv.loop(x, w)
    with pytest.raises(ValueError, match=r"n is 2 in w and 3 in state"):
        conv.matrix(x, w[:3], state=np.zeros((3, 3)))
    with pytest.raises(TypeError, match="x must be a NumPy or CuPy array, not list"):
        conv.loop(x.tolist(), w)
    with pytest.raises(ValueError, match=r"conv1d.weight must be \(C, 1, n\), not \(3, 4\)"):
        conv.forward(x, {"conv1d.weight": np.ones((3, 4))})


@pytest.mark.parametrize("form", [conv.loop, conv.matrix])
def test_the_state_of_the_convolution_is_a_few_rows_and_keeps_no_more(form):
    """A view of the inputs would hold all of them for as long as the state lives: 155 MB instead of 10 after 2000 tokens of a small model."""
    x, w = normal(22, (500, 3), (3, 4))
    _, after = form(x, w)
    assert after.base is None and after.nbytes == 4 * 3 * 8
    same(after, x[-4:])


# --- rotary ------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("model", MODELS)
def test_rotary_of_transformers(model):
    z, _ = recorded(f"{model}_rotary")
    cos, sin = (z[name][:, None, :, :4] for name in ("cos", "sin"))                          # rounded to float32 there, like the turned q and k
    for name in ("q", "k"):
        close(rotary.turn(z[name], cos, sin), z[f"{name}_out"])
        close(rotary.forward(z[name], z["short.position_ids"], width=8), z[f"{name}_out"], 1e-7)
    for case in ("short", "offsets"):
        for mine, its in zip(rotary.tables(z[f"{case}.position_ids"], 8), (z[f"{case}.cos"], z[f"{case}.sin"])):
            close(np.concatenate([mine, mine], -1), its)


def test_three_kinds_of_position():
    z, _ = recorded("qwen3_5_rotary")
    cos, sin = rotary.tables(z["mrope.position_ids"], 8, section=[2, 1, 1])
    close(np.concatenate([cos, cos], -1), z["mrope.cos"])
    close(np.concatenate([sin, sin], -1), z["mrope.sin"])
    x, = normal(8, (2, 3, 11, 16))
    text = np.broadcast_to(np.arange(11), (3, 11))
    same(rotary.forward(x, text, width=8, section=[2, 1, 1]), rotary.forward(x, np.arange(11), width=8))
    cos, _ = rotary.tables(np.array([[1], [2], [4]]), 16, theta=1., section=[4, 2, 2])       # all frequencies are 1: the angle is the position
    close(cos, np.cos([[1., 2, 4, 1, 2, 4, 1, 1]]), 1e-15)


def test_rotary_by_hand():
    """theta 16, four channels that turn: frequencies 1 and 1/4, pairs (0, 2) and (1, 3); the fifth channel stays."""
    x = np.array([[1., 1, 0, 0, 7]])
    y = rotary.forward(x, np.array([2]), width=4, theta=16.)
    close(y, np.array([[np.cos(2), np.cos(.5), np.sin(2), np.sin(.5), 7]]), 1e-15)


def test_rotary_products_depend_on_the_distance_only():
    q, k = normal(9, (1, 8), (1, 8))
    at = lambda i, j: (rotary.forward(q, np.array([i]), width=6) * rotary.forward(k, np.array([j]), width=6)).sum()
    assert abs(at(3, 1) - at(1003, 1001)) < 1e-12 and abs(at(3, 1) - at(1, 3)) > 1e-2


def test_rotary_gradient():
    x, = normal(10, (2, 3, 5, 6))
    positions = np.array([[0, 1, 2, 5, 9], [4, 5, 6, 7, 8]], np.uint8)[:, None]
    for width in (0, 2, 6):
        y, pull = tape.vjp(lambda x: rotary.forward(x, positions, width=width), x)
        dy, = normal(11, y.shape)
        close(rotary.vjp(dy, x, positions, width=width), pull(dy)[0])


def test_rotary_far_out_in_float32():
    """The angles are made in float64: at position 100000 float32 angles would be wrong by 4e-3."""
    x = normal(12, (4, 16))[0].astype(np.float32)
    positions = np.array([0, 1000, 99_999, 1_000_000])
    y = rotary.forward(x, positions, width=16)
    assert y.dtype == np.float32
    close(y, rotary.forward(x.astype(np.float64), positions, width=16), 1e-6)


def test_rotary_rejects():
    x, = normal(13, (5, 6))
    for width in (3, 8, -2):
        with pytest.raises(ValueError, match=rf"width.* must be even and at most 6, not {width}: x \(5, 6\)"):
            rotary.forward(x, np.arange(5), width=width)
    for positions in (np.arange(4), np.array(3)):
        with pytest.raises(ValueError, match=r"positions must be \(..., T\), one for each token: positions .*, x \(5, 6\)"):
            rotary.forward(x, positions, width=2)
    for positions, kind in ((np.arange(5.), "float64"), ([0, 1, 2, 3, 4], "list")):
        with pytest.raises(TypeError, match=f"positions must be an array of integers, not {kind}"):
            rotary.forward(x, positions, width=2)


# --- feed forward ------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("model", MODELS)
def test_mlp_of_transformers(model):
    z, weights = recorded(f"{model}_mlp")
    close(mlp.forward(z["in.x"], weights), z["out.y"])
    close_gradients(*mlp.vjp(z["R.y"], z["in.x"], weights), z)


def test_mlp_and_linear_against_the_tape():
    x, gate, up, down, bias = normal(14, (2, 3, 4), (5, 4), (5, 4), (4, 5), (5,))
    against_tape(mlp.forward, mlp.vjp, x, {"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": down})
    against_tape(linear.forward, linear.vjp, x, {"q_proj.weight": gate, "q_proj.bias": bias}, name="q_proj")


@pytest.mark.parametrize("model", MIXTURES)
def test_mixture_of_transformers(model):
    z, weights = recorded(f"{model}_moe_block")
    x = z["in.hidden_states"]
    for form in (moe.forward, moe.matrix):
        close(form(x, weights, topk=2), z["out.y"])
    close_gradients(*moe.vjp(z["R.y"], x, weights, topk=2), z, "hidden_states")


def mixture(seed=15, E=5, I=3, C=4):
    shapes = {"gate.weight": (E, C), "experts.gate_up_proj": (E, 2 * I, C), "experts.down_proj": (E, C, I), "shared_expert.gate_proj.weight": (6, C),
              "shared_expert.up_proj.weight": (6, C), "shared_expert.down_proj.weight": (C, 6), "shared_expert_gate.weight": (1, C)}
    return dict(zip(shapes, normal(seed, *shapes.values())))


@pytest.mark.parametrize("renormalize", [True, False])
@pytest.mark.parametrize("topk", [1, 2, 5])
def test_mixture_against_the_tape(topk, renormalize):
    x, = normal(16, (2, 7, 4))
    weights, options = mixture(), dict(topk=topk, renormalize=renormalize)
    close(moe.forward(x, weights, **options), moe.matrix(x, weights, **options))
    if topk == 1 and renormalize:                        # the only weight is 1, whatever the router says: its gradient is 0 but for rounding
        dy, = normal(17, x.shape)
        assert np.abs(moe.vjp(dy, x, weights, **options)[1]["gate.weight"]).max() < 1e-15
        return
    against_tape(moe.matrix, moe.vjp, x, weights, **options)


def test_mixture_by_hand():
    """Experts that give 1, 10 and 100 (silu(ln 3) = 3/4 ln 3); router probabilities 1/4, 1/2, 1/4, the tie going to the lower index."""
    l = np.log(3.)
    x = np.array([[1.]])
    weights = {"gate.weight": np.log([[1.], [2], [1]]), "experts.gate_up_proj": np.array([[[l], [n / (.75 * l)]] for n in (1, 10, 100)]),
               "experts.down_proj": np.ones((3, 1, 1)), "shared_expert.gate_proj.weight": np.zeros((1, 1)), "shared_expert.up_proj.weight": np.ones((1, 1)),
               "shared_expert.down_proj.weight": np.ones((1, 1)), "shared_expert_gate.weight": np.zeros((1, 1))}
    close(moe.forward(x, weights, topk=2), np.array([[10 * 2 / 3 + 1 / 3]]))
    close(moe.forward(x, weights, topk=2, renormalize=False), np.array([[10 / 2 + 1 / 4]]))
    close(moe.forward(x, weights, topk=3), np.array([[10 / 2 + 1 / 4 + 100 / 4]]))
    weights |= {"shared_expert.gate_proj.weight": np.array([[l]]), "shared_expert_gate.weight": np.log([[4.]])}       # sigmoid(ln 4) = 4/5
    close(moe.forward(x, weights, topk=1), np.array([[10 + .8 * .75 * l]]))


def test_mixture_edges():
    weights = mixture()
    x, = normal(18, (0, 4))
    assert moe.forward(x, weights, topk=2).shape == moe.matrix(x, weights, topk=2).shape == (0, 4)
    dx, dweights = moe.vjp(x, x, weights, topk=2)
    assert dx.shape == (0, 4) and all((dweights[name] == 0).all() and dweights[name].shape == w.shape for name, w in weights.items())
    for topk in (0, 6, 2.0, True, None):
        with pytest.raises(ValueError, match=f"topk must be between 1 and the number of experts, 5, not {topk}"):
            moe.forward(np.ones((1, 4)), weights, topk=topk)


def test_gradients_that_have_not_the_shape_of_y_are_refused():
    """Also where the number of entries is right, as with time and batch the other way round."""
    x, turned = normal(23, (2, 3, 4), (3, 2, 4))
    swiglu = {"gate_proj.weight": np.ones((5, 4)), "up_proj.weight": np.ones((5, 4)), "down_proj.weight": np.ones((4, 5))}
    for call in (lambda: mlp.vjp(turned, x, swiglu), lambda: moe.vjp(turned, x, mixture(), topk=2)):
        with pytest.raises(ValueError, match=r"dy must have the shape of y, \(2, 3, 4\): dy \(3, 2, 4\)"):
            call()
    with pytest.raises(ValueError, match=r"gate_proj.weight \(5, 4\) does not fit x \(2, 3\)"):
        mlp.forward(x[..., 0], swiglu)
    with pytest.raises(TypeError, match="x must be a NumPy or CuPy array, not list"):
        mlp.forward(x.tolist(), swiglu)


# --- types -------------------------------------------------------------------------------------------------------

def layers():
    x, c, gate, up, down = normal(19, (2, 5, 4), (4, 1, 3), (5, 4), (5, 4), (4, 5))
    swiglu = {"gate_proj.weight": gate, "up_proj.weight": up, "down_proj.weight": down}
    return dict(conv=(conv, x, {"conv1d.weight": c}, {}), mlp=(mlp, x, swiglu, {}), moe=(moe, x, mixture(), dict(topk=2)))


@pytest.mark.parametrize("name", ["conv", "mlp", "moe"])
def test_types_stay_and_arguments_are_left_alone(name):
    module, x, weights, options = layers()[name]
    low = x.astype(np.float32), {n: w.astype(np.float32) for n, w in weights.items()}
    for a in (low[0], *low[1].values()):
        a.flags.writeable = False
    first = lambda y: y[0] if isinstance(y, tuple) else y
    y, y32 = first(module.forward(x, weights, **options)), first(module.forward(*low, **options))
    dx, dweights = module.vjp(y, x, weights, **options)[:2]
    dx32, dweights32 = module.vjp(y32, *low, **options)[:2]
    for a, b in [(y32, y), (dx32, dx), *((dweights32[n], dweights[n]) for n in weights)]:
        assert a.dtype == np.float32
        close(a, b, 1e-5)
    wide = module.vjp(y, x, low[1], **options)                                               # each gradient in the type of its own argument
    assert wide[0].dtype == np.float64 and {d.dtype for d in wide[1].values()} == {np.dtype(np.float32)}


@pytest.mark.parametrize("name", ["conv", "mlp", "moe"])
def test_complex_step_through_layers(name):
    """No conversion anywhere: one complex call gives the derivative along a direction, to rounding."""
    module, x, weights, options = layers()[name]
    first = lambda y: y[0] if isinstance(y, tuple) else y
    y, = normal(20, x.shape)
    direction, *ways = normal(21, x.shape, *(w.shape for w in weights.values()))
    moved = first(module.forward(x + 1e-30j * direction, {n: w + 1e-30j * d for (n, w), d in zip(weights.items(), ways)}, **options))
    dx, dweights = module.vjp(y, x, weights, **options)[:2]
    expected = (dx * direction).sum() + sum((dweights[n] * d).sum() for n, d in zip(weights, ways))
    assert abs((moved.imag * y).sum() / 1e-30 - expected) < 1e-12 * abs(expected)
