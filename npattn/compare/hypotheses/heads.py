"""Heads and axes: which numbers meet."""
import numpy as np

from ..case import wrong
from ..hypothesis import Hypothesis


def heads(case):
    """(key heads, heads of the output)."""
    return case.arrays["k"].shape[1], case.arrays["v" if case.mechanism.recurrent else "q"].shape[1]


def is_grouped(case):
    few, many = heads(case)
    return 1 < few < many


def tiled(case):
    """The heads of the output in the order 0, few, 2 few, …, 1, few + 1, …: then those of one key head stand together, as the forms
    want it.
    """
    few, many = heads(case)
    order = np.arange(many).reshape(many // few, few).T.ravel()
    fixed = "q k" if case.mechanism.recurrent else "k v state.k state.v"
    put = lambda names, order: lambda x, *_: {name: y[:, order] if names(name) and y.shape[1] == many else y for name, y in x.items()}
    back = lambda name: name == "o" or (case.mechanism.recurrent and name.startswith("final_state"))
    ends = lambda name: name != "do" and not name.startswith("dfinal_state")
    return wrong(case, add_inputs=put(lambda name: name not in fixed.split() and ends(name), order),
                 add_outputs=put(back, np.argsort(order)))


def first_head(case):
    names = "q k" if case.mechanism.recurrent else "k v"
    return wrong(case, add_inputs=lambda x: x | {name: x[name][:, [0] * x[name].shape[1]] for name in names.split()})


def read_as(there, back):
    """Every array with tokens goes in through `there`, the output comes back through `back`: what comes out if heads are taken for
    tokens.
    """
    def change(case):
        ends = lambda name: name != "do" and "state" not in name
        one, two = (there, back) if case.layout == "bthd" else (back, there)
        return wrong(case, add_inputs=lambda x: {name: one(y) if ends(name) else y for name, y in x.items()},
                     add_outputs=lambda y, case: y | dict(o=two(y["o"])))
    return change


def swapped(x):
    return x.swapaxes(1, 2)


def viewed(x):
    """(B, H, T, …), stored as [B, T, H, …], read as if it were stored as [B, H, T, …]."""
    return x.swapaxes(1, 2).reshape(x.shape)


def viewed_back(x):
    """The reverse: the numbers of (B, H, T, …) in their order, as [B, T, H, …]."""
    return x.reshape(x.shape[:1] + (x.shape[2], x.shape[1]) + x.shape[3:]).swapaxes(1, 2)


def plain_sizes(case):
    """No padding, no packing, all heads alike where asked: the swapped axes fit."""
    return case.real is None and case.cu_seqlens is None and not {"mask", "bias"} & case.arrays.keys()


def can_swap(case):
    q, k, v = (case.arrays[name] for name in "qkv")
    states = [x.shape[1] for name, x in case.arrays.items() if name.startswith("state")]
    return plain_sizes(case) and q.shape[1] == k.shape[1] == v.shape[1] and k.shape[2] == q.shape[2] and all(n == q.shape[2]
                                                                                                             for n in states)


HEADS = (
    Hypothesis("key heads tiled", "heads", tiled, "Output head h uses key head h mod H: the key heads are tiled, 0, 1, 0, 1.",
               "Repeat each key head G times in a row: 0, 0, 1, 1; head h uses key head h // G.",
               "more than one key head, and several output heads for each", when=is_grouped, mixes=True),
    Hypothesis("first key head for all", "heads", first_head, "All heads use the first key head.", "Head h uses key head h // G.",
               "more than one key head",
               when=lambda c: c.arrays["k"].shape[1] > 1, mixes=True),
    Hypothesis("head and time axes swapped", "axes", read_as(swapped, swapped), "Heads are taken for tokens and tokens for heads.",
               "Give the arrays in the layout that the kernel expects.",
               "T that differs from the number of heads makes it an error of shape, if shapes are checked", meant=can_swap, whole=True,
               mixes=True),
    Hypothesis("head and time axes viewed, not swapped", "axes", read_as(viewed, viewed_back),
               "The arrays are reshaped from one layout to the other, without moving their entries.",
               "Transpose, do not reshape.", "more than one head", meant=lambda c: plain_sizes(c)
               and not any(name.startswith("state") for name in c.arrays), whole=True, mixes=True))
