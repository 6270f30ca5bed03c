"""The walk over a draft's syntax tree: every node is allowed by name or refused."""

from __future__ import annotations

import re
from typing import Any

import libcst as cst
from libcst.metadata import ParentNodeProvider, PositionProvider

from hf_adapters.agents.screening.allowed import (
    ATTRIBUTES,
    BUILTINS,
    CHAINS,
    KEYWORDS_REFUSED,
    MUTATORS,
    reserved,
)
from hf_adapters.agents.screening.names import Bindings, Violation, dotted, is_dunder

_DUNDER_TEXT = re.compile(r"__\w+__|\b[a-z]+_frame\b")
_DEVICES = re.compile(r"(cpu|cuda|spyre|meta|mps|xpu|privateuseone)(:\d+)?")
_CALLED_AT_IMPORT = frozenset({"Adapter", "float", "frozenset", "int", "range", "tuple"})
_DISPLAYS = (cst.List, cst.Dict, cst.Set, cst.ListComp, cst.DictComp, cst.SetComp)
_CONTAINERS = frozenset({"list", "dict", "set"})
_DECORATORS = frozenset({"staticmethod", "property"})
_LITERAL_SECOND = frozenset({"getattr", "hasattr"})
_LONGEST_NUMBERS = 24
"""Numbers in one display: more look like sample inputs or precomputed results."""

_REFUSED: dict[type[cst.CSTNode], str] = {
    cst.Global: "global: adapters keep no state",
    cst.Nonlocal: "nonlocal: adapters keep no state",
    cst.Await: "await",
    cst.Match: "match: its patterns read attributes by name",
    cst.Yield: "yield: return a list",
    cst.AugAssign: "augmented assignment, which writes into tensors: write x = x + y",
    cst.TryStar: "except*",
    cst.Ellipsis: "... (write the body)",
}


