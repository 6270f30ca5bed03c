"""The syntax-tree policy: what an adapter needs passes, what reaches further does not."""

from __future__ import annotations

import pytest

from hf_adapters.agents.screening.policy import screen
from tests.agents import drafts
from tests.agents.drafts import Hostile


@pytest.mark.parametrize("hostile", drafts.REFUSED_BY_THE_SCREEN, ids=lambda hostile: hostile.name)
def test_a_hostile_draft_is_refused(hostile: Hostile) -> None:
    assert hostile.source != drafts.CUBE
    screened = screen(hostile.source)
    assert not screened.ok
    assert all(violation.startswith("line ") for violation in screened.violations)


def test_an_honest_draft_passes_and_is_read() -> None:
    screened = screen(drafts.CUBE)
    assert screened.violations == ()
    assert screened.adapter is not None
    assert (screened.adapter.name, screened.adapter.rules) == ("gelu_cube", ("pow-scalar-exponent",))
    assert (screened.adapter.equivalence, screened.adapter.releases) == ("reassociated", ("2026.07",))


ALLOWED = {
    "an example from transformers": "def f():\n    from transformers.models.llama.modeling_llama import LlamaRMSNorm\n"
    "    return LlamaRMSNorm(64)\n",
    "a list of its own": "def f(xs):\n    out = []\n    for x in xs:\n        out.append(x)\n    return out\n",
    "a dict of its own": "def f(xs):\n    out = {}\n    for x in xs:\n        out[x] = 1\n    return out\n",
    "a private method": "class A(nn.Module):\n    def _half(self, x):\n        return x * 0.5\n"
    "    def forward(self, x):\n        return self._half(x)\n",
    "an example module with weights": "class A(nn.Module):\n    def __init__(self):\n        super().__init__()\n"
    "        self.weight = nn.Parameter(torch.randn(4, generator=torch.Generator().manual_seed(1)))\n",
    "getattr with a literal": "def f(m):\n    return getattr(m, 'variance_epsilon', None)\n",
    "functional": "from torch.nn import functional as F\ndef f(x):\n    return F.silu(x)\n",
    "a function of torch with the name of a container's method": "def f(x):\n    return torch.add(x, x)\n",
    "dtype moves": "def f(x):\n    return x.to(torch.float32).square().to(x.dtype)\n",
    "an error that is handled": "def f(m):\n    try:\n        return m.get_submodule('x')\n"
    "    except AttributeError:\n        return None\n",
    "dropout as stock writes it": "from torch.nn import functional as F\nclass A(nn.Module):\n"
    "    def forward(self, x):\n        return F.dropout(x, p=0.1, training=self.training)\n",
    "f-strings": "def f(x):\n    return f'{x.shape[0]} rows of {x.dtype!s:>10}'\n",
    "an ellipsis index": "def f(x):\n    return x[..., None]\n",
    "derived weights": "def g(weight):\n    return weight * 2\ndef f(patcher, m):\n"
    "    patcher.derive(m, 'doubled', ('weight',), g)\n",
}


@pytest.mark.parametrize("text", ALLOWED.values(), ids=ALLOWED)
def test_what_adapters_need_is_allowed(text: str) -> None:
    assert screen(drafts.CUBE.replace("\n\nclass CubeGelu", f"\n\n{text}\n\nclass CubeGelu", 1)).violations == ()


def test_a_violation_says_where_and_what() -> None:
    lines = screen(drafts.CUBE.replace("import torch\n", "import torch\nimport os\n", 1)).violations
    assert lines == ("line 8: import of os; allowed are functools, math, torch",)


def test_every_chain_on_the_list_exists() -> None:
    import functools
    import math

    import torch

    from hf_adapters.adapters import _probe
    from hf_adapters.agents.screening.allowed import CHAINS

    roots = {"torch": torch, "math": math, "functools": functools}
    for chain in CHAINS:
        root, *rest = chain.split(".")
        found = _probe if root == "hf_adapters" else roots[root]
        for name in rest[2:] if root == "hf_adapters" else rest:
            found = getattr(found, name)
