"""nomic-embed-text-v2-moe: NomicBERT with biases, whose every second layer mixes experts.

The device has no data-dependent gathers, so every expert sees every token and those that the router did not choose
count with a weight of zero. Sums over chosen experts only are the same sums.
"""

from __future__ import annotations

from typing import Any, ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers import initialization as init
from transformers.activations import ACT2FN
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutput
from transformers.modeling_utils import PreTrainedModel
from transformers.models.nomic_bert.modeling_nomic_bert import NomicBertRotaryEmbedding, apply_rotary_pos_emb
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from hf_adapters.natives._attention import attention_function, check_one_input, padding_mask

_STICK = 64
"""Elements of a 16-bit stick (D2.1): a matmul contracts over whole sticks."""


@strict
class NomicBertMoeConfig(PreTrainedConfig):  # type: ignore[misc]
    """Settings of :class:`NomicBertMoeModel`; the defaults are those of nomic-embed-text-v2-moe.

    Attributes:
        moe_every_n_layers: the last of every so many layers has experts.
        moe_top_k: experts that count for a token; their probabilities are not normalised again.
    """

    model_type = "nomic_bert_moe"

    vocab_size: int = 250048
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    num_experts: int = 8
    moe_top_k: int = 2
    moe_every_n_layers: int = 2
    hidden_dropout_prob: float | int = 0.0
    attention_probs_dropout_prob: float | int = 0.0
    max_position_embeddings: int = 2048
    type_vocab_size: int = 1
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-5
    pad_token_id: int | None = 1
    bos_token_id: int | None = 0
    eos_token_id: int | None = 2
    default_theta = 10_000.0
    rope_parameters: dict[str, Any] | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if not 0 < self.moe_top_k <= self.num_experts:
            raise ValueError(f"moe_top_k is {self.moe_top_k}, of {self.num_experts} experts")

    def has_experts(self, layer: int) -> bool:
        """Whether the layer of that index (from 0) mixes experts."""
        return layer % self.moe_every_n_layers == self.moe_every_n_layers - 1


def top_gates(probabilities: Tensor, k: int) -> Tensor:
    """Keep the ``k`` largest of the last axis and put zero for the others; not normalised again.

    Exactly equal probabilities at the limit are all kept. Written with maxima and comparisons: an index from ``topk``
    could only be used by a gather.
    """
    rest, limit = probabilities, probabilities.amax(dim=-1, keepdim=True)
    for _ in range(k - 1):
        rest = torch.where(rest < limit, rest, torch.zeros_like(rest))
        limit = rest.amax(dim=-1, keepdim=True)
    return torch.where(probabilities < limit, torch.zeros_like(probabilities), probabilities)


class NomicBertMoeEmbeddings(nn.Module):
    """Words and types; positions come in as rotations."""

    def __init__(self, config: NomicBertMoeConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)

    def forward(self, input_ids: Tensor | None, token_type_ids: Tensor | None, inputs_embeds: Tensor | None) -> Tensor:
        """Ids ``[batch, tokens]`` or embeddings ``[batch, tokens, width]`` -> ``[batch, tokens, width]``."""
        words = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if token_type_ids is None:
            token_type_ids = torch.zeros(words.shape[:-1], dtype=torch.long, device=words.device)
        embedded: Tensor = words + self.token_type_embeddings(token_type_ids)
        return embedded


class NomicBertMoeAttention(nn.Module):
    """Rotary attention over all tokens."""

    def __init__(self, config: NomicBertMoeConfig) -> None:
        super().__init__()
        self.config = config
        self.head_dim = config.hidden_size // config.num_attention_heads
        self.scaling = self.head_dim**-0.5
        self.dropout_p = config.attention_probs_dropout_prob
        self.is_causal = False
        self.q_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.k_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.v_proj = nn.Linear(config.hidden_size, config.hidden_size)
        self.o_proj = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> tuple[Tensor, Tensor | None]:
        """``[batch, tokens, width]`` -> the same, and the weights where the implementation has them."""
        assert position_embeddings is not None
        shape = (*hidden_states.shape[:-1], -1, self.head_dim)
        query = self.q_proj(hidden_states).view(shape).transpose(1, 2)
        key = self.k_proj(hidden_states).view(shape).transpose(1, 2)
        value = self.v_proj(hidden_states).view(shape).transpose(1, 2)
        cos, sin = position_embeddings
        query, key = apply_rotary_pos_emb(query, key, cos, sin)
        output, weights = attention_function(self)(
            self,
            query,
            key,
            value,
            attention_mask,
            dropout=self.dropout_p if self.training else 0.0,
            scaling=self.scaling,
            **kwargs,
        )
        return self.o_proj(output.reshape(*hidden_states.shape[:-1], -1)), weights


class NomicBertMoeMLP(nn.Module):
    """Feed-forward of a dense layer."""

    def __init__(self, config: NomicBertMoeConfig) -> None:
        super().__init__()
        self.fc1 = nn.Linear(config.hidden_size, config.intermediate_size)
        self.fc2 = nn.Linear(config.intermediate_size, config.hidden_size)
        self.act = ACT2FN[config.hidden_act]

    def forward(self, hidden_states: Tensor) -> Tensor:
        """``[batch, tokens, width]`` -> the same."""
        output: Tensor = self.fc2(self.act(self.fc1(hidden_states)))
        return output


class NomicBertMoeRouter(nn.Module):
    """Probability of each expert, zero for all but the largest."""

    def __init__(self, config: NomicBertMoeConfig) -> None:
        super().__init__()
        self.top_k = config.moe_top_k
        self.layer = nn.Linear(config.hidden_size, config.num_experts, bias=False)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """``[batch, tokens, width]`` -> ``[batch, tokens, experts]``."""
        return top_gates(torch.softmax(self.layer(hidden_states), dim=-1), self.top_k)


