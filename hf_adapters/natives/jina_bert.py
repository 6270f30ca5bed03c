"""JinaBERT (jina-embeddings-v2): BERT with ALiBi instead of positions and a gated feed-forward.

Two layouts are published, and the keys of the weights tell them apart. Parameters have the published names.
"""

from __future__ import annotations

import math
from typing import Any, ClassVar

import torch
from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.activations import ACT2FN
from transformers.configuration_utils import PreTrainedConfig
from transformers.modeling_layers import GradientCheckpointingLayer
from transformers.modeling_outputs import BaseModelOutputWithPooling
from transformers.modeling_utils import PreTrainedModel
from transformers.utils.generic import can_return_tuple
from transformers.utils.output_capturing import capture_outputs

from hf_adapters.natives._attention import attention_function, check_one_input, padding_mask

FEED_FORWARDS = ("geglu", "reglu", "original")
LAYOUTS = ("gate_first", "gate_last")


@strict
class JinaBertConfig(PreTrainedConfig):  # type: ignore[misc]
    """Settings of :class:`JinaBertModel`; the defaults are those of jina-embeddings-v2-base-en.

    Attributes:
        feed_forward_type: ``"geglu"``, ``"reglu"`` (gated, the gate through gelu or relu) or ``"original"`` (BERT's).
        layout: ``"gate_first"``: the gate is the first half of the fused projection, and the feed-forward holds the
            norm; ``"gate_last"``: the second half, and attention is followed by a second residual and norm (the code
            model).
        qk_norm: LayerNorm over the whole width of queries and keys, before they are split into heads.
    """

    model_type = "jina_bert"

    vocab_size: int = 30528
    hidden_size: int = 768
    num_hidden_layers: int = 12
    num_attention_heads: int = 12
    intermediate_size: int = 3072
    hidden_act: str = "gelu"
    feed_forward_type: str = "geglu"
    layout: str = "gate_first"
    qk_norm: bool = False
    hidden_dropout_prob: float | int = 0.1
    attention_probs_dropout_prob: float | int = 0.0
    max_position_embeddings: int = 8192
    type_vocab_size: int = 2
    initializer_range: float = 0.02
    layer_norm_eps: float = 1e-12
    pad_token_id: int | None = 0
    bos_token_id: int | None = None
    eos_token_id: int | None = None

    def __post_init__(self, **kwargs: Any) -> None:
        super().__post_init__(**kwargs)
        if self.feed_forward_type not in FEED_FORWARDS:
            raise ValueError(f"feed_forward_type is {self.feed_forward_type!r}, not one of {', '.join(FEED_FORWARDS)}")
        if self.layout not in LAYOUTS:
            raise ValueError(f"layout is {self.layout!r}, not one of {', '.join(LAYOUTS)}")
        if self.layout == "gate_last" and self.feed_forward_type == "original":
            raise ValueError("the layout gate_last has no feed-forward of type 'original'")


def alibi_slopes(heads: int) -> list[float]:
    """Slope of each head.

    For a power of two they are ``2 ** (-8 (h + 1) / heads)``. Other numbers take those of the next smaller power, then
    every second one of the next larger power.
    """
    power = 2 ** math.floor(math.log2(heads))
    slopes = [2.0 ** (-8.0 * (head + 1) / power) for head in range(power)]
    return slopes + [2.0 ** (-4.0 * (2 * index + 1) / power) for index in range(heads - power)]


def alibi_bias(heads: int, tokens: int, like: Tensor) -> Tensor:
    """``-slope * |i - j|`` as ``[1, heads, tokens, tokens]``, in the dtype and on the device of ``like``.

    Made on the host, where integers can be compared and counted (D5.2).
    """
    steps = torch.arange(tokens, dtype=torch.float32)
    distance = (steps[None, :] - steps[:, None]).abs()
    slopes = torch.tensor(alibi_slopes(heads), dtype=torch.float32)
    return (-slopes[:, None, None] * distance)[None].to(like.dtype).to(like.device)


