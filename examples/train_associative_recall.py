"""Train two tiny language models on multi-query associative recall: linear attention, which only adds, and the gated delta rule, which corrects.

A sequence is a list of pairs, key value key value …, then keys alone, each of which is to be answered with its value.  Some keys come twice,
with another value the second time: the latest counts.  Linear attention keeps the sum of both, and of whatever else is near; the delta rule
takes the old value out.

Both models are the same but for the rule: embedding, one layer (convolution over queries, keys and values, rule, norm, SwiGLU, each on the normed
stream), head.  Every gradient is derived by hand, from npattn's parts; the optimiser is written out below.

    python examples/train_associative_recall.py              half a minute
    python examples/train_associative_recall.py --steps 20   a glimpse
"""
import argparse
import os
import sys
import time

os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")       # before NumPy: on products as small as these, threads mostly wait for each other

import numpy as np

from npattn import gated_delta_rule, linear_attention
from npattn.core.functions import l2norm, l2norm_vjp, logsumexp, rms_norm, rms_norm_vjp, sigmoid, sigmoid_vjp, softmax, softplus, softplus_vjp
from npattn.layers import conv, linear, mlp

KEYS, VALUES, PAIRS, REPEATED = 48, 48, 24, 8            # 16 different keys a sequence, half of them written twice
WIDTH, K, BATCH = 64, 32, 32
DTYPE, FULL = np.float32, 600


def sequences(rng, count):
    """ids (count, T), and for every query its position, its right value, and whether its key was written twice."""
    different = PAIRS - REPEATED
    keys = rng.permuted(np.tile(np.arange(KEYS), (count, 1)), axis=1)[:, :different]
    written = rng.permuted(np.concatenate([keys, keys[:, :REPEATED]], 1), axis=1)            # pairs in any order
    values = rng.integers(0, VALUES, written.shape)
    asked = rng.permuted(keys, axis=1)
    same = written[:, None, :] == asked[:, :, None]                          # queries, pairs
    latest = PAIRS - 1 - same[:, :, ::-1].argmax(-1)                         # the last pair with that key
    pairs = np.stack([written, KEYS + values], -1).reshape(count, 2 * PAIRS)
    return np.concatenate([pairs, asked], 1), np.take_along_axis(values, latest, 1), same.sum(-1) > 1


def weights_of(rule, rng):
    make = lambda *shape: (rng.standard_normal(shape) * shape[-1] ** -0.5).astype(DTYPE)
    weights = {"embedding": make(KEYS + VALUES, WIDTH), "qkv.weight": make(3 * K, WIDTH), "conv1d.weight": make(3 * K, 1, 3), "norm": np.zeros(WIDTH, DTYPE),
               "o_norm": np.zeros(K, DTYPE), "out.weight": make(WIDTH, K), "mlp_norm": np.zeros(WIDTH, DTYPE), "gate_proj.weight": make(2 * WIDTH, WIDTH),
               "up_proj.weight": make(2 * WIDTH, WIDTH), "down_proj.weight": make(WIDTH, 2 * WIDTH), "last_norm": np.zeros(WIDTH, DTYPE),
               "head.weight": make(VALUES, WIDTH)}
    if rule is gated_delta_rule:                         # begins with almost no decay, e^-0.02, and half strength
        weights |= {"a.weight": make(1, WIDTH), "a.bias": np.full(1, -4, DTYPE), "b.weight": make(1, WIDTH), "b.bias": np.zeros(1, DTYPE)}
    return weights


def loss_and_gradients(ids, answers, weights, rule):
    """(loss, gradients, right): cross entropy of the answers to the queries at the end, and which of them the model gets right."""
    w, queries, gated = weights, answers.shape[1], rule is gated_delta_rule
    x = w["embedding"][ids]                                                  # T C
    n = rms_norm(x, w["norm"])                                               # T C
    raw = linear.forward(n, w, "qkv")                                        # T 3K
    u, _ = conv.forward(raw, w)                                              # T 3K
    q, k, v = np.split(u, 3, axis=-1)                                        # T K each
    arguments = dict(q=l2norm(q), k=l2norm(k), v=v)
    if gated:
        a, b = linear.forward(n, w, "a")[..., 0], linear.forward(n, w, "b")[..., 0]          # T, T
        arguments |= dict(g=-softplus(a), beta=sigmoid(b))
    o, _ = rule.chunk(**arguments)                                           # T K
    h = x + linear.forward(rms_norm(o, w["o_norm"]), w, "out")               # T C
    m = rms_norm(h, w["mlp_norm"])                                           # T C
    y = h + mlp.forward(m, w)                                                # T C
    z = rms_norm(y, w["last_norm"])[:, -queries:]                            # queries C
    logits = linear.forward(z, w, "head")                                    # queries VALUES
    right = logits.argmax(-1) == answers
    loss = (logsumexp(logits) - np.take_along_axis(logits, answers[..., None], -1)[..., 0]).mean()

    dlogits = (softmax(logits) - (answers[..., None] == np.arange(VALUES))) / answers.size
    dz, d = linear.vjp(dlogits, z, w, "head")
    dz = np.concatenate([np.zeros_like(y[:, :-queries]), dz], 1)             # T C   nothing is asked before the queries
    dy, d["last_norm"] = rms_norm_vjp(dz, y, w["last_norm"])
    dm, dmlp = mlp.vjp(dy, m, w)
    dh, d["mlp_norm"] = rms_norm_vjp(dm, h, w["mlp_norm"])
    dh = dh + dy                                                             # T C
    do, dout = linear.vjp(dh, rms_norm(o, w["o_norm"]), w, "out")
    do, d["o_norm"] = rms_norm_vjp(do, o, w["o_norm"])
    dr = rule.chunk_vjp(do, **arguments)
    du = np.concatenate([l2norm_vjp(dr["q"], q), l2norm_vjp(dr["k"], k), dr["v"]], -1)       # T 3K
    draw, dconv, _ = conv.vjp(du, raw, w)
    dn, dqkv = linear.vjp(draw, n, w, "qkv")
    if gated:
        for name, part in (("a", -softplus_vjp(dr["g"], a)), ("b", sigmoid_vjp(dr["beta"], b))):
            more, dgate = linear.vjp(part[..., None], n, w, name)
            dn, d = dn + more, d | dgate
    dx, d["norm"] = rms_norm_vjp(dn, x, w["norm"])
    d["embedding"] = np.zeros(w["embedding"].shape, dx.dtype)
    np.add.at(d["embedding"], ids.reshape(-1), (dx + dh).reshape(-1, WIDTH))
    return loss, d | dmlp | dout | dconv | dqkv, right


