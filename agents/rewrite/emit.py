"""An adapter file from the form that was found."""

from __future__ import annotations

import inspect
import itertools
import operator
import re
from collections.abc import Collection
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor, nn

from hf_adapters._classes import split_class
from hf_adapters._regions import EAGER
from hf_adapters.agents.rewrite.candidate import Candidate, Table
from hf_adapters.agents.rewrite.examples import example_of, is_of_transformers
from hf_adapters.agents.rewrite.own_example import own_example
from hf_adapters.agents.rewrite.search import Found
from hf_adapters.agents.rewrite.trace import Traced, bind
from hf_adapters.agents.rewrite.write import Writer, broken
from hf_adapters.catalogue import catalogue

_MASKED = -1e4
"""No activation is below this, the entries of an additive mask are."""
_ORDER = 200
"""After the adapters of the catalogue, which the module was traced with."""


@dataclass(frozen=True, kw_only=True)
class Emitted:
    """A file and what it says of itself."""

    name: str
    source: str
    summary: str


def emit(
    found: Found,
    model: nn.Module,
    *,
    rules: tuple[str, ...],
    release: str,
    path: str,
    taken: Collection[str] = (),
) -> Emitted:
    """The adapter file.

    Args:
        found: the form.
        model: the stock model, for the example and for what differs between the modules of one class.
        rules: device rules that it works around.
        release: torch-spyre release that needs it.
        path: path of the traced module.
        taken: names that the adapter cannot have, beside those of the catalogue.

    Raises:
        ValueError: something in the graph has no name that an adapter file may use, or no example can be built.
    """
    candidate = found.candidate
    class_name = type(candidate.traced.module).__name__
    mixin, steps = f"Legal{class_name}", _sentence(candidate.steps)
    name = _name(class_name, {adapter.name for adapter in catalogue()} | set(taken))
    summary = f"{class_name} by equalities that lower: {steps}."
    short = f"{class_name[:60]} in a form that lowers."
    forward, functional = ("", False) if candidate.eager else _forward(candidate)
    functions = [_table_function(table) for table in candidate.tables.values()]
    additive = any(_is_additive(candidate.traced, name) for name in candidate.traced.inputs)
    # Transformers' eager attention has casts to float32 that its other implementations do not have.
    widened = _widened(candidate) or additive
    if is_of_transformers(model):
        stock, example = "", example_of(model, widened=widened, additive=additive)
    else:
        body, used = _forward(Candidate(traced=candidate.traced, graph=candidate.traced.graph), ways_out=False)
        stock, example = own_example(candidate.traced, body, widened=widened)
        functional = functional or used
    text = "\n\n\n".join(
        [
            *([_mixin(mixin, class_name, steps, forward)] if forward else []),
            *(function for function, _ in functions),
            _sites(candidate, mixin, class_name, model),
            _apply(candidate, mixin),
            *([stock] if stock else []),
            example,
            _adapter(name, short, rules, candidate, release),
        ]
    )
    functional = functional or any(used for _, used in functions)
    return Emitted(name=name, source=f"{_head(summary, text, functional)}\n\n\n{text}\n", summary=short)


def _head(summary: str, text: str, functional: bool) -> str:
    torch = "import torch\n" if re.search(r"\btorch\.", text) else ""
    tools = "import functools\n\n" if "functools." in text else ""
    lines = [f'"""{_wrapped(summary)}"""\n\nfrom __future__ import annotations\n\n{tools}']
    lines.append("from typing import Any\n\n" if re.search(r"\bAny\b", text) else "")
    lines.append(f"{torch}from torch import Tensor, nn\n")
    lines.append("from torch.nn import functional as F\n" if functional else "")
    lines.append("\n" + ("from hf_adapters.adapters import _probe\n" if "_probe." in text else ""))
    lines.append("from hf_adapters.protocols import Adapter, Example, PatcherProtocol, Site")
    return "".join(lines).replace("functools\n\nfrom typing", "functools\nfrom typing")


