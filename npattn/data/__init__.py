"""Outputs and gradients of real frameworks, as dumps (derivations/dump_format.md), small enough to ship; provenance.json says where each is from."""
import json
from importlib.resources import files

import numpy as np


def provenance():
    """What is known of every dump, by name: framework, function, arguments, conventions, the precision of its values, the error to expect."""
    return json.loads(files(__name__).joinpath("provenance.json").read_text())


def dump(name):
    """The arrays of one dump by key.  KeyError for a name that is not in `provenance()`.

    >>> sorted(dump("fla_delta_rule"))
    ['beta', 'dbeta', 'dfinal_state', 'dk', 'do', 'dq', 'dstate', 'dv', 'final_state', 'k', 'layout', 'mechanism', 'o', 'q', 'state', 'v']
    """
    if name not in provenance():
        raise KeyError(f"no dump {name!r} is shipped; there are {', '.join(sorted(provenance()))}")
    with files(__name__).joinpath(f"{name}.npz").open("rb") as file, np.load(file, allow_pickle=False) as z:
        return {key: z[key] for key in z.files}