class JinaBertEmbeddings(nn.Module):
    """Words and types, normalised; positions come in as distances in attention."""

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__()
        self.word_embeddings = nn.Embedding(config.vocab_size, config.hidden_size, padding_idx=config.pad_token_id)
        self.token_type_embeddings = nn.Embedding(config.type_vocab_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(
        self, input_ids: Tensor | None, token_type_ids: Tensor | None = None, inputs_embeds: Tensor | None = None
    ) -> Tensor:
        """Ids ``[batch, tokens]`` or embeddings ``[batch, tokens, width]`` -> ``[batch, tokens, width]``."""
        words = self.word_embeddings(input_ids) if inputs_embeds is None else inputs_embeds
        if token_type_ids is None:
            token_type_ids = torch.zeros(words.shape[:-1], dtype=torch.long, device=words.device)
        embedded: Tensor = self.dropout(self.LayerNorm(words + self.token_type_embeddings(token_type_ids)))
        return embedded


class JinaBertSelfAttention(nn.Module):
    """Attention over all tokens with a bias by distance."""

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__()
        self.config = config
        self.attention_head_size = config.hidden_size // config.num_attention_heads
        self.scaling = self.attention_head_size**-0.5
        self.dropout_p = config.attention_probs_dropout_prob
        self.is_causal = False
        self.query = nn.Linear(config.hidden_size, config.hidden_size)
        self.key = nn.Linear(config.hidden_size, config.hidden_size)
        self.value = nn.Linear(config.hidden_size, config.hidden_size)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None, position_bias: Tensor, **kwargs: Any
    ) -> tuple[Tensor, Tensor | None]:
        """``[batch, tokens, width]`` -> the same, and the weights where the implementation has them."""
        shape = (*hidden_states.shape[:-1], -1, self.attention_head_size)
        query, key = self.queries_and_keys(hidden_states)
        output, weights = attention_function(self)(
            self,
            query.view(shape).transpose(1, 2),
            key.view(shape).transpose(1, 2),
            self.value(hidden_states).view(shape).transpose(1, 2),
            attention_mask,
            dropout=self.dropout_p if self.training else 0.0,
            scaling=self.scaling,
            position_bias=position_bias,
            **kwargs,
        )
        return output.reshape(*hidden_states.shape[:-1], -1), weights

    def queries_and_keys(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """Both as ``[batch, tokens, width]``, not split yet."""
        return self.query(hidden_states), self.key(hidden_states)


class JinaBertNormedSelfAttention(JinaBertSelfAttention):
    """The same with a norm over the whole width of queries and keys."""

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__(config)
        self.layer_norm_q = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.layer_norm_k = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)

    def queries_and_keys(self, hidden_states: Tensor) -> tuple[Tensor, Tensor]:
        """Both as ``[batch, tokens, width]``, normalised."""
        query, key = super().queries_and_keys(hidden_states)
        return self.layer_norm_q(query), self.layer_norm_k(key)


class JinaBertSelfOutput(nn.Module):
    """Projection, residual and norm after attention."""

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor, residual: Tensor) -> Tensor:
        """Two of ``[batch, tokens, width]`` -> one."""
        mixed: Tensor = self.LayerNorm(residual + self.dropout(self.dense(hidden_states)))
        return mixed


class JinaBertAttention(nn.Module):
    """Attention with what follows it."""

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__()
        self.self = (JinaBertNormedSelfAttention if config.qk_norm else JinaBertSelfAttention)(config)
        self.output = JinaBertSelfOutput(config)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None, position_bias: Tensor, **kwargs: Any
    ) -> Tensor:
        """``[batch, tokens, width]`` -> the same."""
        context, _ = self.self(hidden_states, attention_mask, position_bias, **kwargs)
        output: Tensor = self.output(context, hidden_states)
        return output


class JinaBertGatedMLP(nn.Module):
    """Feed-forward whose first half is the gate, with residual and norm."""

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__()
        self.gated_layers = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.act = gate_activation(config)
        self.wo = nn.Linear(config.intermediate_size, config.hidden_size)
        self.layernorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """``[batch, tokens, width]`` -> the same, normalised."""
        gate, up = self.gated_layers(hidden_states).chunk(2, dim=-1)
        output: Tensor = self.layernorm(hidden_states + self.wo(self.dropout(self.act(gate) * up)))
        return output


class JinaBertUpGatedMLP(nn.Module):
    """Feed-forward whose second half is the gate; residual and norm are the layer's."""

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__()
        self.up_gated_layer = nn.Linear(config.hidden_size, 2 * config.intermediate_size, bias=False)
        self.act = gate_activation(config)
        self.down_layer = nn.Linear(config.intermediate_size, config.hidden_size)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor) -> Tensor:
        """``[batch, tokens, width]`` -> the same."""
        up, gate = self.up_gated_layer(hidden_states).chunk(2, dim=-1)
        output: Tensor = self.down_layer(self.dropout(up * self.act(gate)))
        return output


class JinaBertIntermediate(nn.Module):
    """First half of BERT's feed-forward, for the type ``"original"``."""

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.intermediate_size)
        self.act = ACT2FN[config.hidden_act]

    def forward(self, hidden_states: Tensor) -> Tensor:
        """``[batch, tokens, width]`` -> ``[batch, tokens, intermediate]``."""
        output: Tensor = self.act(self.dense(hidden_states))
        return output


