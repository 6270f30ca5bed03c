"""Switches of work division, scratchpad planning and bundling: what diagnosis bisects over and benchmarks compare.

Settings come from the environment (the names of D4.8 where the device's own compiler has the switch) and, inside
:func:`using`, from the caller.  They are part of every program and of the key of Inductor's cache, so programs made
under different settings never stand in for each other.  A function that Dynamo has compiled already keeps its program:
call ``torch._dynamo.reset()`` to compile it again.
"""

from __future__ import annotations

import functools
import os
from collections.abc import Iterator
from contextlib import contextmanager
from contextvars import ContextVar
from dataclasses import dataclass, fields, replace
from typing import Any, Literal, get_args, get_type_hints

from spyre_backend.errors import SpyreError

Planner = Literal["greedy", "cp_sat"]
MatmulSplit = Literal["cost", "greedy"]


class SettingError(SpyreError, ValueError):
    """A setting has a value that it cannot take."""

    code = "E_SETTING"


@dataclass(frozen=True, kw_only=True, slots=True)
class Settings:
    """Compiler switches.

    Attributes:
        cores: cores to use, at most the release's 32; 0 means all of them (SENCORES).
        matmul_split: "cost" chooses a matmul's division by the model of D7.5 (B); "greedy" fills the output dims in
            the order of their size, like any other operation (SPYRE_MATMUL_SPLIT).
        k_fast: cores that share an output of a matmul are neighbours on the ring (SPYRE_CORE_ID_K_FAST_EMISSION).
        follow: an operation other than a matmul takes over the division of a temporary that it reads, if fewer bytes
            move then and no fewer cores are used; a simple form of the joint search that the device's compiler has,
            off there, too (CO_OPTIMIZING_LX_PLANNING).
        lx_planning: temporaries may stay in the scratchpads (LX_PLANNING).
        lx_planner: "greedy", or the optimal "cp_sat", which needs OR-Tools (LAYOUT_SOLVER).
        lx_in_place: results may take the place of an operand that is read for the last time (SPYRE_LX_IN_PLACE).
        lx_input_clones: inputs read more than once are copied into the scratchpads (SPYRE_LX_INPUT_CLONES).
        lx_relayout: a resident may move over the ring to another division (SPYRE_LX_PLANNER_RELAYOUT).
        hbm_pool: temporaries in device memory whose lives do not meet share bytes (HBM_POOL_PLANNING).
    """

    cores: int = 0
    matmul_split: MatmulSplit = "cost"
    k_fast: bool = True
    follow: bool = False
    lx_planning: bool = True
    lx_planner: Planner = "greedy"
    lx_in_place: bool = True
    lx_input_clones: bool = True
    lx_relayout: bool = True
    hbm_pool: bool = True

    def __post_init__(self) -> None:
        hints = get_type_hints(Settings)
        for item in fields(self):
            value, hint = getattr(self, item.name), hints[item.name]
            choices = get_args(hint)
            if (choices and value not in choices) or (not choices and type(value) is not hint):
                wanted = f"one of {', '.join(choices)}" if choices else f"of type {hint.__name__}"
                raise SettingError(f"compiler setting {item.name}={value!r}: must be {wanted}")
        if self.cores < 0:
            raise SettingError(f"compiler setting cores={self.cores}: must not be negative")

    @property
    def key(self) -> str:
        """The settings that differ from the defaults, as text; empty if none does."""
        plain = Settings()
        changed = [(f.name, getattr(self, f.name)) for f in fields(self)]
        return ",".join(f"{name}={value}" for name, value in changed if value != getattr(plain, name))


ENVIRONMENT = {
    "cores": "SENCORES",
    "matmul_split": "SPYRE_MATMUL_SPLIT",
    "k_fast": "SPYRE_CORE_ID_K_FAST_EMISSION",
    "follow": "CO_OPTIMIZING_LX_PLANNING",
    "lx_planning": "LX_PLANNING",
    "lx_planner": "LAYOUT_SOLVER",
    "lx_in_place": "SPYRE_LX_IN_PLACE",
    "lx_input_clones": "SPYRE_LX_INPUT_CLONES",
    "lx_relayout": "SPYRE_LX_PLANNER_RELAYOUT",
    "hbm_pool": "HBM_POOL_PLANNING",
}
"""The environment variable of each setting; flags are 0 or 1."""

_chosen: ContextVar[Settings | None] = ContextVar("spyre_compiler_settings", default=None)


def current() -> Settings:
    """The settings in force: those of the innermost :func:`using`, else the environment's.

    Raises:
        SettingError: an environment variable has a value that its setting cannot take.
    """
    return _chosen.get() or from_environment()


@contextmanager
def using(**changes: Any) -> Iterator[Settings]:
    """Compile with the current settings but for ``changes``, inside the block and in this context only."""
    chosen = replace(current(), **changes)
    token = _chosen.set(chosen)
    try:
        yield chosen
    finally:
        _chosen.reset(token)


def from_environment() -> Settings:
    """The settings that the environment asks for."""
    return _from_texts(tuple(os.environ.get(variable, "") for variable in ENVIRONMENT.values()))


@functools.lru_cache(maxsize=8)
def _from_texts(texts: tuple[str, ...]) -> Settings:
    hints = get_type_hints(Settings)
    given = {name: text for name, text in zip(ENVIRONMENT, texts, strict=True) if text}
    return Settings(**{name: _parsed(name, text, hints[name]) for name, text in given.items()})


def _parsed(name: str, text: str, hint: Any) -> Any:
    if hint is bool:
        if text not in ("0", "1"):
            raise SettingError(f"{ENVIRONMENT[name]}={text!r}: must be 0 or 1")
        return text == "1"
    if hint is int:
        if not text.isdecimal():
            raise SettingError(f"{ENVIRONMENT[name]}={text!r}: must be a number of cores")
        return int(text)
    return {"cpsat": "cp_sat"}.get(text, text) if name == "lx_planner" else text
