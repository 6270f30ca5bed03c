"""Models that the census counts as needing remote code, and that structures of our own or stock classes stand for.

The census stays as it was made; what is added lies in `data/own.jsonl`, one line for each profile and how sure its
models are. `python -m hf_adapters.corpus.own TOP10K.csv` writes that file from a table with model types and counts.
"""

from __future__ import annotations

import argparse
import csv
import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cache
from importlib.resources import files
from pathlib import Path
from typing import Any

#: Says in a ranking that a structure of ours, or a stock class told by us, takes the place of remote code.
BUILDABLE = "own_structure"
_FILE = "own.jsonl"

_JINA_BERT: dict[str, Any] = {
    "model_type": "jina_bert", "vocab_size": 30528, "hidden_size": 768, "num_hidden_layers": 12,
    "num_attention_heads": 12, "intermediate_size": 3072, "max_position_embeddings": 8192, "layer_norm_eps": 1e-12,
    "feed_forward_type": "geglu", "layout": "gate_first", "qk_norm": False, "pad_token_id": 0,
}  # fmt: skip
_QWEN3: dict[str, Any] = {
    "model_type": "qwen3", "vocab_size": 151936, "hidden_size": 1024, "num_hidden_layers": 28,
    "num_attention_heads": 16, "num_key_value_heads": 8, "head_dim": 128, "intermediate_size": 3072,
    "max_position_embeddings": 32768, "hidden_act": "silu", "rms_norm_eps": 1e-6, "attention_bias": False,
    "rope_parameters": {"rope_type": "default", "rope_theta": 1000000.0}, "tie_word_embeddings": True,
    "use_sliding_window": False, "is_causal": False,
}  # fmt: skip
_SMALL = {"hidden_size": 512, "num_hidden_layers": 4, "num_attention_heads": 8, "intermediate_size": 2048}
_LARGE = {"hidden_size": 1024, "num_hidden_layers": 24, "num_attention_heads": 16, "intermediate_size": 4096}
_CODE = {"layout": "gate_last", "qk_norm": True}
_FOUR = {"hidden_size": 2560, "num_hidden_layers": 36, "num_attention_heads": 32, "intermediate_size": 9728}
_MOE: dict[str, Any] = {
    "model_type": "nomic_bert_moe", "vocab_size": 250048, "hidden_size": 768, "num_hidden_layers": 12,
    "num_attention_heads": 12, "intermediate_size": 3072, "num_experts": 8, "moe_top_k": 2, "moe_every_n_layers": 2,
    "max_position_embeddings": 2048, "type_vocab_size": 1, "layer_norm_eps": 1e-5, "hidden_act": "gelu",
    "rope_parameters": {"rope_type": "default", "rope_theta": 10000.0}, "pad_token_id": 1,
}  # fmt: skip
_LLAMA: dict[str, Any] = {
    "model_type": "llama", "vocab_size": 128256, "hidden_size": 4096, "num_hidden_layers": 32,
    "num_attention_heads": 32, "num_key_value_heads": 8, "intermediate_size": 14336, "max_position_embeddings": 131072,
    "hidden_act": "silu", "rms_norm_eps": 1e-5, "rope_parameters": {"rope_type": "default", "rope_theta": 500000.0},
    "tie_word_embeddings": False, "is_causal": False,
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Structure:
    """A profile that the census lacks: its class, config, parameter count and a well-known checkpoint."""

    architecture_class: str
    config: Mapping[str, Any]
    count: int
    checkpoint: str
    confidence: str = "exact"


STRUCTURES: Mapping[str, Structure] = {
    "jina_bert.small/v30528": Structure(
        "JinaBertModel", {**_JINA_BERT, **_SMALL}, 32_690_688, "jinaai/jina-embeddings-v2-small-en"
    ),
    "jina_bert.base/v30528": Structure("JinaBertModel", _JINA_BERT, 137_368_320, "jinaai/jina-embeddings-v2-base-en"),
    "jina_bert.base/v61056": Structure(
        "JinaBertModel", {**_JINA_BERT, "vocab_size": 61056}, 160_813_824, "jinaai/jina-embeddings-v2-base-de"
    ),
    # The count fits norms of queries and keys, or 48 words more; other ports of the model have the norms.
    "jina_bert.base-qk/v61056": Structure(
        "JinaBertModel", {**_JINA_BERT, "vocab_size": 61056, "qk_norm": True}, 160_850_688,
        "jinaai/jina-embeddings-v2-base-es", "inferred",
    ),
    "jina_bert.code/v61056": Structure(
        "JinaBertModel", {**_JINA_BERT, "vocab_size": 61056, **_CODE}, 160_869_120,
        "jinaai/jina-embeddings-v2-base-code",
    ),
    "jina_bert.large-original/v31102": Structure(
        "JinaBertModel", {**_JINA_BERT, **_LARGE, "vocab_size": 31102, "feed_forward_type": "original"}, 335_211_520,
        "aari1995/German_Semantic_V3",
    ),
    "nomic_moe.v2/v250048": Structure("NomicBertMoeModel", _MOE, 475_292_928, "nomic-ai/nomic-embed-text-v2-moe"),
    "qwen3.bidirectional-0.6b/v151936": Structure(
        "Qwen3Model", _QWEN3, 596_049_920, "perplexity-ai/pplx-embed-v1-0.6b", "inferred"
    ),
    "qwen3.bidirectional-0.6b/v32768": Structure(
        "Qwen3Model", {**_QWEN3, "vocab_size": 32768}, 474_021_888, "alphaedge-ai/pplx-embed-v1-eng-32768"
    ),
    "qwen3.bidirectional-4b/v151936": Structure(
        "Qwen3Model", {**_QWEN3, **_FOUR}, 4_022_468_096, "perplexity-ai/pplx-embed-v1-4b", "inferred"
    ),
    "llama.bidirectional-8b/v128256": Structure("LlamaModel", _LLAMA, 7_504_924_672, "nvidia/llama-embed-nemotron-8b"),
}  # fmt: skip


@dataclass(frozen=True, slots=True)
class Variant:
    """A profile of the census with the mask, and what stands behind the layers, of the repository's own code."""

    base: str
    checkpoint: str
    changes: Mapping[str, Any] = field(default_factory=lambda: {"is_causal": False})
    architecture_class: str | None = None
    added: int = 0
    """Parameters on top of those of the base."""


VARIANTS: Mapping[str, Variant] = {
    "qwen2.bidirectional-1.5b/v151646": Variant("qwen2.1.5b/v151646", "Alibaba-NLP/gte-Qwen2-1.5B-instruct"),
    "qwen2.bidirectional-7b/v151646": Variant("qwen2.7b/v151646", "Alibaba-NLP/gte-Qwen2-7B-instruct"),
    "qwen2.bidirectional-1.5-7b/v151936": Variant("qwen2.1.5-7b/v151936", "Alibaba-NLP/gte-Qwen1.5-7B-instruct"),
    "qwen3.voyage4-nano-projected/v151936": Variant(
        "qwen3.voyage4-nano/v151936", "voyageai/voyage-4-nano",
        {"is_causal": False, "model_type": "projected_qwen3", "projection_size": 2048}, "ProjectedQwen3Model",
        2048 * 1024,
    ),
}  # fmt: skip
_VARIANT_OF: Mapping[str, str] = {variant.base: profile_id for profile_id, variant in VARIANTS.items()}
#: Names of models whose code is known to mask padding only, with those whose names say that they derive from them.
_PADDING_ONLY = ("gte-qwen2", "stella-en-1.5b", "voyage-4-nano")
#: The same, by what is told of their training only.
_LIKELY_PADDING_ONLY = ("gte-qwen-2", "gte-qwen1.5", "stella", "qodo-embed-1", "inf-retriever-v1")

_JINA_V3 = "jina.v3/v250002"
#: (architecture, parameters in the table) -> profile.
_EXACT: Mapping[tuple[str, int], str] = {
    ("XLMRobertaModel", 572_310_396): _JINA_V3,
    ("XLMRobertaLoRA", 572_310_396): _JINA_V3,
    ("NomicBertModel", 475_292_928): "nomic_moe.v2/v250048",
    ("JinaEmbeddingsV5Model", 596_049_920): "qwen3.0.6b/v151936",
    ("JinaEmbeddingsV5Model", 211_766_016): "eurobert.210m/v128256",
    ("PPLXQwen3Model", 474_021_888): "qwen3.bidirectional-0.6b/v32768",
    ("LlamaBidirectionalModel", 7_504_924_672): "llama.bidirectional-8b/v128256",
}
#: The same where the figure is a size read from the name ("06b" became six billion).
_INFERRED: Mapping[tuple[str, int], str] = {
    ("PPLXQwen3Model", 600_000_000): "qwen3.bidirectional-0.6b/v151936",
    ("PPLXQwen3Model", 6_000_000_000): "qwen3.bidirectional-0.6b/v151936",
    ("PPLXQwen3Model", 4_000_000_000): "qwen3.bidirectional-4b/v151936",
    ("LlamaBidirectionalModel", 8_000_000_000): "llama.bidirectional-8b/v128256",
}
_JINA_BERT_CLASSES = ("JinaBertModel", "JinaBertForMaskedLM")


def placed(cells: Mapping[str, str]) -> tuple[str, str] | None:
    """(profile, how sure) of a row of the table whose model is not what its stock class computes; None for all others.

    Args:
        cells: `buildable`, `architecture` and `parameters` of a row, and of those that a stock class fits `profile_id`,
            `match`, `model_id` and `remote_code`; other cells are not read.
    """
    variant = _VARIANT_OF.get(cells.get("profile_id") or "")
    if variant is not None:
        return _with_own_mask(cells, variant)
    if cells.get("buildable") != "remote_only" or not (cells.get("parameters") or "").isdigit():
        return None
    key = cells.get("architecture", ""), int(cells["parameters"])
    if key[0] in _JINA_BERT_CLASSES:
        for profile_id, found in STRUCTURES.items():
            if found.architecture_class == "JinaBertModel" and found.count == key[1]:
                return profile_id, found.confidence
    if key in _EXACT:
        return _EXACT[key], "exact"
    return (_INFERRED[key], "inferred") if key in _INFERRED else None


def _with_own_mask(cells: Mapping[str, str], variant: str) -> tuple[str, str] | None:
    name = (cells.get("model_id") or "").lower().replace("_", "-")
    if (cells.get("remote_code") or "").lower() not in ("true", "1", "yes"):
        return None
    if any(known in name for known in _PADDING_ONLY):
        return variant, cells.get("match") or "inferred"
    return (variant, "inferred") if any(known in name for known in _LIKELY_PADDING_ONLY) else None


def lines(rows: Iterable[Mapping[str, str]]) -> list[dict[str, Any]]:
    """What `data/own.jsonl` holds for a table: for each profile and degree of sureness its ranks and downloads, and
    the profile that those ranks had in the census."""
    found: dict[tuple[str, str], dict[str, Any]] = {}
    for cells in rows:
        place = placed(cells)
        if place is not None:
            line = found.setdefault(
                place,
                {
                    "profile_id": place[0],
                    "match": place[1],
                    "replaces": cells.get("profile_id") or None,
                    "ranks": [],
                    "downloads": 0,
                    "pooling": {},
                },
            )
            line["ranks"].append(int(cells["rank"]))
            line["downloads"] += int(cells["downloads"])
            pooling = cells.get("pooling") or "unknown"
            line["pooling"][pooling] = line["pooling"].get(pooling, 0) + 1
    return [found[key] for key in sorted(found)]


@cache
def bundled() -> tuple[Mapping[str, Any], ...]:
    """The lines of `data/own.jsonl`."""
    text = files("hf_adapters.corpus").joinpath("data", _FILE).read_text(encoding="utf-8")
    return tuple(json.loads(line) for line in text.splitlines())


def main(argv: Sequence[str] | None = None) -> None:
    """Command line of this file."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("table", type=Path)
    parser.add_argument("--out", type=Path, default=Path("corpus/data") / _FILE)
    given = parser.parse_args(argv)
    with given.table.open(encoding="utf-8", newline="") as opened:
        made = lines(csv.DictReader(opened))
    given.out.write_text("".join(json.dumps(line, separators=(",", ":")) + "\n" for line in made), encoding="utf-8")


if __name__ == "__main__":
    main()
