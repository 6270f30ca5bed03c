"""Every error that hf_adapters raises on purpose.

A failure is told apart by its type and its ``code``, never by its text. User errors also derive from the builtin
exception a caller would expect (``TypeError``, ``ValueError``, ...), so that generic handlers keep working.
"""

from __future__ import annotations


class HfAdaptersError(Exception):
    """Base of all errors raised on purpose by hf_adapters.

    Attributes:
        code: stable and machine readable.
        hint: what to do next, or None.
    """

    code: str = "E_HF_ADAPTERS"

    def __init__(self, *args: object, hint: str | None = None) -> None:
        super().__init__(*args)
        self.hint = hint


class ModelTypeError(HfAdaptersError, TypeError):
    """The object given is not a model that can be patched or compiled."""

    code = "E_MODEL_TYPE"


class NotPatchedError(HfAdaptersError, ValueError):
    """The operation needs a patched or compiled model and this one is neither."""

    code = "E_NOT_PATCHED"


class PatchConflictError(HfAdaptersError, ValueError):
    """The model is patched already, with other options."""

    code = "E_PATCH_CONFLICT"


class AdapterError(HfAdaptersError, RuntimeError):
    """An adapter failed while looking for its sites or while patching one of them; the model was restored."""

    code = "E_ADAPTER"


class UnknownAdapterError(HfAdaptersError, ValueError):
    """A name given in ``only`` is not the name of a catalogued adapter."""

    code = "E_UNKNOWN_ADAPTER"


class UnknownTargetError(HfAdaptersError, ValueError):
    """The target is not one that hf_adapters knows."""

    code = "E_UNKNOWN_TARGET"


class DeviceUnavailableError(HfAdaptersError, RuntimeError):
    """The device that was asked for is not there."""

    code = "E_NO_DEVICE"


class TrainingModeError(HfAdaptersError, RuntimeError):
    """The model is in training mode; patched and compiled models are for inference only."""

    code = "E_TRAINING_MODE"


class InputError(HfAdaptersError, ValueError):
    """An argument of the forward has a shape, a dtype or a value that cannot be run."""

    code = "E_INPUT"


class SequenceTooLongError(InputError, IndexError):
    """The input has more tokens than the model has positions."""

    code = "E_SEQUENCE_TOO_LONG"


class UnsupportedOptionError(HfAdaptersError, NotImplementedError):
    """The stock forward has this option, the compiled one does not."""

    code = "E_UNSUPPORTED_OPTION"


class WeightRangeError(HfAdaptersError, ValueError):
    """A parameter does not fit into the dtype in which it would be moved to the device."""

    code = "E_WEIGHT_RANGE"
