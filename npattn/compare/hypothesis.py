"""What a hypothesis is: one way in which an implementation may differ from what was meant, as a row of a table."""
from typing import Callable, NamedTuple

from .problem import takes


class Hypothesis(NamedTuple):
    name: str                                            # said of the implementation: "scale missing"
    group: str                                           # rows of one group are alternatives to each other; several, if separated by spaces
    change: Callable                                     # Case -> Case: what the implementation computes
    says: str                                            # a sentence: what it does
    remedy: str                                          # a sentence: what to change
    shows: str                                           # which inputs show it, and so tell it from others
    takes: str = ""                                      # arguments that the mechanism must have
    only: str = ""                                       # "recurrent", "cached", or names of mechanisms; else all
    when: Callable = lambda case: True                   # whether the inputs of this Case can show it
    meant: Callable = lambda case: True                  # whether it is a difference from what was meant
    whole: bool = False                                  # the first outputs depend on later tokens
    mixes: bool = False                                  # a head's output depends on other heads
    back: bool = False                                   # it changes gradients, never outputs

    def concerns(self, mechanism):
        """Whether it makes sense for a mechanism, a row of the catalogue, or for a layer, by its name."""
        if isinstance(mechanism, str):
            return mechanism in self.only.split()
        needed, optional, options, _ = takes(mechanism)
        kinds = {mechanism.name, "recurrent" if mechanism.recurrent else "cached"}
        return set(self.takes.split()) <= {*needed, *optional, *options} and (not self.only or bool(kinds & set(self.only.split())))

    def excludes(self, other):
        return bool(set(self.group.split()) & set(other.group.split()))
