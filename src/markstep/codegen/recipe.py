"""What decides, besides the program itself, what is compiled."""

from __future__ import annotations

from dataclasses import dataclass

from markstep.engine.options import Options


@dataclass(frozen=True)
class Recipe:
    """The part of the options that changes compiled programs.

    Attributes:
        rng: as in `Options`.
        passes: names of the optimisations that are on; see `markstep.engine.options.PASSES`.
    """

    rng: str
    passes: frozenset[str]

    @staticmethod
    def of(options: Options) -> Recipe:
        """The recipe of some options."""
        return Recipe(options.rng, options.enabled_passes)