class JinaBertOutput(nn.Module):
    """Second half of BERT's feed-forward, with residual and norm."""

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.intermediate_size, config.hidden_size)
        self.LayerNorm = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
        self.dropout = nn.Dropout(config.hidden_dropout_prob)

    def forward(self, hidden_states: Tensor, residual: Tensor) -> Tensor:
        """``[batch, tokens, intermediate]`` and the residual -> ``[batch, tokens, width]``."""
        output: Tensor = self.LayerNorm(residual + self.dropout(self.dense(hidden_states)))
        return output


class JinaBertLayer(GradientCheckpointingLayer):  # type: ignore[misc]
    """One layer of either layout."""

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__()
        self.kind = "original" if config.feed_forward_type == "original" else config.layout
        self.attention = JinaBertAttention(config)
        if self.kind == "original":
            self.intermediate = JinaBertIntermediate(config)
            self.output = JinaBertOutput(config)
        elif self.kind == "gate_first":
            self.mlp: nn.Module = JinaBertGatedMLP(config)
        else:
            self.layer_norm_1 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
            self.layer_norm_2 = nn.LayerNorm(config.hidden_size, eps=config.layer_norm_eps)
            self.mlp = JinaBertUpGatedMLP(config)

    def forward(
        self, hidden_states: Tensor, attention_mask: Tensor | None, position_bias: Tensor, **kwargs: Any
    ) -> Tensor:
        """``[batch, tokens, width]`` -> the same."""
        attended = self.attention(hidden_states, attention_mask, position_bias, **kwargs)
        output: Tensor
        if self.kind == "original":
            output = self.output(self.intermediate(attended), attended)
        elif self.kind == "gate_first":
            output = self.mlp(attended)
        else:
            # The attention block ends with a residual and a norm of its own; the code model adds another of each.
            attended = self.layer_norm_1(hidden_states + attended)
            output = self.layer_norm_2(attended + self.mlp(attended))
        return output


class JinaBertEncoder(nn.Module):
    """The stack of layers, under the published name."""

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__()
        self.layer = nn.ModuleList(JinaBertLayer(config) for _ in range(config.num_hidden_layers))


class JinaBertPooler(nn.Module):
    """The tanh pooler of the first token, which the embedding models have and do not use."""

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__()
        self.dense = nn.Linear(config.hidden_size, config.hidden_size)
        self.activation = nn.Tanh()

    def forward(self, hidden_states: Tensor) -> Tensor:
        """``[batch, tokens, width]`` -> ``[batch, width]``."""
        pooled: Tensor = self.activation(self.dense(hidden_states[:, 0]))
        return pooled


class JinaBertModel(PreTrainedModel):  # type: ignore[misc]
    """The encoder of jina-embeddings-v2; embeddings are the masked mean of ``last_hidden_state``."""

    config: JinaBertConfig
    config_class = JinaBertConfig
    base_model_prefix = "bert"
    _supports_sdpa = True
    _supports_attention_backend = True
    _can_record_outputs: ClassVar[dict[str, type]] = {
        "hidden_states": JinaBertLayer,
        "attentions": JinaBertSelfAttention,
    }

    def __init__(self, config: JinaBertConfig) -> None:
        super().__init__(config)
        self.embeddings = JinaBertEmbeddings(config)
        self.encoder = JinaBertEncoder(config)
        self.pooler = JinaBertPooler(config)
        self.post_init()

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
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPooling:
        """Ids ``[batch, tokens]`` -> ``last_hidden_state`` ``[batch, tokens, width]``, ``pooler_output``.

        Raises:
            ValueError: neither or both of ``input_ids`` and ``inputs_embeds`` are given.
        """
        check_one_input(input_ids, inputs_embeds)
        states = self.embeddings(input_ids, token_type_ids, inputs_embeds)
        mask = padding_mask(self, states, attention_mask)
        bias = alibi_bias(self.config.num_attention_heads, states.shape[1], states)
        for layer in self.encoder.layer:
            states = layer(states, mask, bias, **kwargs)
        return BaseModelOutputWithPooling(last_hidden_state=states, pooler_output=self.pooler(states))


def gate_activation(config: JinaBertConfig) -> nn.Module:
    """The activation of the gate: relu for ``"reglu"``, else that of the config."""
    made: nn.Module = nn.ReLU() if config.feed_forward_type == "reglu" else ACT2FN[config.hidden_act]
    return made
