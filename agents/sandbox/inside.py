"""Runs inside the sandbox: apply a drafted adapter to a model, execute it, send the raw results out.

    python inside.py FD JOB

FD is a pipe to the process outside; JOB a folder with `job.json` and `inputs.safetensors`. Nothing is judged here: the
reference values are where this process cannot read. The file is run as a script and imports nothing of
`hf_adapters.agents`.

Messages are a length (8 bytes), JSON of that length, the length of a safetensors file (8 bytes, 0 for none) and that
file.
"""

from __future__ import annotations

import dataclasses
import gc
import importlib
import inspect
import json
import os
import resource
import struct
import sys
import types
from collections.abc import Callable, Iterator
from contextlib import contextmanager, nullcontext, suppress
from pathlib import Path
from typing import Any

Json = dict[str, Any]


def main() -> None:
    """Serve one job."""
    pipe, folder = int(sys.argv[1]), Path(sys.argv[2])
    job: Json = json.loads((folder / "job.json").read_text(encoding="utf-8"))
    _limit(job["limits"])
    # What a draft prints cannot reach the process outside.
    os.dup2(os.open(os.devnull, os.O_RDWR), 1)
    worker = _Worker(job, folder)
    _send(pipe, {"event": "ready"})
    try:
        answer, tensors = worker.run()
    except MemoryError:
        answer, tensors = {"event": "failed", "kind": "memory", "reason": "out of memory"}, {}
    except BaseException as error:
        answer, tensors = _failure(error, worker.stage), {}
    worker.forget()
    gc.collect()
    _send(pipe, answer, tensors)


def _limit(limits: Json) -> None:
    for name, value in limits.items():
        kind = getattr(resource, name)
        _, hard = resource.getrlimit(kind)
        bound = int(value) if hard == resource.RLIM_INFINITY else min(int(value), hard)
        resource.setrlimit(kind, (bound, bound))


def _send(pipe: int, message: Json, tensors: dict[str, Any] | None = None) -> None:
    blob = b""
    if tensors:
        from safetensors.torch import save

        blob = save({key: value.contiguous() for key, value in tensors.items()})
    text = json.dumps(message).encode()
    data = memoryview(struct.pack("<Q", len(text)) + text + struct.pack("<Q", len(blob)) + blob)
    while data:
        data = data[os.write(pipe, data) :]


def _failure(error: BaseException, stage: str) -> Json:
    from hf_adapters.validation.unsupported import unsupported_in

    text = " ".join(str(error).split())[:2000]
    refused = unsupported_in(error)
    return {
        "event": "failed",
        "kind": "refused" if refused is not None else "error",
        "stage": stage,
        "reason": f"{type(error).__name__}: {text}",
        "refused": None if refused is None else refused.fields(),
    }


