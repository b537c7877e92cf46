"""`python -m npattn compare --simulate`: how far off a right implementation of low precision would be on the inputs of a dump."""
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from .case import case_of, outcome, wrong
from .check import right_outputs
from .read import read
from .report import plain
from .rounding import rounded, with_inputs, with_products, with_state
from .search import Subject

LONGEST = 8192                                           # tokens, batch rows included


@dataclass(frozen=True, repr=False)
class Simulation:
    mechanism: str
    precision: str
    rows: tuple                                          # (T, what is of low precision, {output: relative error})
    yours: Any                                           # {output: relative error} of what the dump holds

    def as_dict(self):
        return dict(mechanism=self.mechanism, precision=self.precision, yours={name: plain(e) for name, e in self.yours.items()},
                    simulated=[dict(T=T, low=what, errors={name: plain(e) for name, e in errors.items()}) for T, what, errors in self.rows])

    def __repr__(self):
        return f"<Simulation of {self.mechanism} in {self.precision}>"

    def __str__(self):
        names = list(self.yours)
        wide = max(len(what) for _, what, _ in self.rows)
        lines = [f"{self.mechanism} in {self.precision}: how far off a right implementation would be, relative to the largest entry", "",
                 f"{'T':>6}  {'of low precision':{wide}}" + "".join(f"  {name:>11}" for name in names)]
        cell = lambda e: f"  {e:11.1e}" if e is not None else f"  {'-':>11}"
        lines += [f"{T:6}  {what:{wide}}" + "".join(cell(errors.get(name)) for name in names) for T, what, errors in self.rows]
        return "\n".join([*lines, "", f"{'':6}  {'the dump itself':{wide}}" + "".join(map(cell, self.yours.values()))])


def simulate(path_or_mapping, precision, mechanism=None, layout=None):
    """A Simulation in bfloat16, float16 or tf32: for T as it is, and for the tokens repeated two, four and eight times.

    q, k and v are rounded, and so are outputs (but for tf32, which is no type of storage); all matrix products take rounded
    operands and add up in float32; the state is kept in float32, or in the low precision too, rounded after every token.  Against
    the right numbers for the inputs as they are, in float64.
    """
    dump = read(path_or_mapping, mechanism, layout)
    case, axes = case_of(dump), dump.axes
    right, rows = right_outputs(dump), []
    yours = Subject(case, axes, right, 0).errors(right)
    forward = [name for name in dump.outputs if not name.startswith("d")] or ["o"]
    whole = case.real is None and case.cu_seqlens is None and not {"mask",
        "bias"} & case.arrays.keys() and case.arrays["q"].shape[2] == case.arrays["k"].shape[2]
    for times in (1, 2, 4, 8) if whole else (1,):
        T = times * case.arrays["q"].shape[2]
        if times > 1 and T * case.arrays["q"].shape[0] > LONGEST:
            break
        long = repeated(case, times)
        true = outcome(long)
        subject = Subject(replace(long, got={name: true[name] for name in forward if name in true}), axes | dict(o=["B", "H", "T", "V"]),
                          true, 0)
        for what, change in models(precision, case.mechanism.recurrent):
            with np.errstate(all="ignore"):
                rows.append((T, what, subject.errors(outcome(change(long)))))
    return Simulation(case.mechanism.name, precision, tuple(rows), yours | {name: yours.get(name) for name in forward})


def models(precision, recurrent):
    low = lambda y, case: {name: rounded(x, precision) for name, x in y.items()}
    stored = lambda case: case if precision == "tf32" else wrong(case, add_outputs=low)
    inputs = lambda case: case if precision == "tf32" else with_inputs(case, precision)
    products = lambda case: stored(with_products(inputs(case), precision))
    if precision != "tf32":
        yield "inputs and outputs", lambda case: stored(inputs(case))
    yield "and matrix products" if precision != "tf32" else "matrix products", products
    if recurrent and precision != "tf32":
        yield "inputs, outputs, and the state at every token", lambda case: stored(with_state(inputs(case), precision))


def repeated(case, times):
    """The tokens `times` times in a row."""
    return replace(case, arrays={name: x if "state" in name else np.concatenate([x] * times, 2) for name, x in case.arrays.items()})
