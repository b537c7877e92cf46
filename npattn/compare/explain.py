"""Why a result is wrong: the convention, or the two, that give the same numbers."""
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np

from .case import case_of, changed, computed, is_result
from .check import compare, right_outputs
from .hypotheses import HYPOTHESES
from .layout import DumpError
from .measure import LEVELS
from .read import fitting, load, read
from .report import Report, plain
from .rounding import recognised
from .search import Search, Subject
from .words import join, picture

VERDICTS = ("right", "right within rounding", "explained", "unexplained")    # best first


@dataclass(frozen=True)
class Explanation:
    """Hypotheses that give the numbers of a dump."""
    names: tuple                                         # of the rows of the table
    says: tuple                                          # by row: what the implementation does
    remedies: tuple                                      # by row: what to change
    shows: tuple                                         # by row: which inputs show it
    errors: Mapping                                      # by output that it explains: the relative error that remains
    rounding: str = ""                                   # what explains the rest, where that is more than the values' own rounding
    leaves: tuple = ()                                   # outputs that are wrong all the same
    equals: tuple = ()                                   # names of others that these inputs do not tell from it

    @property
    def error(self):
        return max(self.errors.values())

    @property
    def name(self):
        return " + ".join(self.names)

    def as_dict(self):
        return dict(names=list(self.names), says=list(self.says), remedies=list(self.remedies), shows=list(self.shows), error=plain(self.error),
                    errors={name: plain(e) for name, e in self.errors.items()}, explains=list(self.errors), leaves=list(self.leaves), rounding=self.rounding,
                    equivalent=[list(names) for names in self.equals])

    def __str__(self):
        lines = [self.name + (f" (explains {join(self.errors)}, not {join(self.leaves)})" if self.leaves else "")]
        for says, remedy in zip(self.says, self.remedies):
            lines += [f"  {says}", f"    -> {remedy}"]
        return "\n".join([*lines, f"  What remains is {self.error:.1e} at most" + (f": {self.rounding}." if self.rounding else ".")])


@dataclass(frozen=True, repr=False)
class Diagnosis:
    """`str(diagnosis)` is what `python -m npattn compare` prints."""
    verdict: str                                         # one of VERDICTS
    precision: str                                       # of the values, or of what explains the difference
    report: Report
    explanations: tuple = ()                             # simplest first
    partial: tuple = ()                                  # Explanations of some of the outputs, where nothing explains all
    rounding: str = ""                                   # which rounding explains the difference, where it is more than that of the values
    picture: tuple = ()                                  # sentences about the error, where nothing explains it
    blind: tuple = ()                                    # rows of the table that these inputs could not show
    tried: int = 0                                       # combinations of rows
    complete: bool = True                                # whether the search came to its end
    others: tuple = ()                                   # other mechanisms that fit the arrays, each with its verdict

    @property
    def right(self):
        return self.verdict in VERDICTS[:2]

    @property
    def headline(self):
        if self.right:
            return "RIGHT" if self.verdict == "right" else f"RIGHT within {self.precision} rounding" + (f": {self.rounding}" if self.rounding else "")
        return f"EXPLAINED: {self.explanations[0].name}" if self.explanations else "UNEXPLAINED"

    def as_dict(self):
        """Plain data for json.dumps."""
        best = self.explanations[0] if self.explanations else None
        return self.report.as_dict() | dict(
            verdict=self.verdict, precision=self.precision, rounding=self.rounding, names=list(best.names) if best else [],
            error=plain(best.error if best else max(row.error.relative for row in self.report.rows)), explanations=[x.as_dict() for x in self.explanations],
            partial=[x.as_dict() for x in self.partial], picture=list(self.picture), not_shown_by_these_inputs=list(self.blind), tried=self.tried,
            complete=self.complete, other_mechanisms=dict(self.others))

    def __repr__(self):
        return f"<Diagnosis of {self.report.mechanism}: {self.headline}>"

    def __str__(self):
        lines = [str(self.report).rpartition("\n")[0]]
        lines += [f"Tried as well: {', '.join(f'{name}: {verdict}' for name, verdict in self.others)}", ""] if self.others else []
        if self.right:
            shows = list(dict.fromkeys(row.shows for row in HYPOTHESES if row.name in self.blind))
            lines += ["Not tested, as it takes: " + "; ".join(shows[:6]) + (f"; and {len(shows) - 6} more (--json)" if len(shows) > 6 else ""), ""] if shows else []
            return "\n".join([*lines, self.headline])
        wrong = [row.name for row in self.report.rows if not row.right]
        lines += [f"WRONG: {', '.join(wrong)}", ""]
        for x in self.explanations[:1]:
            lines += [str(x)]
            if x.equals:
                same = [one for one in self.explanations if one.names in x.equals]
                shows = dict.fromkeys(show for one in (x, *same) for show in one.shows)
                lines += [f"  These inputs do not tell it from: {'; '.join(one.name for one in same)}.", f"    To tell them apart, compare with: {'; '.join(shows)}."]
            lines += [""]
        lines += [f"{line}" for line in self.picture] + [""] * bool(self.picture)
        lines += [f"Some of it would be explained by\n{x}\n" for x in self.partial[:3]]
        if not self.complete:
            lines += [f"The search stopped after {self.tried} combinations; there are more pairs.", ""]
        return "\n".join([*lines, self.headline])


# --- from a dump -------------------------------------------------------------------------------------------------

