"""Makes the CDI specs of what containers get beside their GPUs: GDRCopy, GDS, InfiniBand, IMEX channels. Pure.

Each is a kind of ours, so that the specs of the vendor's own tools stay as they are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

from fairlead.model import cdikind
from fairlead.model.driver import DriverFiles
from fairlead.plan.cdi import generate, source
from fairlead_cdi import spec as cdi


def specs(drivers: Iterable[DriverFiles], recipe: generate.Recipe) -> Iterator[cdi.Spec]:
    """Yield the spec of each kind that the machine has devices of."""
    for driver in drivers:
        for mode, files in driver.companions:
            own, _, cls = cdikind.COMPANIONS[mode].partition("/")
            profile = dataclasses.replace(recipe.profile, has_all=False)
            made = source.mode_spec(mode, files, dataclasses.replace(recipe, profile=profile, vendor=own, cls=cls))
            if made is not None:
                yield made
