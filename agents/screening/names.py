"""Which names a draft binds, and which of them are modules."""

from __future__ import annotations

import builtins
import importlib
import re
from dataclasses import dataclass, field
from typing import Any

import libcst as cst
from libcst.metadata import MetadataWrapper, PositionProvider

from hf_adapters.agents.screening.allowed import (
    BUILTINS,
    IMPORTS,
    MODULES,
    NAMED_MODULES,
    TRANSFORMERS_MODELING,
)

Violation = tuple[int, str]

_MAY_SHADOW = frozenset({"input"})
"""Builtins that parameters are commonly called after; unbound, the name is refused all the same."""


@dataclass(slots=True)
class Bindings:
    """Names that the file binds anywhere."""

    modules: dict[str, str] = field(default_factory=dict)
    """Alias -> full name of a module."""
    values: set[str] = field(default_factory=set)
    """Every other bound name."""
    private: set[str] = field(default_factory=set)
    """Functions, methods and attributes with a leading underscore that the file itself defines."""


def dotted(node: cst.CSTNode | None) -> str | None:
    """`a.b.c` of a chain of names; None for anything else."""
    if isinstance(node, cst.Name):
        return node.value
    if isinstance(node, cst.Attribute):
        root = dotted(node.value)
        return None if root is None else f"{root}.{node.attr.value}"
    return None


def is_dunder(name: str) -> bool:
    """Whether a name is one that Python gives a meaning to, mangled forms included."""
    return name.startswith("__") or name.endswith("__")


def bindings(wrapper: MetadataWrapper) -> tuple[Bindings, list[Violation]]:
    """Collect the bound names of a file; what it must not bind or import becomes a violation."""
    collector = _Collector()
    wrapper.visit(collector)
    return collector.names, collector.violations


class _Collector(cst.CSTVisitor):
    METADATA_DEPENDENCIES = (PositionProvider,)

    def __init__(self) -> None:
        super().__init__()
        self.names = Bindings()
        self.violations: list[Violation] = []
        self._functions = 0

    def _refuse(self, node: cst.CSTNode, text: str) -> None:
        position: Any = self.get_metadata(PositionProvider, node)
        self.violations.append((position.start.line, text))

    def _bind(self, node: cst.Name) -> None:
        name = node.value
        if not name.isascii():
            self._refuse(node, f"the name {name!r} is not ASCII")
        elif is_dunder(name):
            self._refuse(node, f"binding of {name}")
        elif name in self.names.modules or (hasattr(builtins, name) and name not in _MAY_SHADOW) or name in BUILTINS:
            self._refuse(node, f"rebinding of {name}, which is a builtin or a module; choose another name")
        else:
            self.names.values.add(name)
            if name.startswith("_"):
                self.names.private.add(name)

    # -- imports

    def visit_Import(self, node: cst.Import) -> bool:
        for alias in node.names:
            name = dotted(alias.name) or ""
            root = name if alias.asname is None else NAMED_MODULES.get(name, name)
            if alias.asname is not None and isinstance(alias.asname.name, cst.Name):
                self._module(node, alias.asname.name, root if root in MODULES or name in NAMED_MODULES else "", name)
            elif isinstance(alias.name, cst.Name):
                self._module(node, alias.name, name if name in MODULES else "", name)
            elif name in NAMED_MODULES and name.partition(".")[0] in MODULES:
                self.names.modules.setdefault(name.partition(".")[0], name.partition(".")[0])
            else:
                self._refuse(node, f"import of {name}")
        return False

    def _module(self, node: cst.CSTNode, bound: cst.Name, root: str, name: str) -> None:
        if not root:
            self._refuse(node, f"import of {name}; allowed are {', '.join(sorted(MODULES))}")
        elif self.names.modules.get(bound.value, root) != root or bound.value in self.names.values:
            self._refuse(node, f"{bound.value} means two things in this file")
        elif is_dunder(bound.value) or hasattr(builtins, bound.value):
            self._refuse(node, f"a module bound to {bound.value}")
        else:
            self.names.modules[bound.value] = root

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        module = dotted(node.module) or ""
        if node.relative or isinstance(node.names, cst.ImportStar):
            self._refuse(node, f"relative or star import of {module}; name what is needed")
            return False
        for alias in node.names:
            name = alias.name.value if isinstance(alias.name, cst.Name) else ""
            bound = alias.asname.name if alias.asname is not None else alias.name
            if not isinstance(bound, cst.Name):
                self._refuse(node, f"import of {module}")
            elif f"{module}.{name}" in NAMED_MODULES and name in IMPORTS.get(module, ()):
                self._module(node, bound, NAMED_MODULES[f"{module}.{name}"], f"{module}.{name}")
            elif name in IMPORTS.get(module, ()) or self._from_transformers(module, name):
                if module != "__future__":
                    self._bind(bound)
            else:
                self._refuse(node, f"import of {name} from {module}")
        return False

    def _from_transformers(self, module: str, name: str) -> bool:
        """Classes of modeling files, inside of functions only: examples need them, nothing else does."""
        if not self._functions or not re.fullmatch(TRANSFORMERS_MODELING, module):
            return False
        from torch import nn
        from transformers import PretrainedConfig

        try:
            found = getattr(importlib.import_module(module), name, None)
        except ImportError:
            return False
        return isinstance(found, type) and issubclass(found, (nn.Module, PretrainedConfig))

    # -- everything else that binds

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        self._functions += 1
        if node.name.value != "__init__":
            self._bind(node.name)

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._functions -= 1

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        self._bind(node.name)

    def visit_Param(self, node: cst.Param) -> None:
        self._bind(node.name)

    def visit_AssignTarget(self, node: cst.AssignTarget) -> None:
        self._target(node.target)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        self._target(node.target)

    def visit_NamedExpr(self, node: cst.NamedExpr) -> None:
        self._target(node.target)

    def visit_For(self, node: cst.For) -> None:
        self._target(node.target)

    def visit_CompFor(self, node: cst.CompFor) -> None:
        self._target(node.target)

    def visit_AsName(self, node: cst.AsName) -> None:
        # Those of imports are not reached; this is `with ... as` and `except ... as`.
        self._target(node.name)

    def _target(self, node: cst.CSTNode) -> None:
        if isinstance(node, cst.Name):
            self._bind(node)
        elif isinstance(node, (cst.Tuple, cst.List)):
            for element in node.elements:
                self._target(element.value)
        elif isinstance(node, cst.Attribute):
            if dotted(node.value) == "self" and node.attr.value.startswith("_") and not is_dunder(node.attr.value):
                self.names.private.add(node.attr.value)
        elif not isinstance(node, cst.Subscript):
            self._refuse(node, "an assignment to something else than a name")
