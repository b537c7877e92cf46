"""`python -m npattn bench`: a table of times for every mechanism, and with --against one of others that do the same work.

    OPENBLAS_NUM_THREADS=1 python -m npattn bench gated_delta_rule --workers 2 --against torch

Of the limit: the time that one product of large square matrices with as many multiplications and additions takes, on as many threads,
divided by ours.  The operations of a forward pass are those of `python -m npattn cost`; with gradients four times as many, for the backward
pass makes two products for each of the forward pass, and the forward pass again.  Memory is what the call takes at its peak beyond its
arguments and its results, of another run.  Every call runs once in each round, in turn; a ratio is the median of those of the rounds.
"""
import inspect
import json as json_module
import math
import time

import numpy as np

from .. import cost
from ..catalogue import CATALOGUE
from ..core.arguments import count
from ..core.states import leaves, map_state
from ..core.workers import spread
from ..proof.command import row_of
from ..proof.measure import relative_error
from .clock import Gpu, Processor, interleaved, product, ratio, summary
from .machine import machine
from .peers import FORWARD, GRADIENTS, ONE, PEERS, prepare

OPTIONS = dict(block_topk_attention=dict(block_size=64, topk=8))             # the catalogue's are for the laws' short sequences
LONGER = 8                                                                   # times the tokens, with --scaling
PAUSE = 0.05                                                                 # seconds; OpenBLAS's threads spin for about 0.03


def bench_command(mechanisms, tokens, heads, key_dim, value_dim, dtype, chunk, repeats, workers, against, compile, device, scaling, json):
    """Print the tables; 1 if a peer's values differ from ours, else 0.  ValueError for what cannot be measured."""
    rows = [row_of(name) for name in dict.fromkeys(mechanisms)] or list(CATALOGUE.values())
    sizes = {name: count(name, n) for name, n in dict(tokens=tokens, heads=heads, key_dim=key_dim, value_dim=value_dim).items()}
    count("repeats", repeats), count("workers", workers), chunk is None or count("chunk", chunk)
    if against:
        need_torch(device)
    elif compile:
        raise ValueError("--compile is for peers: --against torch")
    place = Gpu() if device == "cuda" else Processor()
    about = machine(against is not None, device)
    settings = dict(sizes, dtype=dtype, chunk=chunk, repeats=repeats, workers=workers)
    say = (lambda *_, **__: None) if json else print
    say(head(about, settings), heading(), sep="\n\n")
    found = []
    for row in rows:
        for result in measure(row, settings, place, against, compile, scaling):
            found.append(result)
            say(line(result), flush=True)
    if json:
        print(json_module.dumps(dict(machine=about, settings=settings, results=found), indent=2))
    else:
        print("", *([peer_table(found), ""] if against else []), NOTES, sep="\n")
    return 1 if any(peer.get("same") is False for result in found for peer in result["peers"]) else 0


def need_torch(device):
    try:
        import torch
    except ImportError as error:
        raise ValueError(f"--against torch: {error}") from None
    if device == "cuda" and not torch.cuda.is_available():
        raise ValueError("--against torch --device cuda: this torch finds no GPU")


# --- what is measured ----------------------------------------------------------------------------------------------------

def measure(row, settings, place, against, compiled, scaling):
    """For each work of a mechanism a dict of figures."""
    x, do, options = arguments(row, settings, settings["tokens"])
    T, heads = settings["tokens"], settings["heads"]
    with_state = arguments(row, settings, 1, n=T, state=True)[0]
    forward, backward = forms(row, settings, place)
    ours = lambda x: {name: y if y is None else map_state(place.move, y) for name, y in x.items()}
    on, one, back = ours(x), ours(with_state), place.move(do)
    operations = 2 * float(cost.multiplications(row, "chunk", letters(row, settings, T)) or 0) * T * heads
    calls = {FORWARD: lambda: forward(**on, **options),
             GRADIENTS: lambda: (forward(**on, **options), backward(back, **on, **options)),
             ONE: lambda: row.module.loop(**one, **fixed(row))}
    for work, call in calls.items():
        of_work = dict(tokens=1 if work == ONE else T, operations=0 if work == ONE else operations * (4 if work == GRADIENTS else 1))
        given = (with_state, None) if work == ONE else (x, do)
        yield figures(row, work, call, *given, of_work, settings, place, against, compiled)
    if scaling:
        far = ours(arguments(row, settings, LONGER * T)[0])
        found = interleaved(place, {1: calls[FORWARD], LONGER: lambda: forward(**far, **options)}, settings["repeats"])
        yield dict(basics(row, f"{LONGER} times the tokens", found[LONGER], LONGER * T), times=ratio(found[LONGER], found[1]))


def figures(row, work, call, x, do, of_work, settings, place, against, compiled):
    """Time, share of the limit and memory of one call, and its peers."""
    calls, peers, wrong = {"ours": call}, {}, []
    if of_work["operations"]:
        calls["limit"] = product(place, of_work["operations"], settings["dtype"], settings["workers"])
    for peer in PEERS.get(row.name, ()) if against else ():
        for through in (False, True)[:2 if compiled and peer.compiles else 1]:
            if work in peer.works and place.name in peer.devices:
                try:
                    ready = prepare(peer, work, x, do, place.name, through)
                    start = time.perf_counter()
                    theirs = ready.values(ready.call())
                    first_call = time.perf_counter() - start
                    peers[ready.name] = dict(first_call=first_call, difference=difference(call(), theirs), tolerance=ready.tolerance)
                    calls[ready.name] = ready.call
                except Exception as error:               # not installed, or cannot do this work: a line in the table says so
                    wrong.append(dict(name=peer.name, error=f"{type(error).__name__}: {error}".splitlines()[0]))
    found = interleaved(place, calls, settings["repeats"], PAUSE if peers else 0)
    extra, _ = place.memory(call)
    result = basics(row, work, found["ours"], of_work["tokens"])
    result |= dict(operations=of_work["operations"] or None, memory=extra, limit=seconds(found["limit"]) if "limit" in found else None,
                   of_limit=1 / ratio(found["ours"], found["limit"]) if "limit" in found else None)
    result["peers"] = wrong + [dict(name=name, **seconds(found[name]), ratio=ratio(found[name], found["ours"]), first_call=peer["first_call"],
                                    difference=peer["difference"], same=peer["difference"] <= peer["tolerance"])
                               for name, peer in peers.items()]
    return result