def _wrapped(text: str, width: int = 110) -> str:
    out: list[str] = []
    line = ""
    for word in text.split():
        if len(line) + len(word) > width:
            out.append(line.rstrip())
            line = ""
        line += word + " "
    return "\n".join([*out, line.rstrip()])


def _sentence(steps: tuple[str, ...]) -> str:
    return "; ".join(steps)


def _name(class_name: str, taken: Collection[str]) -> str:
    words = re.sub(r"(?<=[a-z0-9])(?=[A-Z])|(?<=[A-Z])(?=[A-Z][a-z])", "_", class_name).lower().strip("_")
    name = re.sub(r"[^a-z0-9_]", "", words)[:38] + "_legal"
    numbered = (f"{name}_{number}" for number in itertools.count(2))
    return name if name not in taken else next(other for other in numbered if other not in taken)


def _mixin(mixin: str, class_name: str, steps: str, forward: str) -> str:
    text = _wrapped(f"Mixin for {class_name}. {steps}.", 104).replace("\n", "\n    ")
    return f'class {mixin}(nn.Module):\n    """{text}"""\n\n{forward}'


def _forward(candidate: Candidate, *, ways_out: bool = True) -> tuple[str, bool]:
    traced = candidate.traced
    parameters = dict(inspect.signature(type(traced.module).forward).parameters)
    parameters.pop("self")
    tensors = {name for name, _ in traced.inputs.values()}
    declared = ", ".join(["self", *(_parameter(p, p.name in tensors) for p in parameters.values())])
    nodes = {str(n.target): n for n in candidate.graph.nodes if n.op == "placeholder"}
    lines = _unpacking(candidate)
    writer = Writer({node: name for name, node in nodes.items()}, {*parameters, *nodes})
    result = writer.body(candidate.graph)
    lines = [*(_ways_out(candidate, parameters) if ways_out else ()), *lines, *writer.lines, f"return {result}"]
    body = "\n".join(f"        {text}" for line in lines for text in broken(line, 112 - 8))
    doc = '        """As the stock forward."""'
    returns = "Tensor" if not result.startswith("(") else "Any"
    head = "\n".join(f"    {text}" for text in broken(f"def forward({declared}) -> {returns}:", 112 - 4))
    return f"{head}\n{doc}\n{body}", writer.functional


def _stars(parameter: inspect.Parameter) -> str:
    if parameter.kind is parameter.VAR_POSITIONAL:
        return "*"
    return "**" if parameter.kind is parameter.VAR_KEYWORD else ""


def _parameter(parameter: inspect.Parameter, tensor: bool) -> str:
    star = _stars(parameter)
    kind = "Tensor" if tensor and parameter.default is parameter.empty and not star else "Any"
    default = "" if parameter.default is parameter.empty else f" = {parameter.default!r}"
    return f"{star}{parameter.name}: {kind}{default}"


def _unpacking(candidate: Candidate) -> list[str]:
    groups: dict[str, list[str]] = {}
    for key, (name, index) in candidate.traced.inputs.items():
        if index is not None:
            groups.setdefault(name, []).append(key)
    bound = bind(candidate.traced.module, candidate.traced.calls[0])
    lines = []
    for name, keys in groups.items():
        if len(keys) == len(bound[name]):
            lines.append(f"{', '.join(keys)} = {name}")
        else:
            lines += [f"{key} = {name}[{candidate.traced.inputs[key][1]}]" for key in keys]
    return lines


