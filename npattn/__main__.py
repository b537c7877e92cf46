"""The command line: `python -m npattn COMMAND`.  Each command's code stands in a module of its own; a new command is one entry in COMMANDS.

Exit status: 0 all is right, 1 something is wrong, 2 the command or its input cannot be used (one line on stderr says why).
"""
import argparse
import importlib
import os
import sys

import npattn


def argument(*names, **settings):
    return names, settings


JSON = argument("--json", action="store_true", help="print JSON, for machines")

# name: (module:function, what it does, its arguments).  The function gets the arguments by name and returns the exit status.
COMMANDS = dict(
    check=("npattn.proof.command:check_command", "show that every form and every gradient is right, here and now",
           [argument("mechanisms", nargs="*", metavar="MECHANISM", help="all, if none is named"),
            argument("--laws", action="store_true", help="every law by name, what it says, and its figure"), JSON]),
    list=("npattn.listing:list_command", "the mechanisms: arguments, state, properties, paper",
          [JSON, argument("--markdown", action="store_true", help="print the table of README.md")]),
    compare=("npattn.compare.command:compare_command", "say whether what a framework computed is right, and which convention explains it if not",
             [argument("path", metavar="DUMP.npz", help="inputs and outputs of one call: .npz, .safetensors or a folder of .npy; derivations/dump_format.md"),
              argument("--mechanism", metavar="NAME", help="if the dump does not say; else all that fit are tried"),
              argument("--layout", choices=("bthd", "bhtd"), help="if the dump does not say"),
              argument("--no-pairs", action="store_true", help="try single hypotheses only: seconds, not up to a minute"),
              argument("--simulate", dest="simulated", choices=("bfloat16", "float16", "tf32"),
                       help="instead, how far off a right implementation of this precision would be on these inputs"), JSON]),
    pitfalls=("npattn.compare.pitfalls:pitfalls_command", "what compare looks for: conventions that differ, and how to tell", [JSON]),
    table=("npattn.table:table_command", "every intermediate number of a small example, in fractions",
           [argument("mechanism", metavar="MECHANISM", help="one with a state of fixed size, such as gated_delta_rule"),
            argument("--tokens", type=int, metavar="T", help="as many as --decay or --beta has entries, else 4"),
            argument("--keys", choices=("identity", "cycle", "random"), default="cycle",
                     help="q = k = v = I; or e1, e2, ... e1, e2, ... for q, k and v, the default; or random ones of length 1"),
            argument("--width", type=int, default=2, metavar="K", help="of keys and values, for cycle and random; default 2"),
            argument("--decay", metavar="FACTORS",
                     help='in 0 ... 1, not logarithms, one for all tokens or one a token: "1, 1/2, 1, 1/2"; per channel "1 1/2, 1/2 1"; default 1'),
            argument("--beta", metavar="STRENGTHS", help="one for all tokens or one a token; default 1"),
            argument("--chunk", type=int, metavar="C", help="the matrix form, C tokens at a time, instead of the loop"),
            argument("--exact", action="store_true", help="every fraction as it is; otherwise one of more than 9 characters is printed as a decimal"),
            argument("--seed", type=int, default=0, help="of the random keys; default 0")]),
    cost=("npattn.cost:cost_command", "the operations of every form, what is kept, and what one token more costs",
          [argument("--mechanism", nargs="+", required=True, metavar="NAME", help="one or more; `npattn list` names them"),
           argument("--tokens", type=int, required=True, metavar="T", help="so many at once, or so many before the one more"),
           argument("--heads", type=int, required=True, metavar="H", help="of queries"),
           argument("--kv-heads", type=int, metavar="H", help="heads of keys and values, which share them among the queries; default as many"),
           argument("--key-dim", type=int, required=True, metavar="K"), argument("--value-dim", type=int, required=True, metavar="V"),
           argument("--layers", type=int, default=1, help="default 1"),
           argument("--chunk", type=int, default=64, metavar="C", help="tokens in a chunk or tile; default 64"),
           argument("--block-size", type=int, default=64, metavar="B", help="of block top-k attention; default 64"),
           argument("--dtype-bytes", type=int, default=4, help="bytes a number; default 4")]),
    bench=("npattn.bench.command:bench_command", "how long the forms take here, forward and backward, and how others compare",
           [argument("mechanisms", nargs="*", metavar="MECHANISM", help="all, if none is named"),
            argument("--tokens", type=int, default=2048, metavar="T", help="default 2048"),
            argument("--heads", type=int, default=16, help="default 16"),
            argument("--key-dim", type=int, default=128, metavar="K", help="default 128"),
            argument("--value-dim", type=int, default=128, metavar="V", help="default 128"),
            argument("--dtype", choices=("float32", "float64"), default="float32"),
            argument("--chunk", type=int, metavar="C", help="tokens in a block or tile; default as in the forms"),
            argument("--repeats", type=int, default=7, metavar="N", help="rounds, of which the median is printed; default 7"),
            argument("--workers", type=int, default=1, metavar="N", help="threads over the heads; set OPENBLAS_NUM_THREADS=1 with it; default 1"),
            argument("--against", choices=("torch",), help="others that do the same work: Transformers, flash-linear-attention, torch, if installed"),
            argument("--compile", action="store_true", help="those under torch.compile as well"),
            argument("--device", choices=("cpu", "cuda"), default="cpu", help="cuda: arrays of CuPy"),
            argument("--scaling", action="store_true", help="eight times the tokens as well"), JSON]),
)


class Unusable(Exception):
    """The command line makes no sense."""


class Parser(argparse.ArgumentParser):
    def error(self, message):
        raise Unusable(f"{self.prog}: {message}; --help says more")


class Version(argparse.Action):
    def __call__(self, parser, *_):
        print(npattn.__version__)
        parser.exit()


def parser():
    top = Parser(prog="npattn", description="Linear and sparse attention in NumPy, exact and explained.")
    top.add_argument("--version", action=Version, nargs=0, default=argparse.SUPPRESS, help="print the version")
    commands = top.add_subparsers(dest="command", metavar="COMMAND", required=True)
    for name, (_, does, arguments) in COMMANDS.items():
        command = commands.add_parser(name, help=does, description=does[0].upper() + does[1:] + ".")
        for names, settings in arguments:
            command.add_argument(*names, **settings)
    return top


def run(argv):
    try:
        given = vars(parser().parse_args(argv))
        command = given.pop("command")
        module, function = COMMANDS[command][0].split(":")
        return getattr(importlib.import_module(module), function)(**given)
    except SystemExit as stop:                           # --help
        return stop.code or 0
    except Unusable as error:
        message = str(error)
    except (ValueError, FileNotFoundError, PermissionError, IsADirectoryError) as error:
        message = f"npattn {command}: {error}"
    print(" ".join(message.split()), file=sys.stderr)
    return 2


def main(argv=None):
    """Run a command; returns the exit status."""
    try:
        status = run(argv)
        print(end="", flush=True)
        return status
    except OSError as error:
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())       # where the rest goes
        if isinstance(error, BrokenPipeError):           # whoever was reading has left, as `head` does: nothing more to say
            return 141
        print(f"npattn: the output cannot be written: {error}", file=sys.stderr)
        return 2


if __name__ == "__main__":
    sys.exit(main())
