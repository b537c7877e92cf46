"""`python -m npattn bench` on sizes so small that its times mean nothing: what it prints, what it counts, and how it is refused."""
import json
import sys
from types import ModuleType

import numpy as np
import pytest

from npattn.__main__ import main
from npattn.bench import clock, command, machine, peers
from npattn.catalogue import CATALOGUE

TINY = "--tokens 8 --heads 2 --key-dim 4 --value-dim 3 --chunk 4 --repeats 2".split()


@pytest.fixture(autouse=True)
def quick(monkeypatch):
    monkeypatch.setattr(clock, "ENOUGH", 1e-4)


def bench(capsys, *argv):
    status = main(["bench", *TINY, *argv])
    out, err = capsys.readouterr()
    assert err == ""
    return status, out


def report(capsys, *argv):
    status, out = bench(capsys, *argv, "--json")
    return status, json.loads(out)


def test_table(capsys):
    status, out = bench(capsys, "gated_delta_rule", "softmax_attention", "--scaling")
    lines = out.splitlines()
    start = next(n for n, line in enumerate(lines) if line.startswith("mechanism"))
    assert status == 0 and lines[start].split()[:5] == ["mechanism", "work", "ms", "least", "most"]
    assert "tokens 8, heads 2, key dim 4, value dim 3, dtype float32, chunk 4, repeats 2, workers 1" in lines[:start]
    rows = [line.split("  ") for line in lines[start + 1:start + 9]]
    rows = [[cell.strip() for cell in row if cell] for row in rows]
    works = ["forward", "forward + gradients", "one token", "8 times the tokens"]
    assert [row[:2] for row in rows] == [[name, work] for name in ("gated_delta_rule", "softmax_attention") for work in works]
    for row in rows:
        ms, least, most, rate = (float(cell.replace(",", "")) for cell in row[2:6])
        assert 0 < least <= ms <= most and rate > 0
        assert row[6].endswith("%") == row[1].startswith("forward")
        assert row[-1].endswith("times the time") == (row[1] == "8 times the tokens")


def test_every_mechanism(capsys):
    status, found = report(capsys)
    assert status == 0 and [x["mechanism"] for x in found["results"][::3]] == list(CATALOGUE)
    assert [x["work"] for x in found["results"]] == ["forward", "forward + gradients", "one token"] * len(CATALOGUE)
    for x in found["results"]:
        assert 0 < x["least"] <= x["ms"] <= x["most"] and x["memory"] > 0 and x["peers"] == []
        assert x["tokens_per_second"] == pytest.approx((1 if x["work"] == "one token" else 8) / x["ms"] * 1e3)
        assert (x["limit"] is None) == (x["operations"] is None) == (x["work"] == "one token")
    assert set(found["machine"]) == {"date", "processor", "versions", "BLAS"} and f"numpy {np.__version__}" in found["machine"]["versions"]
    assert found["settings"]["key_dim"] == 4 and found["settings"]["dtype"] == "float32"


def test_operations_by_hand(capsys):
    """T = 8 tokens in blocks of C = 4, K = 4, V = 3, two heads; a multiplication and an addition are two operations."""
    _, found = report(capsys, "linear_attention", "gated_delta_rule", "softmax_attention")
    count = {(x["mechanism"], x["work"]): x["operations"] for x in found["results"]}
    linear = 4 * 4 * 4 + 4 * 4 * 3 + 2 * 4 * 4 * 3                           # a block: q k^T, times v, q S, k^T v
    gated = 2 * 4 * 4 * 4 + 2 * 4 * 4 * 3 + 3 * 4 * 4 * 3 + 4 ** 3 / 3       # also k k^T, its inverse, times the errors, k S
    tiles = 3 * 4 * 4 * (4 + 3)                                              # three tiles of 4 by 4 scores: q k^T, times v
    for name, products in dict(linear_attention=2 * linear, gated_delta_rule=2 * gated, softmax_attention=tiles).items():
        assert count[name, "forward"] == pytest.approx(2 * 2 * products)
        assert count[name, "forward + gradients"] == pytest.approx(4 * 2 * 2 * products)
    _, found = report(capsys, "linear_attention", "--chunk", "64")           # no more than there are
    assert found["results"][0]["operations"] == 2 * 2 * (8 * 8 * 4 + 8 * 8 * 3 + 2 * 8 * 4 * 3)


