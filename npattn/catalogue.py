"""The catalogue: one row a mechanism.  Tests, the command line, README's table and the index of derivations all iterate over it."""
import importlib
from dataclasses import dataclass, field
from types import MappingProxyType as frozen
from typing import Any, Callable, Mapping

import numpy as np

from . import masters
from .core.states import Cache, leaves, rebuild


def normal(rng, shape):
    return rng.standard_normal(shape)


def positive(rng, shape):
    return rng.uniform(0.1, 1.0, shape)                  # what a feature map gives


def unit(rng, shape):
    x = rng.standard_normal(shape)
    return x / np.sqrt((x * x).sum(-1, keepdims=True))


def log_decay(rng, shape):
    return -np.logaddexp(0, rng.standard_normal(shape) - 1)


def strength(rng, shape):
    return 1 / (1 + np.exp(-1.5 * rng.standard_normal(shape)))


MAKERS = dict(q=normal, k=normal, v=normal, g=log_decay, beta=strength, state=normal)


@dataclass(frozen=True)
class Mechanism:
    name: str                                            # also the file's name: npattn/FAMILY/NAME.py
    family: str
    title: str                                           # one line
    paper: str                                           # authors, year, arXiv
    makers: Mapping[str, Callable] = field(default_factory=dict)          # realistic random values, where they differ from MAKERS
    options: Mapping[str, Any] = field(default_factory=dict)              # keywords that the laws run with; all without a default
    variants: tuple = ()                                 # further settings that the laws run with
    exact: bool = True                                   # rational in its inputs: forms and gradients are equal as fractions
    analytic: bool = True                                # the complex step applies
    causal: bool = True
    forgets: bool = True                                 # a reset, g = -inf, leaves nothing of what came before
    inert: tuple = ()                                    # arguments that may change nothing
    # special mechanism: its arguments -> the arguments and options here that give the same
    reductions: Mapping[str, Callable] = field(default_factory=dict)
    master: Any = "its row names no map onto a master form"               # (matrix, matrix_vjp) as in npattn.masters; or why there is none
    page: str = ""                                       # derivations/PAGE.md
    cost: Mapping[str, str] = field(default_factory=dict)                 # multiplications of a form, a token and key head: see npattn.cost

    @property
    def module(self):
        return importlib.import_module(f"npattn.{self.family}.{self.name}")

    @property
    def axes(self):
        return self.module.AXES

    @property
    def recurrent(self):
        """A state of fixed size, rather than a cache that grows."""
        return not isinstance(self.axes["state"], Cache)

    def arguments(self, rng, T, lead=(), K=4, V=3, n=2, dtype=np.float64, state=True):
        """Random arguments by name: T tokens, leading axes `lead`, and a state (of n earlier tokens where it is a cache) unless `state` is false."""
        sizes = dict(T=T, N=T, K=K, V=V, n=n)

        def make(name, kind):
            maker = self.makers.get(name) or MAKERS.get("g" if name.startswith("g_") else name)
            if maker is None:
                raise ValueError(f"{self.name}: no random values are known for the argument {name!r}; its row needs makers=dict({name}=...)")
            unknown = [letter for letter in kind.split() if letter not in sizes]
            if unknown:
                raise ValueError(f"{self.name}: the axis {unknown[0]!r} of {name} is none of {', '.join(sizes)}")
            return maker(rng, lead + tuple(sizes[x] for x in kind.split())).astype(dtype)

        x = {name: rebuild(kind, [make(name, part) for part in leaves(kind)]) for name, kind in self.axes.items()}
        return x if state else dict(x, state=None)


def no_gate(like, log):
    """Log gates of decay 1, shaped like `like`; `log` is np.log, or the exact logarithm for fractions."""
    return log(np.ones_like(like))


# Writes and reads of the state, scores among the tokens of a chunk, weights times values; beside them, a gate passes over the state, a
# prediction reads it.
ADDS = frozen(dict(loop="K V + G K V", chunk="G C K + G C V + K V + G K V"))
FADES = frozen(dict(ADDS, loop="2 K V + G K V"))
PREDICTS = frozen(dict(loop="2 K V + G K V", chunk="C K + C V + 1/3 C C + 2 K V + G C K + G C V + G K V"))
PREDICTS_AND_FADES = frozen(dict(PREDICTS, loop="3 K V + G K V"))