class _Worker:
    """One job: everything of this project is imported before the draft is."""

    def __init__(self, job: Json, folder: Path) -> None:
        import torch
        from safetensors.torch import load_file
        from torch._dynamo.mutation_guard import install_generation_tagging_init

        import hf_adapters.runner
        import hf_adapters.validation.followed  # noqa: F401
        from hf_adapters.validation.inputs import InputSet

        self.job, self.stage = job, "build"
        torch.manual_seed(0)
        tensors = load_file(folder / "inputs.safetensors") if job["inputs"] else {}
        self.sets = tuple(
            InputSet(
                name=item["name"],
                padding=item["padding"],
                use=item["use"],
                kwargs={key: tensors[f"{item['name']}/{key}"] for key in item["keys"]},
            )
            for item in job["inputs"]
        )
        self.model = _build(job["model"]) if job["model"] is not None else None
        _import_catalogue({job["name"], *job["beside"]})
        # Dynamo wraps Module.__init__ at its first compilation, which must not count as a change by the draft.
        install_generation_tagging_init()
        self.untouched = _functions() if job["watch"] else {}
        self.drafts: dict[str, Any] = {}

    def run(self) -> tuple[Json, dict[str, Any]]:
        """The answer to the job and its tensors."""
        from hf_adapters.catalogue import catalogue, source_hash

        answer: Json = {"event": "done", "stage": "load", "sites": [], "adapters": {}, "scanned": {}}
        self.stage = "load"
        for name in filter(None, (*self.job["beside"], self.job["name"])):
            self.drafts[name] = importlib.import_module(f"hf_adapters.adapters.{name}").ADAPTER
        catalogue.cache_clear()
        seen: dict[str, Json] = {}
        for name, draft in self.drafts.items():
            claimed = {"rules": list(draft.rules), "equivalence": draft.equivalence}
            seen[name] = {"adapter": {"name": draft.name, "hash": source_hash(draft), **claimed}}
            if self.job["prove"]:
                self.stage = "examples"
                seen[name]["proof"] = self._prove(draft)
        tensors: dict[str, Any] = {}
        if self.model is not None:
            self.stage = "sites"
            for name, found in self._sites().items():
                seen[name] |= found
            if all(map(_worth_executing, seen.values())):
                tensors = self._execute(answer)
        answer |= seen.pop(self.job["name"], {})
        answer["beside"] = seen
        for name, model in self.job["scan"].items():
            self.stage = f"sites of {name}"
            answer["scanned"][name] = self._count(model)
        answer["stage"] = "done" if answer["event"] == "done" else answer["stage"]
        answer["changed_code"] = _changes(self.untouched, _functions())
        return answer, tensors

    def forget(self) -> None:
        """Release the model before the results are sent."""
        self.model = None

    # -- parts of a job

    def _count(self, model: Json) -> int:
        """How many sites the drafts have in another model; -1 where that cannot be told."""
        try:
            self.model = _build(model)
            return sum(len(found["sites"]) for found in self._sites().values())
        except Exception:  # the model or a draft fails: the process outside has a closer look
            return -1
        finally:
            self.model = None

    def _adapters(self) -> tuple[Any, ...]:
        """The catalogue, the draft included, without what is left out."""
        from hf_adapters.catalogue import catalogue

        return tuple(adapter for adapter in catalogue() if adapter.name not in self.job["without"])

    @contextmanager
    def _patched(self, model: Any) -> Iterator[Any]:
        from hf_adapters.patching import patch_state, patch_with, unpatch

        patch_with(model, self._adapters(), release=self.job["release"])
        try:
            yield model
        finally:
            if patch_state(model) is not None:
                unpatch(model)

    def _sites(self) -> dict[str, Json]:
        """Where each draft changes the model, by its own report and by what was really changed."""
        from hf_adapters.patching import patch_state, patch_with, unpatch

        assert self.model is not None
        changed: dict[str, set[int]] = {name: set() for name in self.drafts}

        def followed(draft: Any) -> Any:
            def applied(patcher: Any, model: Any, site: Any) -> None:
                before = len(patcher.steps)
                draft.apply(patcher, model, site)
                changed[draft.name].update(id(step.module) for step in patcher.steps[before:])

            return dataclasses.replace(draft, apply=applied)

        adapters = tuple(followed(a) if a is self.drafts.get(a.name) else a for a in self._adapters())
        patch_with(self.model, adapters, release=self.job["release"])
        state = patch_state(self.model)
        assert state is not None
        found: dict[str, Json] = {name: {"sites": []} for name in self.drafts}
        for name, seen in found.items():
            seen["changed_modules"] = [p for p, module in self.model.named_modules() if id(module) in changed[name]]
        for applied in state.report.adapters:
            if applied.name in found:
                fields = ("path", "kind", "before", "after")
                found[applied.name]["sites"] += [{key: getattr(s, key) for key in fields} for s in applied.sites]
        unpatch(self.model)
        return found

    def _prove(self, draft: Any) -> list[Json]:
        """The adapter's own examples, stock against patched, in float64."""
        import torch

        from hf_adapters.patching import patch_report, patch_with, unpatch
        from hf_adapters.validation.float64 import in_float64

        found = []
        for example in draft.examples():
            model, inputs = example.build(), example.inputs()
            with torch.no_grad(), in_float64() if example.widened else nullcontext():
                stock = _tensors(model(**inputs))
                patch_with(model, [draft], release=self.job["release"])
                sites = len(patch_report(model).sites)
                ours = _tensors(model(**inputs))
                unpatch(model)
                again = _tensors(model(**inputs))
            doubles = all(t.dtype == torch.float64 for t in [*stock, *ours])
            error = max(map(_error, ours, stock), default=float("inf"))
            undone = len(again) == len(stock) and all(map(torch.equal, again, stock))
            complete = doubles and undone and len(ours) == len(stock)
            found.append({"name": example.name, "sites": sites, "error": min(error, 1e300), "complete": complete})
        return found

    def _execute(self, answer: Json) -> dict[str, Any]:
        """The device, then float64 on the CPU, as `validation.attempts` does for trusted adapters."""
        import torch

        from hf_adapters.patching import patch_state
        from hf_adapters.validation.runners import Device, in_dtype, run_float64, run_reference, weights_digest
        from hf_adapters.validation.unsupported import unsupported_in

        assert self.model is not None
        self.stage = "device"
        names = [a.name for a in self._adapters()]
        device = Device(adapters=names, release=self.job["release"], watched=True)
        runner = in_dtype(device, getattr(torch, self.job["dtype"]))
        places: list[str] = []
        try:
            with self._patched(self.model) as candidate:
                state: Any = patch_state(candidate)
                answer["adapters"] = state.report.hashes
                places = list({site.path: None for site in state.report.sites if site.path})
                done = runner(candidate, self.sets, self.job["pooling"])
        except Exception as error:
            if unsupported_in(error) is None:
                raise
            answer |= _failure(error, self.stage)
            # The device may refuse what is no fault of the drafts, whose own modules are compared all the same.
            with suppress(Exception):
                answer["checks"] = self._compare(places)
            return {}
        self.stage = "float64"
        with self._patched(self.model) as candidate:
            exact = run_float64(candidate, self.sets, self.job["pooling"])
            single = run_reference(candidate, self.sets, self.job["pooling"])
        answer |= {
            "fallbacks": [[op, category, count] for (op, category), count in done.fallbacks.items()],
            "launches": done.launches,
            "computed_elsewhere": dict(done.computed_elsewhere),
            "multiplications": done.multiplications,
            "layers": done.layers,
            "seconds": done.seconds,
            "simulated_us": getattr(done, "simulated_us", None),
            "weights": weights_digest(self.model),
            "checks": self._compare(places),
        }
        recordings = {"device": done.recording, "float64": exact, "float32": single}
        return {f"{name}/{key}": value for name, found in recordings.items() for key, value in found.values.items()}

    def _compare(self, places: list[str]) -> list[Json]:
        """The patched modules against the stock ones, in float64."""
        from hf_adapters.validation import followed, functions
        from hf_adapters.validation.inputs import InputSet
        from hf_adapters.validation.runners import on_device
        from hf_adapters.validation.types import Thresholds

        size: Callable[[InputSet], tuple[bool, int]] = lambda s: (s.kwargs["input_ids"].shape[0] == 1, s.tokens)  # noqa: E731
        batch, limits = min(on_device(self.sets), key=size), Thresholds(**self.job["thresholds"])
        assert self.model is not None
        tried = functions.representatives(self.model, places)
        checks = functions.compare_sites(self.model, tried, self._patched, batch, limits)
        checks.append(followed.follows_weights(self.model, self._patched, batch, limits))
        return [dataclasses.asdict(check) | {"value": min(check.value or 0.0, 1e300)} for check in checks]


