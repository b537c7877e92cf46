"""Every form of a mechanism against the shipped outputs of real frameworks."""
import math
from typing import NamedTuple

from .. import data
from .measure import error
from .problem import evaluate
from .read import ALIASES, read

FORMS = ("loop", "matrix", "chunk")


class FrameworkError(NamedTuple):
    source: str                                          # framework and function
    dump: str                                            # its name in npattn.data
    form: str                                            # loop, …, chunk_vjp
    error: float                                         # the largest relative error of any output, or of any gradient
    bound: float                                         # the largest that the precision of the framework's values explains
    values: str                                          # that precision: float64, float32, …
    raised: str = ""                                     # what the form raised, if it did; the error is then infinite

    @property
    def right(self):
        return bool(self.error <= self.bound)            # False for NaN


def framework_error(row):
    """A FrameworkError for every dump of the catalogue's `row` in npattn.data and every form, forward and, with gradients, backward."""
    return [found for name, about in data.provenance().items() for found in dump_errors(row, name, about)]


def dump_errors(row, name, about):
    arrays = data.dump(name)
    if ALIASES.get(str(arrays["mechanism"]), str(arrays["mechanism"])) != row.name:
        return
    dump = read(arrays)
    for form in FORMS:
        for backward in (False, True):
            keys = [key for key in dump.outputs if key.startswith("d") == backward]
            if keys:
                found = (f"{about['framework']}, {about['function']}", name, form + "_vjp" * backward)
                try:
                    pair = getattr(row.module, form), getattr(row.module, form + "_vjp") if backward else None
                    expected = evaluate(dump.problem, pair, gradients=backward)
                except Exception as raised:              # a form that raises is a form that is wrong, and no other
                    yield FrameworkError(*found, math.inf, about["bound"], about["values"], f"{type(raised).__name__}: {raised}")
                else:
                    worst = max(error(expected[key], dump.outputs[key]).relative for key in keys)
                    yield FrameworkError(*found, worst, about["bound"], about["values"])
