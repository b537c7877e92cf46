"""`python -m npattn table`: the worked table of a recurrent mechanism on a small example, in fractions.

    python -m npattn table gated_delta_rule --decay "1, 1/2, 1, 1/2"                 token by token
    python -m npattn table gated_delta_rule --decay "1, 1/2, 1, 1/2" --chunk 2       chunk by chunk: the same numbers, another way
"""
import sys

from .catalogue import CATALOGUE
from .proof.worked import chunk_table, example, loop_table

HELP = "every intermediate number of a small example, in fractions"


def add_arguments(parser):
    add = parser.add_argument
    add("mechanism", metavar="MECHANISM", help="one with a state of fixed size, such as gated_delta_rule; `python -m npattn list` has all")
    add("--tokens", type=int, metavar="T", help="number of tokens; as many as --decay or --beta has entries, else 4")
    add("--keys", default="cycle", help="identity: q = k = v = I;  cycle: e1, e2, ... e1, e2, ..., the same for v and q;  random: keys of length 1 (cycle)")
    add("--width", type=int, default=2, help="width of keys and values for cycle and random (2)")
    add("--decay", help='factors in 0 ... 1, not logarithms, one for all tokens or one a token: "1, 1/2, 1, 1/2"; '
                        'one number a channel where gates have channels: "1 1/2, 1/2 1" (1)')
    add("--beta", help='write strengths, one for all tokens or one a token (1)')
    add("--chunk", type=int, metavar="C", help="the matrix form, C tokens at a time, instead of the loop")
    add("--exact", action="store_true", help="print every fraction as it is; otherwise one of more than 9 characters is printed as a decimal")
    add("--seed", type=int, default=0, help="of --keys random (0)")


def run(args):
    """Prints the table; 0, or 2 after one line on stderr if the arguments make no example."""
    try:
        if args.chunk is not None and args.chunk < 1:
            raise ValueError(f"chunk must be at least 1, not {args.chunk}")
        x = example(args.mechanism, args.tokens, args.keys, args.decay, args.beta, args.width, args.seed)
    except ValueError as error:
        print(f"table: {error}", file=sys.stderr)
        return 2
    longest = None if args.exact else 9
    if args.chunk is None:
        loop_table(args.mechanism, longest=longest, **x)
    else:
        chunk_table(args.mechanism, args.chunk, longest=longest, **x)
    if args.mechanism != "normalized_linear_attention":
        print(f"o is q S; the default scale would multiply it by 1/sqrt({x['q'].shape[-1]})")
    return 0