class NomicBertMoeExperts(nn.Module):
    """All experts as one wide feed-forward; the gates scale its inner features, each expert's by its own."""

    def __init__(self, config: NomicBertMoeConfig) -> None:
        super().__init__()
        self.experts, self.features = config.num_experts, config.intermediate_size
        self.w1 = nn.Parameter(torch.empty(self.experts * self.features, config.hidden_size))
        self.w2 = nn.Parameter(torch.empty(self.experts * self.features, config.hidden_size))
        self.act = ACT2FN[config.hidden_act]
        self.bias = nn.Parameter(torch.zeros(config.hidden_size))
        self.spread = nn.Buffer(spread_matrix(self.experts, self.features), persistent=False)

    def forward(self, hidden_states: Tensor, gates: Tensor) -> Tensor:
        """States ``[batch, tokens, width]``, gates ``[batch, tokens, experts]`` -> ``[batch, tokens, width]``."""
        inner = self.act(nn.functional.linear(hidden_states, self.w1))
        missing = self.spread.shape[0] - self.experts
        gates = torch.cat([gates, gates.new_zeros((*gates.shape[:-1], missing))], dim=-1)
        return torch.matmul(inner * torch.matmul(gates, self.spread.to(gates.dtype)), self.w2) + self.bias


def spread_matrix(experts: int, features: int) -> Tensor:
    """Zeros and ones ``[experts rounded up to a stick, experts * features]`` that repeat a gate for each feature."""
    rows = -(-experts // _STICK) * _STICK
    return torch.eye(rows, experts).repeat_interleave(features, dim=1)


class NomicBertMoeMixture(nn.Module):
    """Feed-forward of a layer with experts."""

    def __init__(self, config: NomicBertMoeConfig) -> None:
        super().__init__()
        self.router = NomicBertMoeRouter(config)
        self.experts = NomicBertMoeExperts(config)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """``[batch, tokens, width]`` -> the same."""
        output: Tensor = self.experts(hidden_states, self.router(hidden_states))
        return output


class NomicBertMoeLayer(GradientCheckpointingLayer):  # type: ignore[misc]
    """Attention and feed-forward, each followed by residual and norm."""

    def __init__(self, config: NomicBertMoeConfig, index: int) -> None:
        super().__init__()
        self.self_attn = NomicBertMoeAttention(config)
        self.mlp = NomicBertMoeMixture(config) if config.has_experts(index) else NomicBertMoeMLP(config)
        self.post_attention_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.post_mlp_layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self,
        hidden_states: Tensor,
        attention_mask: Tensor | None = None,
        position_embeddings: tuple[Tensor, Tensor] | None = None,
        **kwargs: Any,
    ) -> Tensor:
        """``[batch, tokens, width]`` -> the same."""
        attended, _ = self.self_attn(hidden_states, attention_mask, position_embeddings=position_embeddings, **kwargs)
        states = self.post_attention_layernorm(hidden_states + self.dropout(attended))
        output: Tensor = self.post_mlp_layernorm(states + self.dropout(self.mlp(states)))
        return output


class NomicBertMoeModel(PreTrainedModel):  # type: ignore[misc]
    """The encoder of nomic-embed-text-v2-moe; embeddings are the masked mean of ``last_hidden_state``."""

    config: NomicBertMoeConfig
    config_class = NomicBertMoeConfig
    base_model_prefix = "model"
    _supports_sdpa = True
    _supports_attention_backend = True
    _can_record_outputs: ClassVar[dict[str, type]] = {
        "hidden_states": NomicBertMoeLayer,
        "attentions": NomicBertMoeAttention,
    }

    def __init__(self, config: NomicBertMoeConfig) -> None:
        super().__init__(config)
        self.embeddings = NomicBertMoeEmbeddings(config)
        self.emb_ln = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.rotary_emb = NomicBertRotaryEmbedding(config)
        self.layers = nn.ModuleList(NomicBertMoeLayer(config, index) for index in range(config.num_hidden_layers))
        self.dropout = nn.Dropout(config.hidden_dropout_prob)
        self.post_init()

    def _init_weights(self, module: nn.Module) -> None:
        super()._init_weights(module)
        if isinstance(module, NomicBertMoeExperts):
            init.normal_(module.w1, mean=0.0, std=self.config.initializer_range)
            init.normal_(module.w2, mean=0.0, std=self.config.initializer_range)
            init.zeros_(module.bias)
            init.copy_(module.spread, spread_matrix(module.experts, module.features))

    def get_input_embeddings(self) -> nn.Module:
        """The table of words."""
        return self.embeddings.word_embeddings

    def set_input_embeddings(self, value: nn.Module) -> None:
        """Replace the table of words."""
        self.embeddings.word_embeddings = value  # type: ignore[assignment]

    @can_return_tuple  # type: ignore[untyped-decorator]
    @capture_outputs  # type: ignore[untyped-decorator]
    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        token_type_ids: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutput:
        """Ids ``[batch, tokens]`` -> ``last_hidden_state`` ``[batch, tokens, width]``.

        Raises:
            ValueError: neither or both of ``input_ids`` and ``inputs_embeds`` are given.
        """
        check_one_input(input_ids, inputs_embeds)
        states = self.dropout(self.emb_ln(self.embeddings(input_ids, token_type_ids, inputs_embeds)))
        if position_ids is None:
            position_ids = torch.arange(states.shape[1], device=states.device)[None]
        mask = padding_mask(self, states, attention_mask)
        tables = self.rotary_emb(states, position_ids)
        for layer in self.layers:
            states = layer(states, mask, position_embeddings=tables, **kwargs)
        return BaseModelOutput(last_hidden_state=states)
