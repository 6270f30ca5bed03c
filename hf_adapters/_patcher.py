"""The reversible steps by which one model instance is patched."""

from __future__ import annotations

import copy
import enum
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any, Protocol

from torch import Tensor, nn

from hf_adapters._classes import MixinSpec, Rebinding, patched_class, split_class, with_mixin
from hf_adapters._derived import Derived, refresh_one


class Missing(enum.Enum):
    """Marks "there was no such attribute"; an enum member stays identical through pickle and deepcopy."""

    MISSING = enum.auto()


class Step(Protocol):
    """Something done to a module that can be taken back."""

    def undo(self) -> None: ...


@dataclass
class ClassStep:
    """The class of ``module`` was swapped; ``base`` and ``mixins`` describe the class it had before."""

    module: nn.Module
    base: type
    mixins: tuple[MixinSpec, ...]

    def undo(self) -> None:
        self.module.__class__ = patched_class(self.base, self.mixins)


@dataclass
class AttrStep:
    """``module.__dict__[name]`` was set; ``old`` is what was there before."""

    module: nn.Module
    name: str
    old: Any

    def undo(self) -> None:
        if self.old is Missing.MISSING:
            self.module.__dict__.pop(self.name, None)
        else:
            self.module.__dict__[self.name] = self.old


@dataclass
class Patcher:
    """Records what is done to a model so that it can be undone exactly; lives on the patched model.

    All steps touch instances only: classes, modeling modules and configs shared with other models stay as they are.

    Attributes:
        model: the model being patched.
        steps: what was done, in order.
        derived: tensors that follow the parameters.
    """

    model: nn.Module
    steps: list[Step] = field(default_factory=list)
    derived: list[Derived] = field(default_factory=list)

    def swap_class(self, module: nn.Module, mixin: type, **attrs: Any) -> None:
        """Put ``mixin`` in front of the class of this one module.

        Args:
            module: any module of the model.
            mixin: importable class; its methods may call ``super()`` to reach the stock ones.
            **attrs: instance attributes to set as well, see :meth:`set_attr`.
        """
        base, mixins = split_class(type(module))
        self._set_class(module, base, mixins, with_mixin(mixins, mixin))
        for name, value in attrs.items():
            self.set_attr(module, name, value)

    def rebind(self, module: nn.Module, names: Mapping[str, Callable[..., Any]]) -> None:
        """Give this module a copy of its stock forward in which global names mean other callables.

        Args:
            module: any module of the model; its modeling module is not touched.
            names: global name used in the stock forward -> importable replacement.

        Raises:
            ValueError: the stock forward uses none of a name, so the replacement would never be called.
        """
        base, mixins = split_class(type(module))
        self._set_class(module, base, mixins, with_mixin(mixins, Rebinding(tuple(sorted(names.items())))))

    def _set_class(self, module: nn.Module, base: type, old: tuple[MixinSpec, ...], new: tuple[MixinSpec, ...]) -> None:
        if new == old:
            return
        module.__class__ = patched_class(base, new)
        self.steps.append(ClassStep(module, base, old))

    def set_attr(self, module: nn.Module, name: str, value: Any) -> None:
        """Set a plain instance attribute; it hides a class attribute but never replaces a parameter or submodule.

        Raises:
            ValueError: ``name`` is a parameter, a buffer or a submodule, which would change the state_dict.
        """
        if name in module._parameters or name in module._buffers or name in module._modules:
            raise ValueError(
                f"{name!r} of {type(module).__name__} is part of its state_dict and must not be replaced; use another "
                "attribute name and read that one in the mixin"
            )
        self.steps.append(AttrStep(module, name, module.__dict__.get(name, Missing.MISSING)))
        module.__dict__[name] = value

    def derive(
        self,
        module: nn.Module,
        name: str,
        sources: tuple[str, ...],
        fn: Callable[..., Tensor | None],
        **kwargs: Any,
    ) -> None:
        """Keep ``module.<name> = fn(*sources, **kwargs)`` up to date with the parameters it comes from.

        Args:
            module: where the tensor is kept, as a plain attribute.
            name: name of the attribute.
            sources: dotted names of parameters or buffers below ``module``; a source that is None is given as None.
            fn: importable; gets CPU copies, returns a CPU tensor, which is cast and moved to where the first source is.
            **kwargs: passed on to ``fn``; must pickle.
        """
        self.set_attr(module, name, None)
        entry = Derived(module, name, tuple(sources), fn, dict(kwargs))
        refresh_one(entry, {})
        self.derived.append(entry)

    def override_config(self, model: nn.Module, **values: Any) -> None:
        """Give ``model`` and its submodules their own copy of the config, with some values changed.

        Submodules that hold the same config object, or one of its sub-configs, get the copy; the config object itself,
        which other models may share, stays as it is and is what ``save_pretrained`` writes.
        """
        old = model.__dict__.get("config")
        if old is None:
            raise ValueError(f"{type(model).__name__} has no config to override")
        memo: dict[int, Any] = {}
        new = copy.deepcopy(old, memo)
        for module in model.modules():
            held = module.__dict__.get("config")
            if held is not None and id(held) in memo:
                self.set_attr(module, "config", memo[id(held)])
        for name, value in values.items():
            setattr(new, name, value)

    def refresh(self, masters: dict[int, Tensor] | None = None) -> int:
        """Recompute the derived tensors whose sources changed; returns how many were.

        Args:
            masters: ``id(device parameter)`` -> host tensor it was made from, see :func:`refresh_one`.
        """
        masters = {} if masters is None else masters
        return sum(refresh_one(entry, masters) for entry in self.derived)

    def stock_config(self, module: nn.Module) -> Any:
        """The config that ``module`` had before it was patched."""
        for step in self.steps:
            if isinstance(step, AttrStep) and step.module is module and step.name == "config":
                return step.old
        return module.__dict__.get("config")

    def undo(self, to: int = 0) -> None:
        """Take back the steps from the last one down to step number ``to``."""
        while len(self.steps) > to:
            self.steps.pop().undo()
        if to == 0:
            self.derived.clear()
