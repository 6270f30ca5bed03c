"""What can go wrong between a model's name and a built model, each with its own type and code."""

from __future__ import annotations

from hf_adapters.errors import HfAdaptersError


class CorpusError(HfAdaptersError):
    """A model, a config or a table cannot be used."""

    code = "E_CORPUS"


class Unbuildable(CorpusError):
    """A config was read, but no model can be built from it with stock transformers."""

    code = "E_UNBUILDABLE"


class NoTextInputs(Unbuildable):
    """The architecture has no text tower, so there is nothing to embed text with."""

    code = "E_NO_TEXT_INPUTS"


class ModelNotFound(CorpusError, LookupError):
    """No profile, folder, cached or published model goes by this name."""

    code = "E_MODEL_NOT_FOUND"


class ConfigInvalid(CorpusError, ValueError):
    """config.json is absent, truncated, not a JSON object, or of a model type that transformers does not know."""

    code = "E_CONFIG_INVALID"


class NetworkUnavailable(CorpusError, ConnectionError):
    """The Hub was needed and did not answer."""

    code = "E_NETWORK"


class HubRefused(CorpusError):
    """The Hub answered, but with an error that retrying did not cure."""

    code = "E_HUB"


class RemoteCodeRequired(CorpusError):
    """The model can only be loaded by running code from its repository."""

    code = "E_REMOTE_CODE"


class GatedModel(CorpusError, PermissionError):
    """The Hub gives the files only to people who asked its owner for access."""

    code = "E_GATED"


class TableInvalid(CorpusError, ValueError):
    """A table of models has not the columns or values that are needed."""

    code = "E_TABLE"


class WeightsInvalid(CorpusError, ValueError):
    """The weights of a folder are damaged, or belong to another architecture than its config says."""

    code = "E_WEIGHTS_INVALID"