CATALOGUE = {row.name: row for row in (
    Mechanism("linear_attention", "linear", "accumulates k v^T and forgets nothing", "Katharopoulos et al., 2020, arXiv 2006.16236",
              master=masters.adds(masters.nothing), page="03_recurrent_view", cost=ADDS),
    Mechanism("normalized_linear_attention", "linear", "linear attention divided by its row sums",
              "Katharopoulos et al., 2020, arXiv 2006.16236",
              master=masters.adds_and_divides(), page="02_associativity", cost=ADDS,
              makers=frozen(dict(q=positive, k=positive, state=positive))),
    Mechanism("simple_gla", "linear", "linear attention with one decay per token", "Yang et al., 2023, arXiv 2312.06635",
              master=masters.adds(masters.scalar), page="04_chunks", cost=FADES,
              reductions=frozen(dict(linear_attention=lambda x, log: dict(x, g=no_gate(x["q"][..., 0], log))))),
    Mechanism("gla", "linear", "linear attention with one decay per token and key channel", "Yang et al., 2023, arXiv 2312.06635",
              master=masters.adds(masters.channel), page="07b_channel_gates",
              cost=frozen(dict(FADES, chunk="1/2 G C K + G C V + K V + G K V")),
              reductions=frozen(dict(simple_gla=lambda x, log: dict(x, g=np.repeat(x["g"][..., None], x["k"].shape[-1], -1))))),
    Mechanism("delta_rule", "delta", "predicts, and writes what it got wrong",
              "Schlag et al., 2021, arXiv 2102.11174; Yang et al., 2024, arXiv 2406.06484",
              master=masters.corrects(masters.nothing), page="05_delta_rule", cost=PREDICTS, makers=frozen(dict(k=unit))),
    Mechanism("gated_delta_rule", "delta", "the delta rule on a memory that fades", "Yang, Kautz and Hatamizadeh, 2024, arXiv 2412.06464",
              master=masters.corrects(masters.scalar), page="07_gated_delta_rule", cost=PREDICTS_AND_FADES, makers=frozen(dict(k=unit)),
              reductions=frozen(dict(delta_rule=lambda x, log: dict(x, g=no_gate(x["beta"], log))))),
    Mechanism("gated_delta_rule_predict_first", "delta", "predicts before the decay: the textbook order",
              "Yang, Kautz and Hatamizadeh, 2024, arXiv 2412.06464",
              master="its erase key would be beta k / e^g, which a reset does not have",
              page="08_does_chunking_change_the_result", cost=PREDICTS_AND_FADES, makers=frozen(dict(k=unit)), forgets=False,
              reductions=frozen(dict(delta_rule=lambda x, log: dict(x, g=no_gate(x["beta"], log))))),
    Mechanism("kda", "delta", "the delta rule with one decay per key channel", "Kimi Team, 2025, arXiv 2510.26692",
              master=masters.corrects(masters.channel), page="07b_channel_gates", makers=frozen(dict(k=unit)),
              cost=frozen(dict(PREDICTS_AND_FADES, chunk="1/2 C K + C V + 1/3 C C + 2 K V + 1/2 G C K + G C V + G K V")),
              reductions=frozen(dict(gated_delta_rule=lambda x, log: dict(x, g=np.repeat(x["g"][..., None], x["k"].shape[-1], -1))))),
    Mechanism("softmax_attention", "softmax", "every token weighs all earlier ones",
              "Vaswani et al., 2017, arXiv 1706.03762; Dao, 2023, arXiv 2307.08691",
              page="01_softmax_cache", variants=(dict(window=3), dict(causal=False)), exact=False,
              cost=frozen(dict(loop="1/2 G T K + 1/2 G T V", matrix="G T K + G T V",
                               chunk="1/2 G T K + 1/2 G T V + 1/2 G C K + 1/2 G C V"))),
    Mechanism("block_topk_attention", "sparse", "softmax over the blocks whose mean key scores highest",
              "Lu et al., 2025, arXiv 2502.13189",
              page="13_block_topk",
              reductions=frozen(dict(softmax_attention=lambda x, log: dict(x, topk=10 ** 6))),               # more blocks than there are
              options=frozen(dict(block_size=3, topk=2, causal=True)), variants=(dict(causal=False),),
              exact=False,                                                                                   # analytic: a choice goes by real parts
              cost=frozen(dict(loop="1/2 G T K + 1/2 G T V + 1/B G T K", matrix="G T K + G T V + 1/B G T K",             # every score is computed
                               chunk="1/2 G T K + 1/2 G T V + 1/2 G C K + 1/2 G C V + 1/B G T K"))),    # no tile left out
)}
