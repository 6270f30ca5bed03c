"""Times a BERT-base forward on the device against CPU eager float32: `python -m benchmarks.bert_forward`.

Both are timed in turns, and the best of each counts, so that other work on the machine disturbs both alike.  The exit
code is 1 when the device takes more than `--limit` times as long.
"""

from __future__ import annotations

import argparse
import sys
import time
import warnings
from collections.abc import Callable

import torch
from transformers import BertConfig, BertModel

import hf_adapters
from benchmarks.layer_program import LayerProgram
from spyre_backend.emulator import Plan
from spyre_backend.emulator.numerics import dl16_round


def best_of(repeat: int, *functions: Callable[[], object]) -> list[float]:
    """Best wall time of each function in seconds, measured in turns after one unmeasured round."""
    best = [float("inf")] * len(functions)
    for turn in range(repeat + 1):
        for index, function in enumerate(functions):
            start = time.perf_counter()
            function()
            if turn:
                best[index] = min(best[index], time.perf_counter() - start)
    return best


def forward_times(layers: int, tokens: int, repeat: int) -> tuple[float, float, float]:
    """Seconds of an eager forward, of a device forward, and of the first device call with its compilation."""
    torch.manual_seed(0)
    config = BertConfig(num_hidden_layers=layers, initializer_range=0.1)
    eager = BertModel(config).eval()
    device = BertModel(config).eval()
    device.load_state_dict(eager.state_dict())
    inputs = {
        "input_ids": torch.randint(0, config.vocab_size, (1, tokens)),
        "attention_mask": torch.ones(1, tokens).long(),
    }
    hf_adapters.compile(device)
    start = time.perf_counter()
    result = device(**inputs).last_hidden_state
    first = time.perf_counter() - start
    expected = eager(**inputs).last_hidden_state
    similarity = torch.nn.functional.cosine_similarity(result.flatten(), expected.flatten(), dim=0)
    if similarity < 0.99:
        raise RuntimeError(f"the device's result is wrong (cosine {float(similarity):.4f}): its time means nothing")
    on_cpu, on_device = best_of(repeat, lambda: eager(**inputs), lambda: device(**inputs))
    return on_cpu, on_device, first


def layer_time(tokens: int, repeat: int) -> float:
    """Seconds of one encoder layer in the executor alone: a hand-made program, inputs already decoded."""
    program = LayerProgram(length=tokens).build()
    plan = Plan(program)
    generator = torch.Generator().manual_seed(0)
    tensors = {
        spec.name: dl16_round(torch.randn(spec.storage_elements, generator=generator) * 0.1)
        for spec in program.tensors
        if spec.kind != "temp"
    }
    (seconds,) = best_of(repeat, lambda: plan.run(dict(tensors)))
    return seconds


def main(argv: list[str] | None = None) -> int:
    """Print the times and their ratio; 0 if the device is within the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--repeat", type=int, default=7)
    parser.add_argument("--limit", type=float, default=5.0, help="largest accepted ratio of device to CPU time")
    options = parser.parse_args(argv)
    warnings.simplefilter("ignore")
    with torch.inference_mode():
        on_cpu, on_device, first = forward_times(options.layers, options.tokens, options.repeat)
        layer = layer_time(options.tokens, options.repeat)
    ratio = on_device / on_cpu
    verdict = "within" if ratio <= options.limit else "ABOVE"
    print(f"BERT-base, {options.layers} layers, 1 x {options.tokens} tokens, {torch.get_num_threads()} threads")
    print(f"  CPU eager float32   {on_cpu * 1e3:9.1f} ms")
    print(
        f"  device              {on_device * 1e3:9.1f} ms   {ratio:.2f} x ({verdict} the limit of {options.limit:g} x)"
    )
    print(f"  first call          {first * 1e3:9.1f} ms   with compilation")
    print(f"  executor, one layer {layer * 1e3:9.1f} ms")
    return 0 if ratio <= options.limit else 1


if __name__ == "__main__":
    sys.exit(main())