def basics(row, work, found, tokens):
    return dict(mechanism=row.name, work=work, **seconds(found), tokens_per_second=tokens / summary(found).median, operations=None,
                memory=None, limit=None, of_limit=None, times=None, peers=[])


def seconds(found):
    return {name: x * 1e3 for name, x in zip(("ms", "least", "most"), summary(found))}


def arguments(row, settings, T, n=0, state=False):
    """(random arguments, a random gradient of the output, options), on the host."""
    rng, dtype = np.random.default_rng(0), np.dtype(settings["dtype"])
    x = row.arguments(rng, T, (settings["heads"],), K=settings["key_dim"], V=settings["value_dim"], n=n, dtype=dtype, state=state)
    options = dict(fixed(row), chunk_size=settings["chunk"]) if settings["chunk"] else fixed(row)
    return x, rng.standard_normal(x["v"].shape).astype(dtype), options


def fixed(row):
    return OPTIONS.get(row.name, row.options)


def forms(row, settings, place):
    """(forward, backward)."""
    both = row.module.chunk, row.module.chunk_vjp
    return tuple(spread(form, settings["workers"]) for form in both) if settings["workers"] > 1 else both


def letters(row, settings, T):
    """Sizes as `cost` names them."""
    C = settings["chunk"] or inspect.signature(row.module.chunk).parameters["chunk_size"].default
    return dict(T=T, K=settings["key_dim"], V=settings["value_dim"], C=min(C, T), B=fixed(row).get("block_size", 1), G=1)


def difference(ours, theirs):
    """The largest relative error of their arrays: the output, then the gradients, as many as they have."""
    one_call = isinstance(ours[1], dict)
    got = [ours[0][0], *(y for name, y in ours[1].items() if name != "state")] if one_call else [ours[0]]
    host = lambda y: y.get() if hasattr(y, "get") else y
    return max(relative_error(b, host(a)) for a, b in zip(got, theirs, strict=True))


# --- text ----------------------------------------------------------------------------------------------------------------

NAMES, WORKS = max(map(len, CATALOGUE)), max(map(len, (FORWARD, GRADIENTS, ONE, f"{LONGER} times the tokens")))
COLUMNS = ("ms", "least", "most", "tokens/s", "of the limit", "memory, MiB")
NOTES = """\
Times are medians, with the least and the most. Of the limit: what one large matrix product of as many operations takes, on as many threads,
by our time. Memory: at the peak, beyond arguments and results. One token: `loop` from a state, or from a cache of as many tokens as above."""


def head(about, settings):
    said = [f"{name.replace('_', ' ')} {value}" for name, value in settings.items() if value is not None]
    return "\n".join([*(f"{name}: {text}" for name, text in about.items()), ", ".join(said)])


def heading():
    return f"{'mechanism':{NAMES}}  {'work':{WORKS}}" + "".join(f"{name:>14}" for name in COLUMNS)


def line(x):
    cells = (*map(figure, (x["ms"], x["least"], x["most"])), f"{x['tokens_per_second']:,.0f}",
             f"{100 * x['of_limit']:.0f} %" if x["of_limit"] else "-",
             f"{x['memory'] / 2 ** 20:.1f}" if x["memory"] is not None else "-")
    more = f"  {x['times']:.2f} times the time" if x["times"] else ""
    return f"{x['mechanism']:{NAMES}}  {x['work']:{WORKS}}" + "".join(f"{cell:>14}" for cell in cells) + more


def figure(ms):
    """Four digits.

    >>> figure(1234.5), figure(12.345), figure(0.012345)
    ('1234', '12.35', '0.01235')
    """
    return f"{ms:.{max(0, 3 - math.floor(math.log10(ms))) if ms > 0 else 0}f}"


def peer_table(found):
    peers = [(x, peer) for x in found for peer in x["peers"]]
    if not peers:
        return "No peer does any of this."
    width = max(len(peer["name"]) for _, peer in peers)
    columns = ("ms", "least", "most", "npattn faster", "values differ")
    lines = [f"{'against':{width}}  {'work':{WORKS}}" + "".join(f"{name:>14}" for name in columns)]
    for x, peer in peers:
        if "error" in peer:
            lines.append(f"{peer['name']:{width}}  {x['work']:{WORKS}}  {peer['error']}")
        else:
            cells = (*map(figure, (peer["ms"], peer["least"], peer["most"])), f"{peer['ratio']:.2f} times", f"{peer['difference']:.0e}")
            lines.append(f"{peer['name']:{width}}  {x['work']:{WORKS}}" + "".join(f"{cell:>14}" for cell in cells)
                         + ("" if peer["same"] else "  NOT THE SAME WORK"))
    return "\n".join(lines)
