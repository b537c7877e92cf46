"""Layers and models on an array type that refuses to mix with NumPy's, as CuPy's does: what is given there stays there."""
import sys

import numpy as np
import pytest

from npattn.layers import conv
from npattn.models import hybrid

from test_layers import LAYERS, C, mask_for, normal
from test_models import recorded
from test_stand_in import Device, cupy, host, on_device                   # noqa: F401   cupy is a fixture


class Add:
    """CuPy's `add` has, of a ufunc's methods, `at`."""
    def __call__(self, *x):
        return on_device(np.add)(*x)

    def at(self, x, index, y):
        np.add.at(host(x), host(index), host(y))


@pytest.fixture(autouse=True)
def more_of_cupy(cupy, monkeypatch):                     # noqa: F811
    """Besides what the mechanisms need: `add.at`, and `asarray`, the one way from the host to the device."""
    monkeypatch.setattr(sys.modules["cupy"], "add", Add(), raising=False)
    monkeypatch.setattr(sys.modules["cupy"], "asarray", lambda x: x if isinstance(x, Device) else Device(x), raising=False)


def device(x):
    if isinstance(x, dict):
        return {name: device(y) for name, y in x.items()}
    if isinstance(x, tuple):
        return type(x)(*map(device, x)) if hasattr(x, "_fields") else tuple(map(device, x))
    return Device(x) if isinstance(x, np.ndarray) else x


def same(got, wanted):
    if isinstance(wanted, dict):
        assert got.keys() == wanted.keys()
        got, wanted = tuple(got.values()), tuple(wanted.values())
    if isinstance(wanted, tuple):
        assert len(got) == len(wanted)
        for pair in zip(got, wanted):
            same(*pair)
    else:
        assert type(got) is Device and got.dtype == wanted.dtype and got.shape == wanted.shape
        assert np.allclose(got.host, wanted, rtol=0, atol=1e-12 * np.abs(wanted).max(initial=0))         # inner products go another way


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("T", [1, 5])
def test_layers(name, T):
    module, weights, state_of, options = LAYERS[name]
    x, dy = normal(0, (2, T, C), (2, T, C))
    state, options = state_of(3), dict(options(3, T), mask=mask_for(name, 3, T, 4))
    y, after = module.forward(x, weights, state=state, **options)
    same(module.forward(device(x), device(weights), state=device(state), **device(options)), (y, after))
    same(module.vjp(device(dy), device(x), device(weights), state=device(state), dfinal_state=device(after), **device(options)),
         module.vjp(dy, x, weights, state=state, dfinal_state=after, **options))


def test_convolution_in_matrix_form():
    x, w, dy = normal(1, (2, 5, C), (C, 3), (2, 5, C))
    same(conv.matrix(*device((x, w))), conv.matrix(x, w))
    same(conv.matrix_vjp(*device((dy, x, w))), conv.matrix_vjp(dy, x, w))


@pytest.mark.parametrize("name", ["qwen3_5_tied_vdim", "qwen3_next_moe"])
def test_models(name):
    config, weights, z = recorded(name)
    ids, mask, moved = z["padded.input_ids"], z["padded.attention_mask"], device(weights)
    logits, cache = hybrid.forward(ids[:, :30], weights, config, attention_mask=mask[:, :30])
    got, kept = hybrid.forward(device(ids[:, :30]), moved, config, attention_mask=device(mask[:, :30]))
    same((got, kept), (logits, cache))
    same(hybrid.forward(device(ids[:, 30:]), moved, config, cache=kept), hybrid.forward(ids[:, 30:], weights, config, cache=cache))
    same(hybrid.loss_and_gradients(device(ids), moved, config)[1], hybrid.loss_and_gradients(ids, weights, config)[1])
    draw = lambda ids, weights, **more: hybrid.generate(ids, weights, config, max_new_tokens=4, eos=[3, 5], **more)
    same(draw(device(z["generate.prompt"]), moved), draw(z["generate.prompt"], weights))
    same(draw(z["generate.prompt"], moved), draw(z["generate.prompt"], weights))             # the ids may come from the host
    settings = lambda: dict(temperature=1., top_k=20, top_p=.9, rng=np.random.default_rng(0))
    same(draw(device(z["generate.prompt"]), moved, **settings()), draw(z["generate.prompt"], weights, **settings()))
