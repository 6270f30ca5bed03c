"""The sandbox, without the screen in front of it: what hostile code can reach and use up."""

from __future__ import annotations

import socket
import sys
from pathlib import Path

import pytest
import torch

from hf_adapters.agents.sandbox.errors import NoSandbox
from hf_adapters.agents.sandbox.run import Answer, Job, Sandbox, SandboxLimits
from tests.agents import drafts

ROOT = Path(__file__).parents[2]


def confined() -> bool:
    """Whether this machine can make a sandbox."""
    try:
        return Sandbox().check()
    except NoSandbox:
        return False


needs_sandbox = pytest.mark.skipif(not confined(), reason="bubblewrap is missing or cannot make namespaces here")


def run(source: str, **limits: float) -> Answer:
    """Run raw code as a draft would be run."""
    bounds = SandboxLimits(**{"wall_seconds": 60.0, **limits})  # type: ignore[arg-type]
    return Sandbox(limits=bounds).run(Job(subject=None, source=source, name="escapes"))


def interpreter_below_home() -> str:
    """What a listing of the home directory shows when the interpreter itself, which must be visible, lies there."""
    for prefix in (Path(sys.base_prefix), Path(sys.prefix)):
        if prefix.is_relative_to(Path.home()):
            return str([prefix.relative_to(Path.home()).parts[0]])
    return "[]"


def interpreter_below_root() -> str:
    """What a listing of the root directory shows beside the system's folders: where the interpreter lies."""
    folders = {Path(prefix).parts[1] for prefix in (sys.base_prefix, sys.prefix)}
    return str(sorted(folders - set(drafts.SYSTEM_FOLDERS)))


@needs_sandbox
@pytest.mark.slow
def test_nothing_can_be_reached(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OPENAI_API_KEY", "secret")
    with socket.create_server(("127.0.0.1", 0)) as server:
        source = drafts.ESCAPES.replace("PORT", str(server.getsockname()[1])).replace("CHECKOUT", str(ROOT))
        answer = run(source)
    assert answer.kind == "done", answer.reason + answer.log
    assert answer.sandboxed
    seen = dict(line.split(": ", 1) for line in answer.data["adapter"]["rules"])
    assert seen.pop("environment") == "[]"
    assert seen.pop("root directory") == interpreter_below_root()
    assert seen.pop("modules of the judge") == "[]"
    assert seen.pop("other processes") == "[]"
    assert seen.pop("mount") == "-1"
    assert seen.pop("home") in ("[]", "FileNotFoundError", interpreter_below_home())
    assert len(seen) == 13
    errors = {"FileNotFoundError", "PermissionError", "OSError", "gaierror"}
    assert set(seen.values()) <= errors, seen
    assert not (ROOT / "x").exists()


BOMBS = {
    "endless loop": ("while True:\n    pass\n", {"wall_seconds": 3.0}, "timed-out"),
    "memory": ("import torch\nxs = [torch.ones(2**26) for _ in range(1000)]\n", {"memory": 2**31}, "memory"),
    "files": ("open('/tmp/x', 'wb').write(bytes(2**26))\n", {"file_bytes": 2**20}, "error"),
    "crash": ("import ctypes\nctypes.string_at(0)\n", {}, "killed"),
}


@needs_sandbox
@pytest.mark.slow
@pytest.mark.parametrize(("code", "limits", "kind"), BOMBS.values(), ids=BOMBS)
def test_nothing_can_be_used_up(code: str, limits: dict[str, float], kind: str) -> None:
    answer = run(code, **limits)
    assert answer.kind == kind, answer.reason
    assert answer.reason


@needs_sandbox
@pytest.mark.slow
def test_replaced_code_is_noticed() -> None:
    source = (
        "import torch, time\ndef keep(*a): pass\nfrom hf_adapters.protocols import Adapter\n"
        "from hf_adapters.validation import metrics\n"
        "metrics.vector_errors = lambda *a: 0\ntime.perf_counter = lambda: 0\ntorch.Tensor.view = lambda *a: None\n"
        "ADAPTER = Adapter(name='escapes', summary='x', rules=('x',), equivalence='exact', sites=None, apply=keep, "
        "examples=None)\n"
    )
    answer = run(source)
    assert answer.kind == "done", answer.reason
    changed = set(answer.data["changed_code"])
    assert {"hf_adapters.validation.metrics.vector_errors", "time.perf_counter", "Tensor.view"} <= changed


def test_without_bubblewrap_nothing_runs(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    with pytest.raises(NoSandbox, match="--unsafe-no-sandbox"):
        Sandbox().run(Job(subject=None, source="x = 1", name="escapes"))


@pytest.mark.slow
def test_an_unsafe_run_says_so(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PATH", "/nowhere")
    job = Job(subject=None, source=drafts.CUBE, name="gelu_cube", prove=True)
    answer = Sandbox(unsafe=True).run(job)
    assert answer.kind == "done", answer.reason + answer.log
    assert not answer.sandboxed
    assert answer.data["adapter"]["name"] == "gelu_cube"
    assert answer.data["changed_code"] == []
    assert answer.data["proof"][0]["complete"]


def test_only_the_method_of_transformers_itself_may_be_added() -> None:
    from transformers import BertConfig, BertModel, modeling_utils

    from hf_adapters.agents.sandbox import inside

    BertModel(BertConfig(num_hidden_layers=1, hidden_size=64, num_attention_heads=1, intermediate_size=64))
    real = torch.nn.Module.smart_apply.__code__
    forged = (lambda self: None).__code__.replace(co_filename=modeling_utils.__file__, co_name="smart_apply")
    assert inside._changes({}, {"Module.smart_apply": real}) == []
    assert inside._changes({}, {"Module.smart_apply": forged}) == ["Module.smart_apply"]
    assert inside._changes({}, {"Module.__getattribute__": real}) == ["Module.__getattribute__"]
