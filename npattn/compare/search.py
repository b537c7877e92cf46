"""The search: which rows of the table, alone or two together, give the numbers of a dump.

Every row is first tried on a part of the dump; only what agrees there is computed as a whole.  Two rows are tried together if
neither disturbs what is right ahead of the first wrong token, and if at least one of them changes something there.
"""
import time
from dataclasses import replace
from itertools import combinations
from typing import Any, NamedTuple

import numpy as np

from .case import REFUSED, changed, computed, form_of, is_result
from .hypotheses import HYPOTHESES
from .measure import error
from .window import Ahead, Slice

BETTER = 10                                              # so many times better than the right computation a fit has to be
BIG = 3e5                                                # numbers in all states, from which on a part is tried first though o is not there


class Fit(NamedTuple):
    """Rows that explain outputs."""
    rows: tuple
    errors: dict                                         # by output: the relative error that remains

    @property
    def worst(self):
        return max(self.errors.values())


class Subject(NamedTuple):
    """What is to be explained, and how near an explanation must come."""
    case: Any                                            # the right Case; its `got` are the outputs to be explained
    axes: dict                                           # of every output
    right: dict                                          # what is right, by output
    level: float                                         # the coarsest
    levels: Any = None                                   # by output, where they differ

    def at(self, name):
        """The level of an output."""
        return (self.levels or {}).get(name, self.level)

    def within(self, errors, times=1):
        return all(e <= times * self.at(name) for name, e in errors.items())

    def errors(self, y):
        """The relative error of every output against y; infinite where shapes differ."""
        return {name: self.error(name, y[name]).relative if name in y and y[name].shape == x.shape else np.inf
                for name, x in self.case.got.items()}

    def error(self, name, y):
        return error(self.case.got[name], y, self.real(name))

    def real(self, name):
        """Which tokens of an output count; None for all."""
        return self.case.real if self.axes[name][2] in "TN" else None

    @property
    def back(self):
        """Whether gradients are asked for."""
        return any(not is_result(name) for name in self.case.got)

    def only(self, names):
        """The same for some of the outputs."""
        return self._replace(case=replace(self.case, got={name: x for name, x in self.case.got.items() if name in names}))


