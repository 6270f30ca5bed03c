"""What a model computed for a batch: every repeated layer's output, the last hidden state and the pooled
embedding."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from typing import Any, Literal

import torch
from torch import Tensor, nn

from hf_adapters.validation.dl16_tensor import DL16Tensor
from hf_adapters.validation.inputs import InputSet
from hf_adapters.validation.streaming import run as run_streamed
from hf_adapters.validation.streaming import stream_of

Pooling = Literal["mean", "cls", "last"]
MODEL_PLACES = ("last_hidden_state", "pooled")
"""Places of a recording that are results of the whole model."""

POOLINGS: tuple[Pooling, ...] = ("mean", "cls", "last")


@dataclass(frozen=True, slots=True)
class Recording:
    """Results of one run over several input sets, on the CPU."""

    values: dict[str, Tensor]
    """`"<set>/<place>"` -> float32 or float64; place is a layer's path, `last_hidden_state` or `pooled`. Layers
    `[batch, length, hidden]`, pooled `[batch, hidden]`."""

    def of(self, input_set: str) -> dict[str, Tensor]:
        """Results of one set, by place."""
        prefix = input_set + "/"
        return {key.removeprefix(prefix): value for key, value in self.values.items() if key.startswith(prefix)}


def repeated_layers(model: nn.Module) -> dict[str, nn.Module]:
    """The layers of the model: members of every outermost `ModuleList` of more than one equal class, or of the only
    one.

    Returns:
        Module path -> layer, in order of registration. Empty when the model has no list of layers.
    """
    lists = {
        name: module for name, module in model.named_modules() if isinstance(module, nn.ModuleList) and len(module) > 0
    }
    outer = {
        name: module
        for name, module in lists.items()
        if not any(name.startswith(other + ".") for other in lists if other != name)
    }
    return {f"{name}.{index}": layer for name, module in outer.items() for index, layer in enumerate(module)}


def record(
    model: Callable[..., Any],
    input_sets: Sequence[InputSet],
    *,
    layers: Mapping[str, nn.Module],
    pooling: Pooling,
) -> Recording:
    """Call `model` on each set and keep what its layers and the model returned.

    Args:
        model: called with each set's keyword arguments.
        input_sets: batches.
        layers: path -> module whose output is kept (called through the model).
        pooling: how a sentence's vector is made, unless the model returns `sentence_embedding` itself.
    """
    if stream_of(model) is not None:
        return _record_streamed(model, input_sets, pooling)
    values: dict[str, Tensor] = {}
    for batch in input_sets:
        kept: dict[str, list[Tensor]] = {}
        with _kept_outputs(layers, kept):
            output = model(**{key: value.clone() for key, value in batch.kwargs.items()})
        for path, calls in kept.items():
            for number, tensor in enumerate(calls):
                values[f"{batch.name}/{path}" + (f"#{number}" if number else "")] = tensor
        values.update(_results(batch, output, pooling))
    return Recording(values)


def _record_streamed(model: Callable[..., Any], input_sets: Sequence[InputSet], pooling: Pooling) -> Recording:
    """The same for a model that carries a stream; a layer's place is that of the whole model."""
    stream = stream_of(model)
    assert stream is not None
    layers: list[dict[str, Tensor]] = [{} for _ in input_sets]

    def keep(call: int, layer: int, output: Tensor) -> None:
        layers[call][f"{input_sets[call].name}/{stream.path}.{layer}"] = to_host(output)

    calls = [{key: value.clone() for key, value in batch.kwargs.items()} for batch in input_sets]
    outputs = run_streamed(model, calls, keep)
    values: dict[str, Tensor] = {}
    for batch, kept, output in zip(input_sets, layers, outputs, strict=True):
        values.update(kept)
        values.update(_results(batch, output, pooling))
    return Recording(values)


def _results(batch: InputSet, output: Any, pooling: Pooling) -> dict[str, Tensor]:
    """What the whole model gave for a batch."""
    hidden = last_hidden_state(output)
    found = {} if hidden is None else {f"{batch.name}/last_hidden_state": to_host(hidden)}
    return {**found, f"{batch.name}/pooled": pooled(output, batch.valid, pooling)}


def batches(recording: Recording) -> list[tuple[int, int]]:
    """(rows, positions of a row) of every layer output in a recording, padding included."""
    layers = (v for k, v in recording.values.items() if k.partition("/")[2] not in MODEL_PLACES and v.dim() == 3)
    return [(value.shape[0], value.shape[1]) for value in layers]


