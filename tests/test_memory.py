"""What the block forms need beyond what they return: nothing that grows with T, and one state a block for the gradients."""
import tracemalloc

import numpy as np
import pytest

from npattn.catalogue import CATALOGUE
from npattn.core.states import leaves

RECURRENT = [row for row in CATALOGUE.values() if row.recurrent]
C, K, V, SHORT, LONG = 16, 64, 64, 256, 2048


def size(results):
    return sum(x.nbytes for part in results for x in leaves(part))


def extra(call):
    """Peak bytes while `call` runs, less those of what it returns."""
    call()                                                           # what the first call imports and keeps is not counted
    tracemalloc.start()
    try:
        results = call()
        peak = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    return peak - size(results.values() if isinstance(results, dict) else results)


def arguments(row, T):
    return row.arguments(np.random.default_rng(0), T, lead=(2,), K=K, V=V)


@pytest.mark.parametrize("row", RECURRENT, ids=lambda row: row.name)
def test_chunk_needs_no_more_for_more_tokens(row):
    def needed(T):
        x = arguments(row, T)
        return extra(lambda: row.module.chunk(**x, chunk_size=C))

    assert needed(LONG) < needed(SHORT) + size([arguments(row, 1)["state"]]) + 8192              # 8 times the tokens, not even one state more


@pytest.mark.parametrize("row", RECURRENT, ids=lambda row: row.name)
def test_chunk_vjp_keeps_one_state_a_block(row):
    def needed(T):
        x = arguments(row, T)
        o, final = row.module.chunk(**x)
        do = np.ones_like(o)
        return extra(lambda: row.module.chunk_vjp(do, **x, dfinal_state=final, chunk_size=C))

    state = size([arguments(row, 1)["state"]])
    more = (needed(LONG) - needed(SHORT)) / ((LONG - SHORT) // C)                # bytes for each further block
    assert 0.9 * state < more < 1.2 * state + 1024                               # 1024: a slice and the like
