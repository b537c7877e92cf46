"""What is known about a dump: whether it is right, what explains it if not, and the text of all that."""
from collections.abc import Mapping
from dataclasses import dataclass

import numpy as np

from .case import changed, computed
from .hypotheses import HYPOTHESES
from .report import Report, plain
from .words import join

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
        return dict(names=list(self.names), says=list(self.says), remedies=list(self.remedies), shows=list(self.shows),
                    error=plain(self.error),
                    errors={name: plain(e) for name, e in self.errors.items()}, explains=list(self.errors), leaves=list(self.leaves),
                    rounding=self.rounding,
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
    first_wrong: str = ""                                # of the tensors of a layer, in the order in which they are made

    @property
    def right(self):
        return self.verdict in VERDICTS[:2]

    @property
    def headline(self):
        if self.right:
            return "RIGHT" if self.verdict == "right" else f"RIGHT within {self.precision} rounding" + (f": {self.rounding}"
                                                                                                        if self.rounding else "")
        return f"EXPLAINED: {self.explanations[0].name}" if self.explanations else "UNEXPLAINED"

    def as_dict(self):
        """Plain data for json.dumps."""
        best = self.explanations[0] if self.explanations else None
        return self.report.as_dict() | dict(
            verdict=self.verdict, precision=self.precision, rounding=self.rounding, names=list(best.names) if best else [],
            error=plain(best.error if best else max(row.error.relative for row in self.report.rows)),
            explanations=[x.as_dict() for x in self.explanations],
            partial=[x.as_dict() for x in self.partial], picture=list(self.picture), not_shown_by_these_inputs=list(self.blind),
            tried=self.tried,
            complete=self.complete, other_mechanisms=dict(self.others), first_wrong=self.first_wrong or None)

    def __repr__(self):
        return f"<Diagnosis of {self.report.mechanism}: {self.headline}>"

    def __str__(self):
        lines = [str(self.report).rpartition("\n")[0]]
        lines += [f"Tried as well: {', '.join(f'{name}: {verdict}' for name, verdict in self.others)}", ""] if self.others else []
        if self.right:
            shows = list(dict.fromkeys(row.shows for row in HYPOTHESES if row.name in self.blind))
            lines += ["Not tested, as it takes: " + "; ".join(shows[:6]) + (f"; and {len(shows) - 6} more (--json)" if len(shows) > 6
                                                                            else ""), ""] if shows else []
            return "\n".join([*lines, self.headline])
        wrong = [row.name for row in self.report.rows if not row.right]
        lines += [f"WRONG: {', '.join(wrong)}", ""]
        for x in self.explanations[:1]:
            lines += [str(x)]
            if x.equals:
                same = [one for one in self.explanations if one.names in x.equals]
                shows = dict.fromkeys(show for one in (x, *same) for show in one.shows)
                lines += [f"  These inputs do not tell it from: {'; '.join(one.name for one in same)}.",
                          f"    To tell them apart, compare with: {'; '.join(shows)}."]
            lines += [""]
        lines += [f"{line}" for line in self.picture] + [""] * bool(self.picture)
        lines += [f"Some of it would be explained by\n{x}\n" for x in self.partial[:3]]
        if not self.complete:
            lines += [f"The search stopped after {self.tried} combinations; there are more pairs.", ""]
        return "\n".join([*lines, self.headline])


def with_factor(subject, fit, row):
    """What a row says, with the number where it is one that fits a factor."""
    if not row.name.endswith("off by a factor"):
        return row.says
    rest = tuple(one for one in fit.rows if one is not row)
    y = computed(changed(subject.case, rest), True) if rest else subject.right
    names = [name for name in subject.case.got if name.startswith("d") and row.name.split()[0] in (name, "all")]
    a, b = (np.concatenate([x[name][subject.error(name, y[name]).each >= 0] for name in names]) for x in (subject.case.got, y))
    return row.says.replace("the same number of times too large", f"{(a * b).sum() / (b * b).sum():.6g} times the right one"
                            + "s" * (len(names) > 1))


def explanations(subject, fits, rounding="", leaves=()):
    """Explanations of fits, each with those that explain as well: as simple, and as near to within what rounding does."""
    def same(one, two):
        a, b = max(one.errors.values()), max(two.errors.values())
        return len(one.rows) == len(two.rows) and max(a, b) <= max(30 * min(a, b), subject.level / 100)

    def parts(fit, part):
        return tuple(with_factor(subject, fit, row) if part == "says" else getattr(row, part) for row in fit.rows)

    return tuple(Explanation(*(parts(fit, part) for part in ("name", "says", "remedy", "shows")), fit.errors, rounding, leaves,
                             tuple(tuple(row.name for row in other.rows) for other in fits if other is not fit and same(fit, other)))
                 for fit in fits)
