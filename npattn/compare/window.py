"""A part of a dump on which most rows of the table show quickly that they do not fit.

Ahead    one batch row, the first tokens of o: as many as it takes to see something wrong
Slice    one batch row, one key head and those that use it, all tokens and all outputs
"""
from dataclasses import replace

import numpy as np

from .case import changed, computed
from .hypotheses.attention import setting
from .measure import profile
from .problem import SCORES


STEEP = 1e3                                              # so many times the usual size of a token, from which on numbers explode


class Ahead:
    def __init__(self, subject):
        case, e = subject.case, subject.error("o", subject.right["o"])
        row = 0 if e.where is None else e.where[0]
        got, right = (x[row:row + 1] for x in (case.got["o"], subject.right["o"]))
        self.level, self.kept, each = subject.at("o"), {}, e.each[row:row + 1]
        self.steep = steep(got) or steep(right)          # then the last tokens say nothing about the first ones: each has its own size
        if self.steep:
            each = np.where(each < 0, -1, difference(got, right) / sizes(right))
        bad = np.flatnonzero(profile(each, 2) > (self.level if self.steep else max(self.level, e.relative / 100)))
        self.wrong, self.first = bad.size > 0, int(bad[0]) if bad.size else each.shape[2]
        self.tokens = min(each.shape[2], (self.first if self.wrong else 0) + (4 if self.steep else 16))
        self.size = largest(case.got["o"])
        self.all = cut(case, row)
        # one more, for who looks at the next one; all of them, where the first sees the last
        self.some = cut(case, row, tokens=self.tokens + 1) if case.mechanism.recurrent or setting(case, "causal") else self.all
        self.got, self.right = (x[:, :, :self.tokens] for x in (got, right))

    def o(self, rows):
        """What rows make of it; None where they make no sense."""
        key = tuple(row.name for row in rows)
        if key not in self.kept:
            y = computed(changed(self.all if any(row.whole for row in rows) else self.some, rows), False)
            y = None if y is None or y["o"].shape[1] != self.got.shape[1] else y["o"][:, :, :self.tokens]
            if len(rows) > 1:
                return y
            self.kept[key] = y
        return self.kept[key]

    def far(self, y, other, tokens=None):
        if y is None:
            return np.inf
        y, other = y[:, :, :tokens], other[:, :, :tokens]
        if self.steep:
            return (difference(y, other, self.some.real) / sizes(other)).max(initial=0)
        return apart(y, other, self.some.real) / self.size

    def distance(self, rows):
        """The largest difference to what was returned."""
        return self.far(self.o(rows), self.got)

    def agrees(self, rows):
        return self.distance(rows) <= 2 * self.level

    def harmless(self, row):
        """Whether it leaves right what is right ahead of the first wrong token."""
        return self.far(self.o((row,)), self.right, min(self.first, self.tokens)) <= 4 * self.level

    def acts(self, row):
        return self.far(self.o((row,)), self.right) > 0.1 * self.level


class Slice:
    def __init__(self, subject):
        errors = {name: subject.error(name, subject.right[name]) for name in subject.case.got}
        worst = max(errors.values(), key=lambda e: e.relative).where
        few, case = subject.case.arrays["k"].shape[1], subject.case
        self.row = worst[0] if case.cu_seqlens is None else 0
        name = max(errors, key=lambda name: errors[name].relative)
        many = case.got[name].shape[1]
        self.case = cut(case, self.row, head=worst[1] // max(many // few, 1) if many >= few else 0)
        self.at, self.sizes, self.back = subject.at, {name: largest(x) for name, x in case.got.items()}, subject.back
        self.counted = {name: None if subject.real(name) is None else self.case.real for name in case.got}

    def agrees(self, rows):
        y = computed(changed(self.case, rows), self.back)
        return y is not None and all(name in y and y[name].shape == x.shape
                                     and apart(y[name], x, self.counted[name]) <= 2 * self.at(name) * self.sizes[name]
                                     for name, x in self.case.got.items())


# --- parts -------------------------------------------------------------------------------------------------------

def cut(case, row, tokens=None, head=None):
    """A batch row of a Case, perhaps only its first tokens (unless queries and keys are not as many) or one key head.  What it
    returned is kept of a head.
    """
    T, few, recurrent = case.arrays["q"].shape[2], case.arrays["k"].shape[1], case.mechanism.recurrent
    some = slice(tokens if case.arrays["k"].shape[2] == T else None)
    n = case.arrays["state.k"].shape[2] if "state.k" in case.arrays else 0
    ratio = case.arrays["v" if recurrent else "q"].shape[1] // few

    def part(name, x):
        of = name.removeprefix("d").removeprefix("final_") if name != "do" else name
        x = x if case.cu_seqlens is not None and "state" in name else x[row:row + 1] if x.shape[0] > 1 else x
        if head is not None and x.shape[1] > 1:
            shared = of in ("q", "k") if recurrent else of in ("k", "v", "state.k", "state.v")
            x = x[:, head:head + 1] if shared else x[:, head * ratio:(head + 1) * ratio]
        if of in SCORES:
            x = x[:, :, some] if x.shape[2] > 1 else x
            return x[..., :n + some.stop] if x.shape[3] > 1 and some.stop is not None else x
        return x if "state" in name else x[:, :, some]

    return replace(case, arrays={name: part(name, x) for name, x in case.arrays.items()},
                   got={} if head is None else {name: part(name, x) for name, x in case.got.items()},
                   real=None if case.real is None else case.real[row:row + 1, some],
                   cu_seqlens=case.cu_seqlens if case.cu_seqlens is None or some.stop is None else np.minimum(case.cu_seqlens, some.stop))


def difference(a, b, real=None):
    """Element by element; infinite where only one is NaN, zero for padding."""
    with np.errstate(all="ignore"):
        d = np.where(a == b, 0, np.abs(a - b))
    d = np.where(np.isnan(d), np.where(np.isnan(a) & np.isnan(b), 0, np.inf), d)
    if real is not None:
        d = np.where(np.expand_dims(real[:, :d.shape[2]], (1, *range(3, d.ndim))), d, 0)
    return d


def apart(a, b, real):
    """The largest difference."""
    return difference(a, b, real).max(initial=0)


def largest(x):
    return np.abs(x[np.isfinite(x)]).max(initial=0) or 1


def by_token(x):
    """The largest finite entry of every token, (T)."""
    return np.where(np.isfinite(x), np.abs(x), 0).max((0, 1, 3), initial=0)


def steep(x):
    """Whether numbers grow so much from token to token that the largest says nothing about the others."""
    size = by_token(x)
    return size.max(initial=0) > STEEP * np.median(size[size > 0]) if size.any() else False


def sizes(x):
    """The largest entry up to a token, (T, 1)."""
    size = np.maximum.accumulate(by_token(x))[:, None]
    return np.where(size > 0, size, largest(x))
