"""Qwen3 with a projection of every token behind it, which commutes with the mean over tokens (voyage-4-nano).

The stock decoder is a part of it and not its base class, so that adapters find the forward that they know. Parameters
have the published names.
"""

from __future__ import annotations

from typing import Any

from huggingface_hub.dataclasses import strict
from torch import Tensor, nn
from transformers.modeling_outputs import BaseModelOutputWithPast
from transformers.models.qwen3.configuration_qwen3 import Qwen3Config
from transformers.models.qwen3.modeling_qwen3 import Qwen3Model, Qwen3PreTrainedModel


@strict
class ProjectedQwen3Config(Qwen3Config):  # type: ignore[misc]
    """Settings of :class:`ProjectedQwen3Model`.

    Attributes:
        projection_size: width of the embeddings.
        is_causal: False shows every token to every token.
    """

    model_type = "projected_qwen3"

    projection_size: int = 2048
    is_causal: bool = False


class ProjectedQwen3Model(Qwen3PreTrainedModel):  # type: ignore[misc]
    """Embeddings are the masked mean of ``last_hidden_state``, ``[batch, tokens, projection]``."""

    config: ProjectedQwen3Config
    config_class = ProjectedQwen3Config
    base_model_prefix = "model"

    def __init__(self, config: ProjectedQwen3Config) -> None:
        super().__init__(config)
        self.model = Qwen3Model(config)
        self.linear = nn.Linear(config.hidden_size, config.projection_size, bias=False)
        self.post_init()

    def forward(
        self,
        input_ids: Tensor | None = None,
        attention_mask: Tensor | None = None,
        position_ids: Tensor | None = None,
        inputs_embeds: Tensor | None = None,
        **kwargs: Any,
    ) -> BaseModelOutputWithPast:
        """Ids ``[batch, tokens]`` -> ``last_hidden_state`` ``[batch, tokens, projection]``."""
        output = self.model(
            input_ids=input_ids,
            attention_mask=attention_mask,
            position_ids=position_ids,
            inputs_embeds=inputs_embeds,
            **{**kwargs, "use_cache": False},
        )
        return BaseModelOutputWithPast(
            last_hidden_state=self.linear(output.last_hidden_state),
            hidden_states=output.hidden_states,
            attentions=output.attentions,
        )