def _build(model: Json) -> Any:
    import torch

    from hf_adapters.validation.source import ModelSource

    if model["kind"] == "profile":
        from hf_adapters.sweep.work import rebuild_profile

        return ModelSource(builder=rebuild_profile, arguments=model["arguments"]).build()
    torch.set_grad_enabled(False)
    try:
        return ModelSource(path=model["path"]).build()
    finally:
        torch.set_grad_enabled(True)


def _import_catalogue(drafts: set[str]) -> None:
    import hf_adapters.adapters as folder

    for entry in sorted(Path(next(iter(folder.__path__))).glob("*.py")):
        if entry.stem not in (*drafts, "__init__"):
            importlib.import_module(f"{folder.__name__}.{entry.stem}")


def _functions() -> dict[str, Any]:
    """Code of the functions that run and measure a candidate, by name: what a patch of the validator, of torch or of
    the clock would replace. Only identities are compared, so a function put back is not noticed."""
    import builtins
    import time

    import torch

    found: dict[str, Any] = {}
    owners = [m for name, m in list(sys.modules.items()) if name.split(".")[0] in ("hf_adapters", "spyre_backend")]
    owners += [builtins, time, torch, torch.nn.functional, torch.nn.modules.module, resource, os]
    for owner in owners:
        _note(found, getattr(owner, "__name__", ""), vars(owner))
    for name in _CLASSES:
        _note(found, name, vars(torch.Tensor if name == "Tensor" else getattr(torch.nn, name)))
    return found