def diagnose(path_or_mapping, mechanism=None, layout=None, *, pairs=True, seconds=50, progress=lambda done, of: None):
    """Whether the outputs and gradients in a dump are right and, if not, why: a Diagnosis.

    path_or_mapping, mechanism, layout: as for check_dump; without a mechanism, given or stored, all that fit the arrays are tried.  pairs: whether two
    hypotheses are tried together where no single one explains, for as many `seconds` at most; progress(done, of) is called between them.
    Raises DumpError, a ValueError of one line, for what cannot be used.
    """
    arrays = load(path_or_mapping)
    dumps = candidates(arrays, mechanism, layout)
    found = [judged(dump, pairs and len(dumps) == 1, seconds, progress) for dump in dumps]
    if pairs and len(dumps) > 1 and not any(one.right or one.explanations for one in found):
        found = [judged(dump, True, seconds / len(dumps), progress) for dump in dumps]
    best = min(found, key=lambda one: (VERDICTS.index(one.verdict), len(one.explanations[0].names) if one.explanations else 0))
    return replace(best, others=tuple((one.report.mechanism, one.verdict) for one in found if one is not best))


def candidates(arrays, mechanism, layout):
    """The Dump; several where no mechanism is named, one for each that the arrays fit."""
    if mechanism or "mechanism" in arrays:
        return [read(arrays, mechanism, layout)]
    dumps = []
    for name in fitting({key: x for key, x in arrays.items() if key != "layout"}):
        try:
            dumps.append(read(arrays, name, layout))
        except DumpError:
            pass                                         # another mechanism's options are missing
    return dumps or [read(arrays, None, layout)]         # which says what is missing


def judged(dump, pairs, seconds, progress):
    """The Diagnosis of a Dump."""
    right = right_outputs(dump)
    report = compare(dump, right)
    case = case_of(dump)
    blind = tuple(row.name for row in HYPOTHESES if not row.back and row.concerns(case.mechanism) and row.meant(case) and not row.when(case))
    if report.right:
        exact = max(row.error.relative for row in report.rows) <= LEVELS["float64"]
        return Diagnosis("right" if exact else VERDICTS[1], report.precision, report, blind=blind)
    subject = Subject(case, dump.axes, right, report.level)
    search = Search(subject, progress)
    done = lambda verdict, precision=report.precision, **more: Diagnosis(verdict, precision, report, blind=blind, tried=search.tried, **more)

    fits = search.single()
    if fits:
        return done("explained", explanations=explanations(subject, fits))
    seen = recognised(subject, case, right)
    if seen:
        rows = tuple(replace(row, level=max(row.level, row.error.relative)) for row in report.rows)
        return Diagnosis(VERDICTS[1], seen.model.precision, replace(report, rows=rows), rounding=seen.model.words, blind=blind, tried=search.tried)
    for fit in search.near(0.03)[:3]:
        base = changed(case, fit.rows)
        seen = recognised(subject, base, computed(base, subject.back))
        if seen:
            return done("explained", seen.model.precision, explanations=explanations(subject, [fit], seen.model.words))
    complete = True
    if pairs:
        fits, complete = search.pairs(seconds)
        if fits:
            return done("explained", explanations=explanations(subject, fits), complete=complete)
    return done("unexplained", partial=partly(subject, report), picture=tuple(picture(subject)), complete=complete)


def explanations(subject, fits, rounding="", leaves=()):
    """Explanations of fits, each with those that explain as well: as simple, and as near to within what rounding does."""
    def same(one, two):
        a, b = max(one.errors.values()), max(two.errors.values())
        return len(one.rows) == len(two.rows) and max(a, b) <= max(30 * min(a, b), subject.level / 100)

    return tuple(Explanation(*(tuple(getattr(row, name) for row in fit.rows) for name in ("name", "says", "remedy", "shows")), fit.errors, rounding, leaves,
                             tuple(tuple(row.name for row in other.rows) for other in fits if other is not fit and same(fit, other))) for fit in fits)


def partly(subject, report):
    """What explains one wrong output, where nothing explains all of them; of gradients only what goes wrong on the way back."""
    wrong = [row.name for row in report.rows if not row.right]
    found = []
    for name in wrong if len(wrong) > 1 else ():
        part = subject.only([name])
        search = Search(part)
        if not is_result(name):
            search.rows = [row for row in search.rows if row.back]
        found += explanations(part, search.single(), leaves=tuple(other for other in wrong if other != name))[:2]
    return tuple(found)


# --- from a test-suite -------------------------------------------------------------------------------------------

def explain(mechanism, inputs, outputs=None, *, layout=None, pairs=True, **options):
    """What explains wrong outputs: a list of Explanations, simplest first; empty if they are right, or if nothing explains them.

    mechanism: a name, None to try all that fit.  inputs, outputs: mappings of names to arrays of whatever library, as in a dump (derivations/dump_format.md);
    or one of both in `inputs`, or the path of a file.  options: scale, window, use_qk_l2norm, … as keywords, in place of opt.scale and so on in `inputs`.
    """
    return list(diagnose(together(inputs, outputs, options), mechanism, layout, pairs=pairs).explanations)


def assert_matches(mechanism, inputs, outputs=None, *, layout=None, pairs=True, **options):
    """AssertionError, with the report and what explains it as its message, unless the outputs are right to within rounding.  Arguments as for `explain`."""
    diagnosis = diagnose(together(inputs, outputs, options), mechanism, layout, pairs=pairs)
    assert diagnosis.right, f"\n{diagnosis}"


def together(inputs, outputs, options):
    if not isinstance(inputs, Mapping):
        inputs = load(inputs)
    return {**inputs, **(outputs or {}), **{f"opt.{name}": np.asarray(x) for name, x in options.items() if x is not None}}