class Walk(cst.CSTVisitor):
    """Collects violations as (line, text)."""

    METADATA_DEPENDENCIES = (PositionProvider, ParentNodeProvider)

    def __init__(self, names: Bindings) -> None:
        super().__init__()
        self.names = names
        self.violations: list[Violation] = []
        self._inside: list[str] = []
        """Names of the enclosing classes, functions and lambdas."""
        self._containers: list[set[str]] = [set()]
        """For each enclosing function, the names it bound to containers of its own."""

    def refuse(self, node: cst.CSTNode, text: str) -> None:
        """Note a violation at the node's line."""
        position: Any = self.get_metadata(PositionProvider, node)
        self.violations.append((position.start.line, text))

    def _parent(self, node: cst.CSTNode) -> cst.CSTNode:
        parent: Any = self.get_metadata(ParentNodeProvider, node)
        found: cst.CSTNode = parent
        return found

    def on_visit(self, node: cst.CSTNode) -> bool:
        """See `CSTVisitor`; what is refused as a whole is refused here."""
        text = _REFUSED.get(type(node))
        if text is not None and not (isinstance(node, cst.Ellipsis) and isinstance(self._parent(node), _SUBSCRIPTS)):
            self.refuse(node, text)
        return super().on_visit(node)

    # -- definitions

    def visit_ClassDef(self, node: cst.ClassDef) -> None:
        if node.keywords:
            self.refuse(node, "keyword arguments of a class")
        for decorator in node.decorators:
            self.refuse(decorator, "a decorated class")
        for base in node.bases:
            if base.star or dotted(base.value) is None:
                self.refuse(base, "a base class that is not a plain name")
        self._inside.append("class")

    def leave_ClassDef(self, original_node: cst.ClassDef) -> None:
        self._inside.pop()

    def visit_FunctionDef(self, node: cst.FunctionDef) -> None:
        name = node.name.value
        if node.asynchronous is not None:
            self.refuse(node, "an async function")
        if is_dunder(name) and name != "__init__":
            self.refuse(node, f"definition of {name}")
        for decorator in node.decorators:
            if dotted(decorator.decorator) not in _DECORATORS:
                self.refuse(decorator, "a decorator; allowed are staticmethod and property")
        self._inside.append(name)
        self._containers.append(set())

    def leave_FunctionDef(self, original_node: cst.FunctionDef) -> None:
        self._inside.pop()
        self._containers.pop()

    def visit_Lambda(self, node: cst.Lambda) -> None:
        self._inside.append("lambda")

    def leave_Lambda(self, original_node: cst.Lambda) -> None:
        self._inside.pop()

    def visit_Param(self, node: cst.Param) -> None:
        if node.default is not None and isinstance(node.default, (*_DISPLAYS, cst.Call)):
            self.refuse(node, "a default that is made once and kept; use None or a constant")

    # -- names and attributes

    def visit_Import(self, node: cst.Import) -> bool:
        return False

    def visit_ImportFrom(self, node: cst.ImportFrom) -> bool:
        return False

    def visit_Name(self, node: cst.Name) -> None:
        name = node.value
        if isinstance(self._parent(node), cst.FunctionDef):
            return
        if name in self.names.modules:
            self.refuse(node, f"the module {name} as a value; name what you need of it")
        elif is_dunder(name) or not (name in self.names.values or name in BUILTINS):
            self.refuse(node, f"the name {name}")
        elif name in _LITERAL_SECOND | {"type", "super"} and not self._is_called(node):
            self.refuse(node, f"{name} as a value")

    def _is_called(self, node: cst.CSTNode) -> bool:
        parent = self._parent(node)
        return isinstance(parent, cst.Call) and parent.func is node

    def visit_Attribute(self, node: cst.Attribute) -> bool:
        full = dotted(node)
        root = full.partition(".")[0] if full else ""
        if full is not None and root in self.names.modules:
            self._chain(node, self.names.modules[root] + full.removeprefix(root))
            return False
        self._attribute(node, node.attr.value)
        node.value.visit(self)
        return False

    def _chain(self, node: cst.CSTNode, full: str) -> None:
        parts = full.split(".")
        for end in range(len(parts), 1, -1):
            if ".".join(parts[:end]) in CHAINS:
                for name in parts[end:]:
                    self._attribute(node, name)
                return
        self.refuse(node, f"{full}, which is not on the list of allowed operations")

    def _attribute(self, node: cst.CSTNode, name: str) -> None:
        if not name.isascii():
            self.refuse(node, f"the attribute {name!r} is not ASCII")
        elif is_dunder(name):
            if not self._allowed_dunder(node, name):
                self.refuse(node, f"the attribute {name}")
        elif name in reserved():
            if name not in ATTRIBUTES:
                self.refuse(node, f"the attribute {name}")
        elif name.startswith("_") and name not in self.names.private:
            self.refuse(node, f"the private attribute {name}")

    def _allowed_dunder(self, node: cst.CSTNode, name: str) -> bool:
        if not isinstance(node, cst.Attribute) or not isinstance(node.value, cst.Call):
            return False
        called = dotted(node.value.func)
        if name == "__init__":
            return called == "super" and self._is_called(node) and self._inside[-1:] == ["__init__"]
        return name == "__name__" and called == "type"

    # -- calls

    def visit_Call(self, node: cst.Call) -> bool:
        called = dotted(node.func)
        for argument in node.args:
            if argument.keyword is not None and argument.keyword.value in KEYWORDS_REFUSED:
                self.refuse(argument, f"the argument {argument.keyword.value}=")
        if called == "super" and node.args:
            self.refuse(node, "super with arguments")
        elif called == "type" and len(node.args) != 1:
            self.refuse(node, "type with more than one argument")
        elif called in _LITERAL_SECOND:
            self._literal_attribute(node)
        elif not self._inside and not self._may_run_at_import(called):
            self.refuse(node, f"a call of {called or 'something'} while the file is imported; move it into a function")
        # `torch.add` is no method of a container.
        if isinstance(node.func, cst.Attribute) and node.func.attr.value in MUTATORS and called not in CHAINS:
            self._changes(node.func.value, node)
        node.func.visit(self)
        for argument in node.args:
            # The keyword itself is no name of this file. Dropout may know whether the model trains, nothing else.
            keyword = argument.keyword.value if argument.keyword is not None else ""
            if (keyword, dotted(argument.value)) != ("training", "self.training"):
                argument.value.visit(self)
        return False

    def _may_run_at_import(self, called: str | None) -> bool:
        if called is None:
            return False
        root = called.partition(".")[0]
        return called in _CALLED_AT_IMPORT or self.names.modules.get(root) in ("math", "functools")

    def _literal_attribute(self, node: cst.Call) -> None:
        name = node.args[1].value if len(node.args) in (2, 3) else None
        value = name.evaluated_value if isinstance(name, cst.SimpleString) else None
        if not isinstance(value, str):
            self.refuse(node, f"{dotted(node.func)} with a name that is not a plain string")
        elif is_dunder(value):
            self.refuse(node, f"the attribute {value}")
        else:
            self._attribute(node, value)

    # -- state

    def visit_Assign(self, node: cst.Assign) -> None:
        for target in node.targets:
            self._assign(target.target, node.value)

    def visit_AnnAssign(self, node: cst.AnnAssign) -> None:
        self._assign(node.target, node.value)

    def _assign(self, target: cst.CSTNode, value: cst.BaseExpression | None) -> None:
        if isinstance(target, cst.Name):
            if target.value == "ADAPTER" and (self._inside or dotted(getattr(value, "func", None)) != "Adapter"):
                self.refuse(target, "ADAPTER is assigned once, at module level")
            self._remember(target.value, value)
        elif isinstance(target, cst.Attribute):
            if dotted(target.value) != "self" or self._inside[-1:] != ["__init__"]:
                self.refuse(
                    target, "an assignment to an attribute; use the patcher, or __init__ of an example's module"
                )
            elif target.attr.value in reserved() and target.attr.value not in ("weight", "bias", "config"):
                self.refuse(target, f"an assignment to {target.attr.value}")
        elif isinstance(target, cst.Subscript):
            self._changes(target.value, target)
        elif isinstance(target, (cst.Tuple, cst.List)):
            for element in target.elements:
                self._assign(element.value, None)

    def _remember(self, name: str, value: cst.BaseExpression | None) -> None:
        made = isinstance(value, cst.Call) and dotted(value.func) in _CONTAINERS
        if self._inside and (isinstance(value, _DISPLAYS) or made):
            self._containers[-1].add(name)
        else:
            self._containers[-1].discard(name)

    def _changes(self, owner: cst.CSTNode, node: cst.CSTNode) -> None:
        if not self._inside or not isinstance(owner, cst.Name) or owner.value not in self._containers[-1]:
            self.refuse(node, "a change to something that this function did not make; adapters keep no state")

    def visit_Del(self, node: cst.Del) -> None:
        targets = node.target.elements if isinstance(node.target, cst.Tuple) else [cst.Element(node.target)]
        for element in targets:
            if not isinstance(element.value, cst.Name):
                self.refuse(node, "del of something else than a name")

    def visit_For(self, node: cst.For) -> None:
        self._plain_target(node.target)

    def visit_CompFor(self, node: cst.CompFor) -> None:
        if node.asynchronous is not None:
            self.refuse(node, "an async comprehension")
        self._plain_target(node.target)

    def _plain_target(self, target: cst.CSTNode) -> None:
        if isinstance(target, (cst.Attribute, cst.Subscript)):
            self.refuse(target, "a loop that assigns to something else than names")
        elif isinstance(target, (cst.Tuple, cst.List)):
            for element in target.elements:
                self._plain_target(element.value)
        elif isinstance(target, cst.StarredElement):
            self._plain_target(target.value)

    def visit_With(self, node: cst.With) -> None:
        for item in node.items:
            call = item.item
            chain = dotted(call.func) if isinstance(call, cst.Call) else None
            root = chain.partition(".")[0] if chain else ""
            arguments = call.args if isinstance(call, cst.Call) else ()
            if item.asname is not None or not chain or self.names.modules.get(root) != "torch" or arguments:
                self.refuse(node, "a with statement; allowed is `with torch.no_grad():`")

    def visit_ExceptHandler(self, node: cst.ExceptHandler) -> None:
        if node.type is None or node.name is not None:
            self.refuse(node, "a bare except, or one that keeps the error: name the types and nothing else")

    # -- literals

    def visit_SimpleString(self, node: cst.SimpleString) -> None:
        value = node.evaluated_value
        if isinstance(value, bytes):
            self.refuse(node, "bytes")
        elif not self._is_docstring(node):
            self._text(node, value)

    def visit_ConcatenatedString(self, node: cst.ConcatenatedString) -> None:
        value = node.evaluated_value
        if isinstance(value, str):
            self._text(node, value)

    def _text(self, node: cst.CSTNode, value: str) -> None:
        if _DUNDER_TEXT.search(value) or value in KEYWORDS_REFUSED:
            self.refuse(node, f"the string {value[:40]!r}")
        elif _DEVICES.fullmatch(value):
            self.refuse(node, f"the device {value!r}: tensors stay where they are")

    def _is_docstring(self, node: cst.CSTNode) -> bool:
        return isinstance(self._parent(node), cst.Expr)

    def visit_List(self, node: cst.List) -> None:
        self._numbers(node)

    def visit_Tuple(self, node: cst.Tuple) -> None:
        self._numbers(node)

    def visit_Set(self, node: cst.Set) -> None:
        self._numbers(node)

    def _numbers(self, node: cst.List | cst.Tuple | cst.Set) -> None:
        numbers = sum(isinstance(e.value, (cst.Integer, cst.Float, cst.UnaryOperation)) for e in node.elements)
        if numbers > _LONGEST_NUMBERS:
            self.refuse(node, f"{numbers} numbers in one display; compute them from what they stand for")


_SUBSCRIPTS = (cst.Index, cst.Annotation, cst.SubscriptElement, cst.Element)