def adamw(weights, gradients, moments, step, rate, decay=0.01, b1=0.9, b2=0.98, eps=1e-8):
    """One step of AdamW (Loshchilov and Hutter, 2017, arXiv 1711.05101), in place."""
    for name, w in weights.items():
        m, v = moments.setdefault(name, (np.zeros_like(w), np.zeros_like(w)))
        m += (1 - b1) * (gradients[name] - m)
        v += (1 - b2) * (gradients[name] ** 2 - v)
        w -= rate * (m / (1 - b1 ** step) / (np.sqrt(v / (1 - b2 ** step)) + eps) + decay * w * (w.ndim > 1))


def train(rule, steps, seed=0, rate=4e-3, marks=12):
    """[(step, accuracy on all queries, on those whose key came once, twice)] for unseen sequences, at `marks` moments on the way."""
    rng, curve = np.random.default_rng(seed), []
    weights, moments, test = weights_of(rule, rng), {}, sequences(np.random.default_rng(99), 64)
    for step in range(1, steps + 1):
        ids, answers, _ = sequences(rng, BATCH)
        _, gradients, _ = loss_and_gradients(ids, answers, weights, rule)
        adamw(weights, gradients, moments, step, rate * min(step / 50, 1) * (1 - 0.9 * step / steps))
        if sys.stderr.isatty():
            print(f"\r{name_of(rule)}: step {step} of {steps} ", end="" if step < steps else "\r" + " " * 60 + "\r", file=sys.stderr, flush=True)
        if step * marks // steps > (step - 1) * marks // steps:
            ids, answers, twice = test
            _, _, right = loss_and_gradients(ids, answers, weights, rule)
            curve.append((step, right.mean(), right[~twice].mean(), right[twice].mean()))
    return curve


def name_of(rule):
    return rule.__name__.rpartition(".")[2].replace("_", " ")


def show(curves, width=50):
    """Both curves, a row a moment: L linear attention, D the delta rule, between no answer right and all."""
    print(f"{'':5}  {'linear attention':>20}  {'gated delta rule':>20}\n{'step':>5}" + f"  {'all':>6}{'once':>7}{'twice':>7}" * 2
          + f"  0{' of all queries ':-^{width - 1}}1")
    for (step, *linear), (_, *delta) in zip(*curves):
        row = [" "] * (width + 1)
        row[round(width * linear[0])], row[round(width * delta[0])] = "L", "D"
        print(f"{step:5}" + "".join(f"  {x[0]:6.3f}{x[1]:7.3f}{x[2]:7.3f}" for x in (linear, delta)) + "  " + "".join(row).rstrip())


def main(arguments=None):
    parser = argparse.ArgumentParser(description="Train linear attention and the gated delta rule on multi-query associative recall.")
    parser.add_argument("--steps", type=int, default=FULL, help=f"batches of {BATCH} sequences, {FULL} if not given; the claims are asserted from then on")
    steps = parser.parse_args(arguments).steps
    if steps < 1:
        parser.error(f"--steps must be at least 1, not {steps}")
    started = time.monotonic()
    curves = [train(rule, steps) for rule in (linear_attention, gated_delta_rule)]
    show(curves)
    (_, _, once, twice), (_, every, *_) = curves[0][-1], curves[1][-1]
    print(f"\n{time.monotonic() - started:.0f} seconds, {steps} steps each.  Linear attention answers {once:.1%} rightly where the key came once, {twice:.1%} where it "
          f"came twice; the delta rule {every:.1%} of all.")
    if steps >= FULL:
        print("The sum of an old and a new value does not say which is which: linear attention guesses, one in two.  The delta rule took the old one out.")
        assert every > 0.97 and once > 0.95 and 0.4 < twice < 0.6
    return curves


if __name__ == "__main__":
    main()