def test_the_product_has_as_many_operations():
    a = clock.product(clock.Processor(), 2 * 50 ** 3, "float32")()
    b = np.concatenate(clock.product(clock.Processor(), 2 * 50 ** 3, "float32", workers=2)())
    assert a.shape == b.shape == (50, 50) and a.dtype == np.float32 and np.allclose(a, b, atol=1e-4)


def test_memory_is_what_is_beyond_the_result():
    def call():
        passing, result = np.ones(3_000_000 // 8), np.ones(1_000_000 // 8)
        return result

    extra, result = clock.Processor().memory(call)
    assert 3e6 <= extra < 3.1e6 and 1e6 <= result < 1.1e6


def test_rounds_take_turns():
    calls, turns = [], {name: lambda name=name: calls.append(name) for name in "ab"}
    found = clock.interleaved(clock.Processor(), turns, 3)
    assert [len(found[name]) for name in "ab"] == [3, 3] and all(x > 0 for x in found["a"] + found["b"])
    many = [name for n, name in enumerate(calls) if n == 0 or calls[n - 1] != name]
    assert many == ["a", "b"] * 4                                            # once to see how long it takes, then three rounds


def test_workers_and_types(capsys):
    for more in (["--workers", "2"], ["--dtype", "float64"]):
        status, found = report(capsys, "kda", *more)
        assert status == 0 and found["results"][0]["ms"] > 0
    assert found["settings"]["dtype"] == "float64" and found["settings"]["workers"] == 1


# --- peers: a stand-in for torch ---------------------------------------------------------------------------------------

def peer(monkeypatch, values, **settings):
    """One peer of simple_gla whose results are `values` of ours."""
    one = peers.Peer("other", None, **settings)

    def prepare(peer, work, x, do, device, compiled=False):
        ours = [CATALOGUE["simple_gla"].module.chunk(**x)[0]]
        if work == peers.GRADIENTS:
            d = CATALOGUE["simple_gla"].module.chunk_vjp(do, **x)
            ours += [d[name] for name in d if name != "state"]
        return peers.Prepared("other", lambda: [values(y) for y in ours], lambda result: result, peer.tolerance)

    monkeypatch.setattr(command, "PEERS", dict(simple_gla=[one]))
    monkeypatch.setattr(command, "prepare", prepare)
    monkeypatch.setattr(command, "need_torch", lambda device: None)
    monkeypatch.setattr(command, "PAUSE", 0)
    monkeypatch.setattr(command, "machine", lambda *_: {})


def test_a_peer_that_agrees(capsys, monkeypatch):
    peer(monkeypatch, lambda y: y * np.float32(1 + 1e-6))
    status, found = report(capsys, "simple_gla", "--against", "torch")
    forward, both, one = found["results"]
    assert status == 0 and one["peers"] == []
    for x in forward, both:
        (other,) = x["peers"]
        assert other["same"] is True and 1e-7 < other["difference"] < 1e-5 and other["ratio"] > 0
    status, out = bench(capsys, "simple_gla", "--against", "torch")
    row = next(line for line in out.splitlines() if line.startswith("other"))
    assert status == 0 and row.split()[1] == "forward" and row.split()[-2] == "times" and float(row.split()[-1]) < 1e-5


def test_what_comes_of_the_times(capsys, monkeypatch):
    peer(monkeypatch, lambda y: y)
    monkeypatch.setattr(command, "interleaved", lambda device, calls, repeats, pause=0: {
        name: dict(ours=[.5, .25, 1.], limit=[.25, .125, .1], other=[1., 1., 2.])[name] for name in calls})
    x = report(capsys, "simple_gla", "--against", "torch")[1]["results"][0]
    assert (x["ms"], x["least"], x["most"], x["tokens_per_second"], x["of_limit"], x["limit"]) == \
        (500, 250, 1000, 16, .5, dict(ms=125, least=100, most=250))
    assert {name: x["peers"][0][name] for name in ("ms", "ratio")} == dict(ms=1000, ratio=2)


def test_a_peer_that_computes_something_else(capsys, monkeypatch):
    peer(monkeypatch, lambda y: y * np.float32(1.01))
    status, out = bench(capsys, "simple_gla", "--against", "torch")
    assert status == 1 and out.count("NOT THE SAME WORK") == 2
    peer(monkeypatch, lambda y: y * np.float32(1.01), tolerance=2e-2)
    assert bench(capsys, "simple_gla", "--against", "torch")[0] == 0


def test_a_peer_that_is_not_there(capsys, monkeypatch):
    peer(monkeypatch, lambda y: y)

    def missing(*_):
        raise ModuleNotFoundError("No module named 'fla'")

    monkeypatch.setattr(command, "prepare", missing)
    status, out = bench(capsys, "simple_gla", "--against", "torch")
    assert status == 0 and out.count("ModuleNotFoundError: No module named 'fla'") == 2


def test_every_peer_is_of_a_mechanism():
    assert set(peers.PEERS) <= set(CATALOGUE)
    for row in peers.PEERS.values():
        for one in row:
            assert one.layout in ("bthd", "bhtd") and set(one.devices) <= {"cpu", "cuda"}
            assert set(one.works) <= {peers.FORWARD, peers.GRADIENTS, peers.ONE}


# --- used wrongly ---------------------------------------------------------------------------------------------------------

@pytest.mark.parametrize("argv, words", [
    (["gated_delta"], "npattn bench: unknown mechanism 'gated_delta'; did you mean gated_delta_rule?"),
    (["kda", "--tokens", "0"], "tokens must be an integer of at least 1, not 0"),
    (["kda", "--heads", "-1"], "heads must be"), (["kda", "--key-dim", "0"], "key_dim must be"),
    (["kda", "--value-dim", "0"], "value_dim must be"), (["kda", "--chunk", "0"], "chunk must be"),
    (["kda", "--repeats", "0"], "repeats must be"), (["kda", "--workers", "0"], "workers must be"),
    (["kda", "--tokens", "many"], "invalid int value: 'many'"), (["kda", "--dtype", "float16"], "invalid choice: 'float16'"),
    (["kda", "--against", "jax"], "invalid choice: 'jax'"), (["kda", "--compile"], "--compile is for peers: --against torch"),
    (["kda", "--fast"], "unrecognized arguments: --fast")])
def test_wrong_use(capsys, argv, words):
    assert main(["bench", *argv]) == 2
    out, err = capsys.readouterr()
    assert out == "" and words in err and err.count("\n") == 1


def test_what_is_not_installed(capsys, monkeypatch):
    monkeypatch.setitem(sys.modules, "torch", None)
    monkeypatch.setitem(sys.modules, "cupy", None)
    for argv, words in (["--against", "torch"], "--against torch: "), (["--device", "cuda"], "--device cuda needs CuPy and an NVIDIA GPU"):
        assert main(["bench", "kda", *argv]) == 2
        out, err = capsys.readouterr()
        assert out == "" and words in err and err.count("\n") == 1


def test_a_torch_without_gpu(monkeypatch):
    torch = ModuleType("torch")
    torch.cuda = type("cuda", (), dict(is_available=staticmethod(lambda: False)))
    monkeypatch.setitem(sys.modules, "torch", torch)
    with pytest.raises(ValueError, match="finds no GPU"):
        command.need_torch("cuda")
    command.need_torch("cpu")


def test_threads_of_blas(monkeypatch):
    monkeypatch.setitem(sys.modules, "threadpoolctl", None)
    for name in machine.VARIABLES:
        monkeypatch.delenv(name, raising=False)
    assert machine.blas().endswith(", as many threads as cores, for no variable sets it")
    monkeypatch.setenv("OPENBLAS_NUM_THREADS", "1")
    assert machine.blas().endswith(", OPENBLAS_NUM_THREADS=1") and "cores" not in machine.blas()
    info = [dict(num_threads=3, user_api="blas", architecture="Zen", filepath="numpy.libs/openblas"),
            dict(num_threads=7, user_api="openmp", filepath="x")]
    module = ModuleType("threadpoolctl")
    module.threadpool_info = lambda: info
    monkeypatch.setitem(sys.modules, "threadpoolctl", module)
    assert machine.blas().endswith(", threads 3, kernels for Zen, OPENBLAS_NUM_THREADS=1")
