"""Times the compilation of a 12-layer BERT for the device against torch.compile on the CPU.

`python -m benchmarks.compile_time`.  Each compiles in a process of its own with empty caches; counted is the first call
less a later one, so that running the model does not count.  On the device equal layers share one program.  The exit
code is 1 when the device takes more than `--limit` times as long.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import tempfile
import time
import warnings
from pathlib import Path

CACHES = ("TORCHINDUCTOR_CACHE_DIR", "SPYRE_CACHE_DIR", "XDG_CACHE_HOME")


def compile_here(target: str, layers: int, tokens: int) -> dict[str, float]:
    """Seconds that compiling takes in this process, and the programs that were made (0 on the CPU)."""
    import torch
    from transformers import BertConfig, BertModel

    torch.manual_seed(0)
    model = BertModel(BertConfig(num_hidden_layers=layers)).eval()
    inputs = {"input_ids": torch.ones(1, tokens).long(), "attention_mask": torch.ones(1, tokens).long()}
    if target == "device":
        import hf_adapters

        hf_adapters.compile(model)
        call = model
    else:
        call = torch.compile(model)
    with torch.inference_mode():
        start = time.perf_counter()
        call(**inputs)
        first = time.perf_counter() - start
        start = time.perf_counter()
        call(**inputs)
        later = time.perf_counter() - start
    programs = len(list(Path(os.environ["SPYRE_CACHE_DIR"]).rglob("*.json")))
    return {"seconds": first - later, "programs": programs}


def compile_apart(target: str, layers: int, tokens: int) -> dict[str, float]:
    """:func:`compile_here` in a fresh process with empty caches."""
    with tempfile.TemporaryDirectory() as caches:
        command = [sys.executable, "-m", "benchmarks.compile_time", "--only", target]
        command += ["--layers", str(layers), "--tokens", str(tokens)]
        environment = {**os.environ, **{name: os.path.join(caches, name.lower()) for name in CACHES}}
        done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        raise RuntimeError(f"compiling for the {target} failed:\n{done.stderr[-2000:]}")
    measured: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return measured


def main(argv: list[str] | None = None) -> int:
    """Print both times and their ratio; 0 if the device is within the limit."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--layers", type=int, default=12)
    parser.add_argument("--tokens", type=int, default=128)
    parser.add_argument("--limit", type=float, default=0.5, help="largest accepted ratio of device to CPU time")
    parser.add_argument("--only", choices=("device", "CPU"), help="measure one in this process, printed as JSON")
    options = parser.parse_args(argv)
    if options.only:
        warnings.simplefilter("ignore")
        print(json.dumps(compile_here(options.only, options.layers, options.tokens)))
        return 0
    device, cpu = (compile_apart(target, options.layers, options.tokens) for target in ("device", "CPU"))
    ratio = device["seconds"] / cpu["seconds"]
    verdict = "within" if ratio <= options.limit else "ABOVE"
    print(f"Compiling BERT-base, {options.layers} layers, 1 x {options.tokens} tokens, empty caches")
    print(f"  torch.compile, CPU  {cpu['seconds']:9.1f} s")
    print(
        f"  device              {device['seconds']:9.1f} s    {ratio:.2f} x ({verdict} the limit of "
        f"{options.limit:g} x), {device['programs']:.0f} programs"
    )
    return 0 if ratio <= options.limit else 1


if __name__ == "__main__":
    sys.exit(main())
