"""What one more token costs, early and late: a linear layer does not notice how much it has read, an attention layer does.

One Gated DeltaNet layer and one gated attention layer of the same width read a text of random numbers and then decode a token at position 100 and one at
position 10 000.  Times are measured and printed; what is asserted is what they come from, the number of bytes that a token has to look at.
(Attention copies its cache besides: a state is never written in place.)
"""
import time

import numpy as np

from npattn.core.states import Cache
from npattn.layers import gated_attention, gated_deltanet, rotary

WIDTH, HEADS, SIZE, NEAR, FAR = 256, 8, 64, 100, 10_000


def make(rng, **shapes):
    return {name: (rng.standard_normal(shape) * shape[-1] ** -0.5).astype(np.float32) for name, shape in shapes.items()}


def milliseconds(step, repeat=30):
    """The median time of one call."""
    times = []
    for _ in range(repeat):
        started = time.perf_counter()
        step()
        times.append(time.perf_counter() - started)
    return 1000 * float(np.median(times))


def linear_layer(rng):
    """(how one token is decoded after n others, the state it starts from), for both positions: the layer has really read all of them."""
    n = HEADS * SIZE
    weights = make(rng, **{"in_proj_qkv.weight": (3 * n, WIDTH), "in_proj_z.weight": (n, WIDTH), "in_proj_b.weight": (HEADS, WIDTH),
                           "in_proj_a.weight": (HEADS, WIDTH), "conv1d.weight": (3 * n, 1, 4), "out_proj.weight": (WIDTH, n)})
    weights |= {"A_log": np.zeros(HEADS, np.float32), "dt_bias": np.full(HEADS, -4, np.float32), "norm.weight": np.ones(SIZE, np.float32)}
    x, state = rng.standard_normal((FAR, WIDTH)).astype(np.float32), None
    for start, stop in ((0, NEAR), (NEAR, FAR)):
        _, state = gated_deltanet.forward(x[start:stop], weights, key_heads=HEADS, state=state)
        yield lambda state=state: gated_deltanet.forward(x[:1], weights, key_heads=HEADS, state=state), state


def attention_layer(rng):
    """The same for attention; its cache is filled with random keys and values, which cost the same to look at."""
    n = HEADS * SIZE
    weights = make(rng, **{"q_proj.weight": (2 * n, WIDTH), "k_proj.weight": (n, WIDTH), "v_proj.weight": (n, WIDTH), "o_proj.weight": (WIDTH, n)})
    weights |= {"q_norm.weight": np.zeros(SIZE, np.float32), "k_norm.weight": np.zeros(SIZE, np.float32)}
    x = rng.standard_normal((1, WIDTH)).astype(np.float32)
    for position in (NEAR, FAR):
        state = Cache(*rng.standard_normal((2, HEADS, position, SIZE)).astype(np.float32))
        cos, sin = (table.astype(np.float32) for table in rotary.tables(np.array([position]), SIZE // 2))
        yield lambda state=state, cos=cos, sin=sin: gated_attention.forward(x, weights, cos=cos, sin=sin, state=state), state


def main():
    rng, ratios = np.random.default_rng(0), {}
    print(f"{'one token at position':25}{NEAR:>12,}{FAR:>12,}{'ratio':>8}{'state, bytes':>16}{'':14}")
    for name, layer in ("Gated DeltaNet", linear_layer), ("gated attention", attention_layer):
        (near, first), (far, second) = layer(rng)
        times = milliseconds(near), milliseconds(far)
        small, large = (sum(part.nbytes for part in state) for state in (first, second))
        ratios[name] = times[1] / times[0]
        print(f"{name:25}{times[0]:9.3f} ms{times[1]:9.3f} ms{ratios[name]:8.2f}{small:16,}{large:14,}")
        assert large == (small if layer is linear_layer else small * FAR // NEAR)
        assert near()[0].shape == far()[0].shape == (1, WIDTH) and np.isfinite(far()[0]).all()
    return ratios


if __name__ == "__main__":
    main()
