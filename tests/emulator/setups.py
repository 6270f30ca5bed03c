"""Under what a generated graph runs: a release, compiler switches, and how the inputs lie in device memory."""

from __future__ import annotations

import importlib.util
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from hypothesis import strategies as st
from torch import Tensor

from spyre_backend import capabilities
from spyre_backend.compiler import settings

FORMS = ("plain", "offset", "offset rows", "transposed", "expanded")
PLANNERS = ("greedy", "cp_sat") if importlib.util.find_spec("ortools") else ("greedy",)
SWITCHES: dict[str, st.SearchStrategy[Any]] = {
    "lx_planner": st.sampled_from(PLANNERS),
    "lx_relayout": st.booleans(),
    "cores": st.sampled_from((0, 1, 2, 3, 5, 8, 12, 32)),
    "matmul_split": st.sampled_from(("cost", "greedy")),
    "k_fast": st.booleans(),
    "follow": st.booleans(),
    "lx_planning": st.booleans(),
    "lx_in_place": st.booleans(),
    "lx_input_clones": st.booleans(),
    "hbm_pool": st.booleans(),
}


@dataclass(frozen=True, slots=True)
class Setup:
    """``switches`` are those that differ from the defaults; ``forms`` repeat if there are more inputs."""

    release: str = capabilities.DEFAULT_RELEASE
    switches: tuple[tuple[str, Any], ...] = ()
    forms: tuple[str, ...] = ("plain",)

    @contextmanager
    def in_force(self) -> Iterator[None]:
        """Compile and run under this setup."""
        with capabilities.use(self.release), settings.using(**dict(self.switches)):
            yield

    def host(self, inputs: list[Tensor]) -> list[Tensor]:
        """The inputs, with the same rows throughout where one is to be expanded."""
        return [x[:1].expand(x.shape) if self.form(i) == "expanded" and x.dim() else x for i, x in enumerate(inputs)]

    def form(self, position: int) -> str:
        """How input number ``position`` lies."""
        return self.forms[position % len(self.forms)]

    def device(self, inputs: list[Tensor]) -> list[Tensor]:
        """The inputs on the device, as these forms."""
        return [placed(x, self.form(i)) for i, x in enumerate(inputs)]


def placed(x: Tensor, form: str) -> Tensor:
    """The values of ``x`` on the device: as they are, or as a view of a tensor that lies otherwise."""
    if form == "offset" and x.numel():
        whole = torch.cat([torch.ones(64, dtype=x.dtype), x.reshape(-1)]).to("spyre")
        return whole.as_strided(x.shape, x.contiguous().stride(), 64)
    if form == "offset rows" and x.dim():
        return torch.cat([x[:1], x]).to("spyre")[1:]
    if form == "transposed" and x.dim() > 1:
        return x.transpose(-1, -2).contiguous().to("spyre").transpose(-1, -2)
    if form == "expanded" and x.dim():
        return x[:1].contiguous().to("spyre").expand(x.shape)
    return x.contiguous().to("spyre")


def setups() -> st.SearchStrategy[Setup]:
    """Any release, any of the switches, any forms; all as they are by default is the simplest."""
    chosen = st.fixed_dictionaries({}, optional=SWITCHES).map(lambda d: tuple(sorted(d.items())))
    forms = st.lists(st.sampled_from(FORMS), min_size=1, max_size=3).map(tuple)
    return st.builds(Setup, st.sampled_from(capabilities.available()), chosen, forms)