def last_hidden_state(output: Any) -> Tensor | None:
    """The token vectors `[batch, length, hidden]` in what a model returned; None when it returns only sentence
    vectors."""
    if isinstance(output, Tensor):
        return output if output.dim() == 3 else None
    for key in ("last_hidden_state", "token_embeddings", "logits"):
        value = output.get(key) if isinstance(output, Mapping) else getattr(output, key, None)
        if isinstance(value, Tensor):
            return value
    first = output[0] if isinstance(output, Sequence) and output else None
    return first if isinstance(first, Tensor) and first.dim() == 3 else None


def pooled(output: Any, valid: Tensor, pooling: Pooling) -> Tensor:
    """One vector for each row, `[batch, hidden]`, computed on the host from the token vectors, or the model's own
    `sentence_embedding`.

    Raises:
        TypeError: the output holds neither token vectors nor a sentence vector.
    """
    own = output.get("sentence_embedding") if isinstance(output, Mapping) else None
    if own is None and last_hidden_state(output) is None:
        # Bi-encoders of one vector for each row (DPR) call it so.
        own = getattr(output, "pooler_output", None)
    if own is None and isinstance(output, Tensor) and output.dim() == 2:
        own = output
    if own is not None:
        return to_host(own)
    hidden = last_hidden_state(output)
    if hidden is None:
        raise TypeError(
            f"{type(output).__name__} holds no last_hidden_state, token_embeddings or sentence_embedding; "
            "an embedding model returns one of them"
        )
    tokens = to_host(hidden)
    if pooling == "mean":
        weights = valid.to(tokens.dtype).unsqueeze(-1)
        return torch.where(valid.unsqueeze(-1), tokens, torch.zeros_like(tokens)).sum(1) / weights.sum(1)
    positions = torch.arange(valid.shape[1]).expand_as(valid)
    edge = (
        positions.masked_fill(~valid, valid.shape[1]).amin(1)
        if pooling == "cls"
        else positions.masked_fill(~valid, -1).amax(1)
    )
    return tokens[torch.arange(tokens.shape[0]), edge]


def to_host(tensor: Tensor) -> Tensor:
    """A detached copy on the CPU in float32 (float64 stays float64)."""
    if isinstance(tensor, DL16Tensor):
        return tensor.dl16.detach().clone()
    tensor = tensor.detach()
    if tensor.device.type != "cpu":
        # Copied straight into float32: on the way through float16, values beyond 65504 would become infinite (D1.5).
        return torch.empty(tensor.shape, dtype=torch.float32).copy_(tensor)
    return tensor.to(torch.float64 if tensor.dtype == torch.float64 else torch.float32, copy=True)


def first_tensor(output: Any) -> Tensor | None:
    """The first tensor of what a module gives; None when there is none."""
    if isinstance(output, Tensor):
        return output
    if isinstance(output, Mapping):
        output = tuple(output.values())
    if isinstance(output, Sequence):
        return next((item for item in output if isinstance(item, Tensor)), None)
    return None


@contextmanager
def _kept_outputs(layers: Mapping[str, nn.Module], kept: dict[str, list[Tensor]]) -> Iterator[None]:
    """Collect outputs without entering the compiled region: a compiled layer's own entry is wrapped, a plain one gets
    a hook."""
    with ExitStack() as stack:
        for path, layer in layers.items():
            collect = _collector(kept.setdefault(path, []))
            compiled = layer.__dict__.get("_compiled_call_impl")
            if compiled is None:
                stack.callback(layer.register_forward_hook(lambda _m, _a, out, c=collect: c(out)).remove)
            else:
                layer.__dict__["_compiled_call_impl"] = _wrapped(compiled, collect)
                stack.callback(layer.__dict__.__setitem__, "_compiled_call_impl", compiled)
        yield


def _collector(calls: list[Tensor]) -> Callable[[Any], None]:
    def collect(output: Any) -> None:
        tensor = first_tensor(output)
        if tensor is not None:
            calls.append(to_host(tensor))

    return collect


def _wrapped(compiled: Callable[..., Any], collect: Callable[[Any], None]) -> Callable[..., Any]:
    def call(*args: Any, **kwargs: Any) -> Any:
        output = compiled(*args, **kwargs)
        collect(output)
        return output

    return call
