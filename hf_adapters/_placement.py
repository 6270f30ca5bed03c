"""Parameters on the device, their originals on the host, and the way back.

The parameters of the model are replaced by device copies in half precision; the original ``Parameter`` objects are kept
untouched, so that going back is bitwise. Writes on either side are noticed through the same tokens that derived tensors
use.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn

from hf_adapters._derived import Token, placed, token_of
from hf_adapters.errors import WeightRangeError

FP16_MAX = 65504.0


@dataclass
class Slot:
    """One tensor of the model: the original on the host, its copy on the device and all the places that hold it.

    Attributes:
        host: the original parameter or buffer.
        device: its copy on the device; what the model holds while it is compiled.
        holders: (module, name, ``"_parameters"`` or ``"_buffers"``); several for tied weights.
        path: first dotted name, for error messages.
        dirty: the device copy was written to since, so its value is the newer one.
    """

    host: Tensor
    device: Tensor
    holders: list[tuple[nn.Module, str, str]]
    path: str
    dirty: bool = False
    host_token: Token | None = None
    device_token: Token | None = None

    @property
    def turned(self) -> bool:
        """Whether only linear layers multiply by it: such weights lie with their output features along the stick, as
        the card's own loader puts them (D2.2), and are not transposed at every call (#3512)."""
        return self.host.dim() == 2 and all(isinstance(m, nn.Linear) and n == "weight" for m, n, _ in self.holders)

    def __getstate__(self) -> dict[str, Any]:
        # Tokens hold addresses; in a copy they are taken anew when the slot is looked at first.
        changed = self.dirty or self.device_token not in (None, token_of(self.device))
        return {**self.__dict__, "dirty": changed, "host_token": None, "device_token": None}


@dataclass
class Placement:
    """All slots of one compiled model.

    Attributes:
        device: where the parameters are.
        dtype: the dtype that floating point parameters have there.
        slots: one per distinct tensor.
    """

    device: torch.device
    dtype: torch.dtype
    slots: list[Slot] = field(default_factory=list)

    def move(self, model: nn.Module) -> None:
        """Replace every parameter and buffer of ``model`` by its device copy.

        Buffers of modules without parameters stay on the host in their dtype: they are tables (rotary frequencies) from
        which the host computes, and half precision would ruin them.

        Raises:
            WeightRangeError: a weight is too large for ``dtype``; nothing has been moved.
        """
        found: dict[int, Slot] = {}
        for path, holder, tensor in _tensors(model):
            slot = found.get(id(tensor))
            if slot is None:
                found[id(tensor)] = Slot(tensor, tensor, [holder], path)
            else:
                slot.holders.append(holder)
        for slot in found.values():
            slot.device = self.copy(slot.host, slot.path, turned=slot.turned)
        for slot in found.values():
            _hold(slot, slot.device)
            slot.host_token, slot.device_token = token_of(slot.host), token_of(slot.device)
            self.slots.append(slot)

    def copy(self, tensor: Tensor, path: str, *, turned: bool = False) -> Tensor:
        """A device copy, cast on the host and then moved (D6.10); a Parameter when the original is one.

        ``turned`` lays a matrix out with its dim 0 along the stick (dim_order [1, 0] in D2.2).
        """
        value = tensor.detach()
        if value.is_floating_point():
            if self.dtype == torch.float16 and value.dtype != torch.float16:
                _check_range(value, path)
            value = value.to(self.dtype)
        value = placed(value, self.device, turned=turned)
        return nn.Parameter(value, requires_grad=tensor.requires_grad) if isinstance(tensor, nn.Parameter) else value

    def sync(self, model: nn.Module) -> None:
        """Notice what happened to the tensors since the last call and bring both sides together.

        A tensor that was replaced (``load_state_dict(assign=True)``, ``module.weight = ...``, ``.to("cpu")``) is
        adopted as the new original; an original that was written to is copied to the device again; a device copy
        that was written to is marked, so that going back keeps its value.
        """
        known: dict[int, Slot] = {}
        for slot in self.slots:
            for module, name, kind in slot.holders:
                held = getattr(module, kind).get(name)
                if held is not slot.device and held is not None:
                    self._adopt(slot, held, known)
                    break
            self._compare(slot)

    def _adopt(self, slot: Slot, held: Tensor, known: dict[int, Slot]) -> None:
        other = known.get(id(held))
        if other is not None:
            slot.host, slot.device = other.host, other.device
        else:
            host = held.detach().cpu() if held.device == self.device else held
            slot.host = host
            slot.device = self.copy(host, slot.path, turned=slot.turned)
            known[id(held)] = slot
        slot.dirty, slot.host_token, slot.device_token = False, token_of(slot.host), None
        _hold(slot, slot.device)

    def _compare(self, slot: Slot) -> None:
        host_token = token_of(slot.host)
        # Without a token the slot comes from pickle or deepcopy, which may have rounded the device tensor.
        copied = slot.host_token is None
        if not (copied and slot.dirty) and slot.host_token != host_token:
            with torch.no_grad():
                slot.device.copy_(self.copy(slot.host, slot.path))
            slot.dirty, slot.device_token = False, None
        slot.host_token = host_token
        device_token = token_of(slot.device)
        slot.dirty = slot.dirty or slot.device_token not in (None, device_token)
        slot.device_token = device_token

    def masters(self) -> dict[int, Tensor]:
        """``id(device tensor)`` -> original, for the slots whose original is up to date."""
        return {id(slot.device): slot.host for slot in self.slots if not slot.dirty}

    def change_dtype(self, model: nn.Module, dtype: torch.dtype) -> None:
        """Place everything again, in another dtype."""
        self.restore()
        self.dtype = dtype
        self.move(model)

    def mark_written(self, ids: Collection[int]) -> None:
        """The device tensors with these ids were found to hold other values than their originals."""
        for slot in self.slots:
            slot.dirty = slot.dirty or id(slot.device) in ids

    def restore(self) -> None:
        """Put the originals back; values written on the device since are copied into them first."""
        for slot in self.slots:
            if slot.dirty:
                with torch.no_grad():
                    slot.host.copy_(slot.device.detach().cpu())
            _hold(slot, slot.host)
        self.slots.clear()


def _hold(slot: Slot, tensor: Tensor) -> None:
    for module, name, kind in slot.holders:
        getattr(module, kind)[name] = tensor


def _tensors(model: nn.Module) -> Iterator[tuple[str, tuple[nn.Module, str, str], Tensor]]:
    for path, module in model.named_modules():
        prefix = f"{path}." if path else ""
        for name, parameter in module._parameters.items():
            if parameter is not None:
                yield prefix + name, (module, name, "_parameters"), parameter
        if not any(p is not None for p in module._parameters.values()) and not any(module.children()):
            continue
        for name, buffer in module._buffers.items():
            if buffer is not None:
                yield prefix + name, (module, name, "_buffers"), buffer


def largest(value: Tensor) -> float:
    """The largest absolute value; 0 for an empty tensor."""
    return float(value.detach().abs().amax()) if value.numel() else 0.0


def _check_range(value: Tensor, path: str) -> None:
    found = largest(value)
    if found > FP16_MAX:
        raise WeightRangeError(
            f"{path} holds values up to {found:.3g}, beyond {FP16_MAX:.0f}, the largest float16; "
            "compile with dtype=torch.bfloat16"
        )