def _ways_out(candidate: Candidate, parameters: dict[str, inspect.Parameter]) -> list[str]:
    """Calls of another sort than those that were traced go to the stock forward."""
    traced = candidate.traced
    tensors = {name for name, _ in traced.inputs.values()}
    conditions = []
    for name, parameter in parameters.items():
        if parameter.kind in (parameter.VAR_KEYWORD, parameter.VAR_POSITIONAL):
            continue
        if name in tensors and parameter.default is None:
            conditions.append(f"{name} is None")
        elif name in traced.given or name not in bind(traced.module, traced.calls[0]):
            value = traced.given.get(name, parameter.default)
            if value is None:
                conditions.append(f"{name} is not None")
            elif isinstance(value, bool):
                conditions.append(f"not {name}" if value else name)
        if _is_additive(traced, name):
            conditions.append(f"not {name}.is_floating_point()")
    if not conditions:
        return []
    passed = []
    for name, parameter in parameters.items():
        star = _stars(parameter)
        plain = parameter.kind is parameter.POSITIONAL_ONLY or parameter.default is parameter.empty
        passed.append(f"{star}{name}" if star else name if plain else f"{name}={name}")
    condition = f"if {' or '.join(conditions)}:"
    first, *rest = conditions
    head = [condition] if len(condition) < 100 else ["if (", f"    {first}", *(f"    or {text}" for text in rest), "):"]
    return [*head, f"    return super().forward({', '.join(passed)})"]


def _is_additive(traced: Traced, name: str) -> bool:
    """Whether a parameter is a mask to be added to scores: other attention implementations give boolean ones."""
    if traced.inputs.get(name) != (name, None):
        return False
    held = traced.arguments(0)[list(traced.inputs).index(name)]
    return bool(held.is_floating_point() and held.numel() and held.min() <= _MASKED)


def _table_function(table: Table) -> tuple[str, bool]:
    nodes = [n for n in table.graph.nodes if n.op == "placeholder"]
    names = {node: str(node.target) for node in nodes}
    writer = Writer(dict(names), set(names.values()))
    result = writer.body(table.graph)
    statements = [*writer.lines, f"return {result}"]
    body = "\n".join(f"    {text}" for line in statements for text in broken(line, 112))
    declared = ", ".join(f"{name}: Tensor" for name in names.values())
    about = _wrapped(table.about, 108).replace("\n", "\n    ")
    return f'def _{table.name}({declared}) -> Tensor:\n    """{about}"""\n{body}', writer.functional


def _sites(candidate: Candidate, mixin: str, class_name: str, model: nn.Module) -> str:
    checks = [f'type(module).__name__ == "{class_name}"', *_guards(candidate, class_name, model)]
    before, after = _before_after(candidate)
    if _is_plain(candidate):
        checks.append("_agrees(module)")
    condition = " and ".join(checks)
    if len(condition) > 90:
        condition = "(\n            " + "\n            and ".join(checks) + "\n        )"
    text = f"""def _sites(model: nn.Module) -> list[Site]:
    found = []
    for path, module in model.named_modules():
        if {condition}:
            before = {before}
            after = {after}
            found.append(Site(path=path, kind="rewrite", before=before, after=after))
    return found"""
    return f"{_agreement(candidate, mixin)}\n\n\n{text}" if _is_plain(candidate) else text


def _before_after(candidate: Candidate) -> tuple[str, str]:
    first = candidate.steps[0] if candidate.steps else "stock -> the same"
    before, arrow, after = first.partition(" -> ")
    if not arrow:
        before, after = type(candidate.traced.module).__name__, first
    return _quoted(before[:70]), _quoted("; ".join([after, *candidate.steps[1:]])[:90])


def _quoted(text: str) -> str:
    return '"' + text.replace("\\", "\\\\").replace('"', "'") + '"'


def _is_plain(candidate: Candidate) -> bool:
    """Whether the module is small enough to be compared with its replacement wherever it is found."""
    module = candidate.traced.module
    one = len(candidate.traced.inputs) == 1 and not any(True for _ in module.children())
    return one and not candidate.eager and not candidate.tables and not candidate.traced.given


