"""`python -m npattn table`: the worked table of a recurrent mechanism on a small example, in fractions.

    python -m npattn table gated_delta_rule --decay "1, 1/2, 1, 1/2"                 token by token
    python -m npattn table gated_delta_rule --decay "1, 1/2, 1, 1/2" --chunk 2       chunk by chunk: the same numbers, another way
"""
import inspect

from .catalogue import CATALOGUE
from .proof.worked import chunk_table, example, loop_table


def table_command(mechanism, tokens, keys, width, decay, beta, chunk, exact, seed):
    """Prints the table and returns 0; ValueError, in one line, if the arguments make no example."""
    if chunk is not None and chunk < 1:
        raise ValueError(f"chunk must be at least 1, not {chunk}")
    x = example(mechanism, tokens, keys, decay, beta, width, seed)
    longest = None if exact else 9
    if chunk is None:
        loop_table(mechanism, longest=longest, **x)
    else:
        chunk_table(mechanism, chunk, longest=longest, **x)
    if "scale" in inspect.signature(CATALOGUE[mechanism].module.loop).parameters:
        print(f"o is q S; the default scale would multiply it by 1/sqrt({x['q'].shape[-1]})")
    return 0