class Search:
    """Rows tried one after the other, and what was found."""

    def __init__(self, subject, progress=lambda done, of: None):
        self.subject, self.progress, self.singles, self.tried = subject, progress, {}, 0
        self.forward = subject.only([name for name in subject.case.got if is_result(name)])
        errors = subject.errors(subject.right)
        self.numbers = {name: int((subject.error(name, subject.right[name]).each > subject.at(name)).sum()) for name in subject.case.got}
        self.worst, self.forward_right = max(errors.values()), subject.within({name: errors[name] for name in self.forward.case.got})
        self.rows = [row for row in HYPOTHESES if row.concerns(subject.case.mechanism) and row.meant(subject.case)
                     and row.when(subject.case)
                     and (subject.back or not row.back)]
        K, V, T = subject.case.arrays["q"].shape[-1], subject.case.arrays["v"].shape[-1], subject.case.arrays["q"].shape[2]
        self.ahead = Ahead(subject) if "o" in subject.case.got else None
        self.slice = Slice(subject) if np.prod(subject.case.arrays["v"].shape[:-1]) * K * V > BIG and T else None

    def fits(self, rows):
        """Whether rows agree on the part that is tried first."""
        if self.ahead is not None and not all(row.back for row in rows):
            return self.ahead.agrees(rows)
        return self.slice is None or any(row.mixes for row in rows) or self.slice.agrees(rows)

    def whole(self, rows):
        """The Fit of rows, whether good or bad; None where they make no sense."""
        case = changed(self.subject.case, rows)
        if all(row.back for row in rows):                # the outcome but for the last touches is known
            try:
                with np.errstate(all="ignore"):
                    y = dict(self.subject.right)
                    for change in case.gradients:
                        y = change(y, case)
            except REFUSED:
                return None
            return Fit(rows, self.subject.errors(y))
        y = computed(case, False) if self.forward.case.got else {}
        errors = {} if y is None else self.forward.errors(y)
        if y is None or not self.subject.back or not self.subject.within(errors, 2):
            return None if y is None else Fit(rows, errors)
        y = computed(case, True)                         # gradients only where the outputs are right
        return None if y is None else Fit(rows, self.subject.errors(y))

    def good(self, fit):
        """Whether it explains everything."""
        return fit is not None and fit.errors.keys() == self.subject.case.got.keys() and \
            self.subject.within(fit.errors) and BETTER * fit.worst <= self.worst and not self.by_chance(fit)

    def by_chance(self, fit):
        """Whether so few numbers are wrong that one of all combinations may well hit them, each within the level."""
        free = sum("factor" in row.name for row in fit.rows)                 # these rows fit a number themselves
        digits = [-np.log10(self.subject.at(name)) for name in self.numbers]
        known = np.dot(list(self.numbers.values()), digits) - free * min(digits)
        return known < 3 + len(fit.rows) * np.log10(len(self.rows))

    def single(self):
        """The good fits of single rows."""
        for row in self.rows:
            self.tried += 1
            if (self.forward_right or not row.back) and self.fits((row,)):
                self.singles[row.name] = self.whole((row,))
        return self.ranked(fit for fit in self.singles.values() if self.good(fit))

    def near(self, level):
        """Single rows whose outputs are within `level`, and far better than the right ones: what remains may be rounding.  Best first."""
        rows = [row for row in self.rows if not row.back and self.ahead is not None and self.ahead.distance((row,)) <= 2 * level]
        fits = [self.singles.get(row.name) or self.whole((row,)) for row in rows]
        return sorted((fit for fit in fits if fit is not None and fit.worst <= level and BETTER * fit.worst <= self.worst),
                      key=lambda fit: fit.worst)

    def pairs(self, seconds):
        """The good fits of two rows, and whether all were tried within the time."""
        end, found, pairs = time.monotonic() + seconds, [], self.sensible()
        done = 0
        for pair in pairs:
            if time.monotonic() > end:
                break
            self.progress(done, len(pairs))
            if self.fits(pair) and self.good(fit := self.whole(pair)):
                found.append(fit)
            done += 1
        self.progress(len(pairs), len(pairs))
        self.tried += done
        return self.ranked(found), done == len(pairs)

    def sensible(self):
        """The pairs worth trying, the dear ones last."""
        ahead = self.ahead
        inside = {row.name for row in self.rows if ahead is not None and not row.back and ahead.acts(row)}
        alone = {row.name for row in self.rows if ahead is None or row.back or ahead.agrees((row,))}
        outputs = {row.name for row in self.rows if not row.back and self.explains_outputs(row)}
        rows = [row for row in self.rows if row.back or ahead is None or ahead.harmless(row)]

        def may(one, two):
            if one.excludes(two):
                return False
            if one.back or two.back:                     # what changes gradients only cannot help with outputs
                return self.forward_right if one.back and two.back else (two if one.back else one).name in outputs
            if ahead is None or not ahead.wrong:
                return not inside & {one.name, two.name}
            acting = inside & {one.name, two.name}
            return len(acting) == 2 or len(acting) == 1 and acting <= alone

        dear = {row.name: row.whole + 2 * (self.subject.back and form_of(row.change(self.subject.case)) != "chunk") for row in rows
                if not row.back}
        return sorted((pair for pair in combinations(rows, 2) if may(*pair)), key=lambda pair: sum(dear.get(row.name, 0) for row in pair))

    def explains_outputs(self, row):
        """Whether a row makes all outputs right that are no gradients; true if there are none."""
        fit = self.singles.get(row.name)
        names = self.forward.case.got
        return not names or fit is not None and self.subject.within({name: fit.errors[name] for name in names})

    def ranked(self, fits):
        """By how well the numbers agree, to a power of ten, then as in the table."""
        place = {row.name: n for n, row in enumerate(HYPOTHESES)}
        return sorted(fits, key=lambda fit: (round(np.log10(max(fit.worst, self.subject.level * 1e-3))),
                                             [place[row.name] for row in fit.rows]))
