"""What a comparison found, as text and as plain data."""
from dataclasses import dataclass

import numpy as np

from .layout import as_stored
from .measure import LEVELS, by_chunk, digits, picture, profile
from .words import join

CHUNK = 64
NAMES = dict(B="batch", S="sequence", H="head", HV="head", Hkv="head", Hq="head", T="token", N="token", n="token", K="column", V="column")


@dataclass(frozen=True, repr=False)
class Row:
    """One output or gradient: its error, where it is largest, and the largest for every head and token (-1 for padding)."""
    name: str
    shape: tuple                                         # (B, heads, T, …)
    axes: list                                           # the letters of those axes
    error: object                                        # measure.Error
    level: float
    precision: str = ""                                  # the type that its values were rounded to
    inputs: str = ""                                     # that of the inputs, where it sets the level
    own: object = None                                   # for every head its error relative to its own largest entry; -1 if that is 0
    heads: tuple = ()                                    # (batch row, head, that error, its largest entry) of heads that are wrong so

    @property
    def near(self):
        """Whether it is right by its largest entry."""
        return bool(self.error.relative <= self.level)

    @property
    def right(self):
        return self.near and not self.heads

    @property
    def where(self):
        """The place of the largest error, by the name of the axis."""
        if self.error.where is None:
            return {}
        names = [NAMES.get(letter, "key") for letter in self.axes]           # key: n + N
        if "V" in self.axes and "K" in self.axes:
            names[self.axes.index("K")] = "row"
        return dict(zip(names, self.error.where))

    @property
    def by_head(self):
        return profile(self.error.each, 1)

    @property
    def by_token(self):
        """None for a state."""
        return profile(self.error.each, 2) if self.axes[2][-1] in "TNn" else None

    @property
    def by_chunk(self):
        return None if self.by_token is None else by_chunk(self.by_token, CHUNK)

    @property
    def warnings(self):
        """Sentences on heads that are wrong on their own scale, which the array's largest entry hides."""
        first = NAMES[self.axes[0]]
        for row, head, e, size in self.heads[:4]:
            yield (f"{self.name}, {first} {row}, head {head}: wrong on its own scale, by {e:.1e} of its largest entry {size:.1e}" +
                   (", small beside that of the array" if self.near else ""))
        if len(self.heads) > 4:
            yield f"{self.name}: so are {len(self.heads) - 4} more"

    def as_dict(self, layout="bhtd"):
        """Plain data; the shape as in `layout`."""
        e, axes = self.error, as_stored(self.name, list(self.axes), layout)
        shape = [self.shape[list(self.axes).index(letter)] for letter in axes]
        return dict(name=self.name, right=self.right, axes=axes, shape=shape,
                    relative=plain(e.relative), absolute=plain(e.absolute), level=self.level, precision=self.precision or None,
                    where=self.where, got=plain(e.got), expected=plain(e.expected), nonfinite=e.nonfinite,
                    by_head=plain(self.by_head), by_head_on_its_own_scale=plain(self.own),
                    wrong_on_own_scale=[dict(zip((NAMES[self.axes[0]], "head", "relative", "largest"), one)) for one in self.heads],
                    by_token=plain(self.by_token), by_chunk=plain(self.by_chunk))

    def __repr__(self):
        return f"<{self.name}: {'right' if self.right else 'wrong'}, relative error {self.error.relative:.1e}>"


@dataclass(frozen=True, repr=False)
class Report:
    """`str(report)` is what `python -m npattn compare` prints."""
    mechanism: str
    layout: str
    sizes: dict                                          # of B, T, K, V, …
    assumed: tuple                                       # sentences: scale, norm, state, …
    precision: str                                       # the coarsest type that the outputs were rounded to
    rows: tuple                                          # a Row for every output and gradient

    @property
    def right(self):
        return all(row.right for row in self.rows)

    @property
    def level(self):
        return LEVELS[self.precision]

    def as_dict(self):
        """Plain data for json.dumps; None stands for NaN, infinity and what does not exist, -1 in a list for what does not count."""
        return dict(verdict="right" if self.right else "wrong", mechanism=self.mechanism, layout=self.layout, sizes=self.sizes,
                    relative_to="the largest |expected| of the array", assumed=list(self.assumed), precision=self.precision,
                    level=self.level, outputs=[row.as_dict(self.layout) for row in self.rows])

    def __repr__(self):
        return f"<Report on {self.mechanism}: {list(self.rows)}>"

    def __str__(self):
        sizes = ", ".join(f"{letter} = {n}" for letter, n in self.sizes.items() if len(letter) < 4)
        lines = [f"{self.mechanism}, layout {self.layout}: {sizes}", *(f"  {line}" for line in self.assumed),
                 *self.levels(), "  relative: max |got - expected| / max |expected| over an array", ""]
        wide = max(len(row.name) for row in self.rows)
        lines += [f"{'':{wide}}  verdict  relative  absolute  at its largest"]
        for row in self.rows:
            e, place = row.error, ", ".join(f"{name} {index}" for name, index in row.where.items())
            lines += [f"{row.name:{wide}}  {'right' if row.right else 'WRONG':7}  {e.relative:8.1e}  {e.absolute:8.1e}  "
                      f"{', expected '.join(apart(e.got, e.expected))}, at {place or 'nothing to compare'}" +
                      (f"; NaN or infinite in {e.nonfinite} of {e.each.size} places" if e.nonfinite else "")]
        lines += [f"  {line}" for row in self.rows for line in row.warnings]
        lines += ["", "Right digits, counted from the largest entry, 0 to 9 (x: NaN or infinite):"]
        for row in self.rows:
            lines += [f"{row.name:{wide}}  {'  '.join(pictures(row))}"]
        wrong = [row.name for row in self.rows if not row.right]
        return "\n".join([*lines, "", "RIGHT" if self.right else f"WRONG: {', '.join(wrong)}"])

    def levels(self):
        """What right means, for all outputs or for each kind of them."""
        kinds = {}
        for row in self.rows:
            kinds.setdefault((row.precision or self.precision, row.inputs, f"{row.level:.0e}"), []).append(row.name)
        for (kind, inputs, level), names in kinds.items():
            what = "outputs hold" if len(kinds) == 1 else f"{join(names)} {'hold' if len(names) > 1 else 'holds'}"
            made = f" made from {inputs} q, k or v" if inputs else ""
            yield f"  {what} {kind} values{made}: right means a relative error of at most {level}"


def pictures(row):
    """Errors by head, by chunk of 64 and by token."""
    def say(label, marks, many=1):
        return f"{label}{f' ({many} a digit)' if many > 1 else ''} |{marks}|"
    yield say("head", *picture(row.by_head))
    if row.by_token is not None:
        yield say(f"chunk of {CHUNK}", *picture(row.by_chunk))
        yield say("token", *picture(row.by_token))


def apart(*numbers):
    """With as many digits as it takes to see that they differ, six at least.

    >>> apart(0.48334612345, 0.48334611), apart(1., 1.)
    (('0.48334612', '0.48334611'), ('1', '1'))
    """
    for digits in range(6, 18):
        texts = tuple(f"{x:.{digits}g}" for x in numbers)
        if len(set(texts)) > 1:
            return texts
    return tuple(f"{x:.6g}" for x in numbers)


def plain(x):
    """Numbers of plain Python; None for NaN and infinity."""
    if isinstance(x, np.ndarray):
        return [plain(y) for y in x.tolist()]
    return x if x is not None and np.isfinite(x) else None