def _worth_executing(seen: Json) -> bool:
    """Whether nothing is known yet for which the process outside refuses the draft anyway."""
    proven = all(found["sites"] and found["complete"] and found["error"] <= 1e-9 for found in seen.get("proof", []))
    places = [site["path"] for site in seen["sites"]]
    inside = all(any(p in ("", c) or c.startswith(p + ".") for p in places) for c in seen["changed_modules"])
    return bool(places) and proven and inside


def _changes(before: dict[str, Any], after: dict[str, Any]) -> list[str]:
    """Names whose code is another one, is gone, or is new on a class of torch."""
    changed = [name for name, code in after.items() if name in before and before[name] is not code]
    added = [name for name in after if name not in before and name.split(".")[0] in _CLASSES]
    added = [name for name in added if not (name == "Module.smart_apply" and _is_of_transformers(after[name]))]
    return [*changed, *added, *sorted(set(before) - set(after))]


def _is_of_transformers(code: Any) -> bool:
    """Whether this is the method that transformers gives Module when the first model is built, which may be one of the
    draft's examples; the code object itself, for a file name can be forged."""
    from transformers import PreTrainedModel

    return any(constant is code for constant in inspect.unwrap(PreTrainedModel.initialize_weights).__code__.co_consts)


_CLASSES = ("Tensor", "Module", "Linear", "LayerNorm", "Embedding")


def _note(found: dict[str, Any], owner: str, namespace: Any) -> None:
    for name, value in list(namespace.items()):
        if isinstance(value, types.FunctionType):
            found[f"{owner}.{name}"] = value.__code__
        elif isinstance(value, (types.BuiltinFunctionType, types.MethodDescriptorType)):
            found[f"{owner}.{name}"] = value
        elif isinstance(value, type) and value.__module__ == owner:
            for method, function in list(vars(value).items()):
                if isinstance(function, types.FunctionType):
                    found[f"{owner}.{name}.{method}"] = function.__code__


def _tensors(value: Any) -> list[Any]:
    import torch

    if isinstance(value, torch.Tensor):
        return [value]
    items = value.values() if isinstance(value, dict) else value if isinstance(value, (list, tuple)) else ()
    return [t for item in items for t in _tensors(item)]


def _error(ours: Any, stock: Any) -> float:
    if ours.shape != stock.shape or not bool(ours.isfinite().all()):
        return float("inf")
    scale = stock.abs().amax().clamp(min=1e-300) if stock.numel() else 1.0
    return float((ours - stock).abs().amax() / scale) if stock.numel() else 0.0


if __name__ == "__main__":
    main()
    # No destructor and no thread of the draft runs once the answer is out.
    os._exit(0)