def _agreement(candidate: Candidate, mixin: str) -> str:
    parameters = list(candidate.traced.module.named_parameters(recurse=False))
    width = f"module.{parameters[0][0]}.shape[-1]" if parameters else "64"
    wide = "torch.float32" in candidate.graph.python_code("self").src
    tolerance = ", 1e-5" if wide else ""
    return f"""def _agrees(module: nn.Module) -> bool:
    width = {width}
    rows = torch.linspace(-9.0, 9.0, 4 * width, dtype=torch.float64).reshape(4, width)
    twin = _probe.double_copy(module)
    ours = functools.partial({mixin}.forward, twin)
    return _probe.same(_probe.run(twin, rows), _probe.run(ours, rows){tolerance})"""


def _guards(candidate: Candidate, class_name: str, model: nn.Module) -> list[str]:
    """Attributes whose value the graph holds as a number: other modules of the class may have other ones."""
    module = candidate.traced.module
    same = [m for m in model.modules() if type(m).__name__ == class_name]
    graphs = " ".join(str(graph) for graph in (candidate.graph, *(t.graph for t in candidate.tables.values())))
    written = {int(digits) for digits in re.findall(r"(?<![\w.])\d+(?![\w.])", graphs)}
    plain = candidate.traced.attributes
    names = [n for n, v in plain.items() if type(v) is int and v > 1 and v in written]
    names += [n for n in candidate.traced.fixed if n not in names and n in plain]
    names += [n for n, v in plain.items() if type(v) in (bool, str)]
    checks = []
    for name in dict.fromkeys(names):
        own = plain[name]
        if all(_held(m, name) == own for m in same) and not isinstance(own, Tensor):
            sign = "is" if isinstance(own, bool) else "=="
            read = f"module.{name}" if "." in name else f'getattr(module, "{name}", None)'
            checks.append(f"{read} {sign} {_literal(own)}")
    checks += [f"module.{name} == {_literal(_held(module, name))}" for name in candidate.relies]
    return checks


def _held(module: nn.Module, name: str) -> Any:
    """The value of a dotted attribute, a shape as a plain tuple; None where there is none."""
    try:
        held = operator.attrgetter(name)(module)
    except AttributeError:
        return None
    return tuple(held) if isinstance(held, torch.Size) else held


def _widened(candidate: Candidate) -> bool:
    """Whether the stock form rounds to float32 where the new one does not."""
    counts = [str(graph).count("torch.float32") for graph in (candidate.traced.graph, candidate.graph)]
    return counts[0] != counts[1]


def _literal(value: Any) -> str:
    return _quoted(value) if isinstance(value, str) else repr(value)


def _apply(candidate: Candidate, mixin: str) -> str:
    lines = ["module = model.get_submodule(site.path)", f"patcher.swap_class(module, {mixin})"]
    if candidate.eager:
        lines[1] = f'patcher.set_attr(module, "{EAGER}", True)'
    for table in candidate.tables.values():
        sources = ", ".join(f'"{name}"' for name in table.sources)
        lines.append(f'patcher.derive(module, "{table.name}", ({sources},), _{table.name})')
    body = "\n".join(f"    {line}" for line in lines)
    return f"def _apply(patcher: PatcherProtocol, model: nn.Module, site: Site) -> None:\n{body}"


def _claimed(candidate: Candidate) -> str:
    """The form's equivalence; `exact` cannot be seen where other adapters change the order of sums further inside."""
    changed = any(split_class(type(m))[1] for m in candidate.traced.module.modules())
    return "reassociated" if changed and candidate.equivalence == "exact" else candidate.equivalence


def _adapter(name: str, summary: str, rules: tuple[str, ...], candidate: Candidate, release: str) -> str:
    listed = ", ".join(f'"{rule}"' for rule in rules) + ("," if len(rules) == 1 else "")
    return f"""ADAPTER = Adapter(
    name="{name}",
    summary={_quoted(summary)},
    rules=({listed}),
    equivalence="{_claimed(candidate)}",
    sites=_sites,
    apply=_apply,
    examples=_examples,
    releases=("{release}",),
    order={_ORDER},
)"""
