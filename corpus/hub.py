"""Take the ranking and the configs from the Hub, through huggingface_hub; no code of a repository is run.

The endpoint is `HF_ENDPOINT`, as everywhere in huggingface_hub. What was fetched lies in its cache, so an
interrupted pull continues where it stopped.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from functools import partial
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal, Protocol, TypeVar

from tenacity import RetryCallState, Retrying, retry_if_exception, stop_after_attempt

from hf_adapters.corpus.errors import (
    ConfigInvalid,
    CorpusError,
    GatedModel,
    HubRefused,
    ModelNotFound,
    NetworkUnavailable,
    RemoteCodeRequired,
    WeightsInvalid,
)
from hf_adapters.corpus.profiles import Profile, load_profiles
from hf_adapters.corpus.ranking import Ranking, RankingRow
from hf_adapters.corpus.signature import config_hash

if TYPE_CHECKING:
    from huggingface_hub import HfApi
    from huggingface_hub.hf_api import ModelInfo

PIPELINE_TAGS = ("feature-extraction", "sentence-similarity")
SOURCE = "hub"
_EXPANDED: list[Literal["downloads", "gated", "sha"]] = ["downloads", "gated", "sha"]
_CONFIG_FILES = ("config.json", "0_Transformer/config.json")
_WEIGHT_PATTERNS = ("*.safetensors", "*.safetensors.index.json", "config.json")
_ATTEMPTS = 5
_FIRST_WAIT = 1.0
_LONGEST_WAIT = 60.0
_BATCH = 100
_PROBE_SECONDS = 10.0

_T = TypeVar("_T")


class RankingSink(Protocol):
    """What `pull` writes to: the store."""

    def put_ranking(self, ranking: Ranking, profiles: Mapping[str, Profile], *, release: str) -> Any:
        """Insert or update models of a ranking."""


@dataclass(frozen=True, slots=True, kw_only=True)
class PullProgress:
    """How far a pull is; `problem` is why the newest model cannot be built, or None."""

    done: int
    total: int
    model_id: str
    problem: str | None


@dataclass(frozen=True, slots=True, kw_only=True)
class PullSummary:
    """What a pull brought: its ranking, and models counted by how they can be built ("native", "gated", ...)."""

    ranking: Ranking
    profiles: Mapping[str, Profile]
    buildable: Mapping[str, int]


def pull(
    top: int,
    store: RankingSink | None = None,
    *,
    release: str,
    workers: int = 8,
    on_progress: Callable[[PullProgress], None] | None = None,
) -> PullSummary:
    """Fetch the `top` most downloaded embedding models with their configs and write them to a store.

    A model that is gated, broken or gone is recorded with the reason; it never stops the pull. Rows are
    written every hundred models, so an interruption loses little.

    Args:
        top: number of models, at least one.
        store: where to write; None only returns them.
        release: whose rules decide which profiles share a structure.
        workers: configs fetched at the same time.
        on_progress: called after each model, from the calling thread.

    Raises:
        ValueError: `top` is smaller than one.
        NetworkUnavailable: the Hub cannot be reached.
        HubRefused: it refuses the list itself, after retries.
    """
    if top < 1:
        raise ValueError(f"top is {top}: a ranking starts at 1")
    if not hub_reachable():
        raise NetworkUnavailable(
            f"the Hub at {_endpoint()} cannot be reached", hint="check the network, or HF_ENDPOINT if you use a mirror"
        )
    listed = list_models(top)
    today = datetime.now(UTC).date().isoformat()
    whole = Ranking(rows=(), source=SOURCE, date=today)
    profiles: dict[str, Profile] = dict(load_profiles())
    rows: list[RankingRow] = []
    counts: dict[str, int] = {}
    pool = ThreadPoolExecutor(max_workers=workers)
    try:
        for batch in _batches(list(enumerate(listed, start=1)), _BATCH):
            fetched = []
            for (rank, info), found in zip(batch, pool.map(_fetch_config, batch), strict=True):
                row, profile = _describe(rank, info, found)
                fetched.append(row)
                if profile is not None:
                    profiles.setdefault(profile.profile_id, profile)
                counts[row.buildable] = counts.get(row.buildable, 0) + 1
                if on_progress is not None:
                    done = len(rows) + len(fetched)
                    on_progress(
                        PullProgress(done=done, total=len(listed), model_id=row.key, problem=row.no_profile_reason)
                    )
            rows += fetched
            if store is not None:
                store.put_ranking(replace(whole, rows=tuple(fetched)), profiles, release=release)
    finally:
        pool.shutdown(wait=False, cancel_futures=True)
    return PullSummary(ranking=replace(whole, rows=tuple(rows)), profiles=profiles, buildable=counts)


def list_models(top: int) -> list[ModelInfo]:
    """The `top` most downloaded models of all embedding tasks, most downloaded first.

    Raises:
        HubRefused: the Hub refuses the list, after retries.
        NetworkUnavailable: the connection broke down.
    """
    found: dict[str, ModelInfo] = {}
    for tag in PIPELINE_TAGS:
        ask = partial(_api().list_models, pipeline_tag=tag, sort="downloads", limit=top, expand=[*_EXPANDED])
        listing = _typed(f"the list of {tag} models", lambda: list(ask()))  # noqa: B023 (called at once)
        found.update({info.id: info for info in listing})
    return sorted(found.values(), key=lambda info: (-(info.downloads or 0), info.id))[:top]


def download_config(model_id: str, revision: str | None = None) -> Path:
    """Path of a published model's config.json in the local cache, fetched if need be.

    Raises:
        ModelNotFound, ConfigInvalid (it has none), GatedModel, HubRefused, NetworkUnavailable: see the classes.
    """
    from huggingface_hub.errors import EntryNotFoundError, LocalEntryNotFoundError

    for name in _CONFIG_FILES:
        try:
            return _typed(model_id, partial(_download, model_id, name, revision), missing_file=True)
        except LocalEntryNotFoundError:
            raise
        except EntryNotFoundError:
            continue
    raise ConfigInvalid(f"{model_id} has no config.json", hint="it may not be a transformers model")


def _download(model_id: str, name: str, revision: str | None) -> Path:
    from huggingface_hub import get_hf_file_metadata, hf_hub_download, hf_hub_url, try_to_load_from_cache

    cached = try_to_load_from_cache(model_id, name, revision=revision) if revision else None
    if isinstance(cached, str):
        return Path(cached)
    # Fails at once and with the Hub's own answer; the download itself would retry for half a minute first.
    get_hf_file_metadata(hf_hub_url(model_id, name, revision=revision))
    return Path(hf_hub_download(model_id, name, revision=revision))


def download_weights(model_id: str, revision: str | None, folder: Path) -> Path:
    """Fetch the safetensors files of a published model next to its config.

    Args:
        model_id: owner and name.
        revision: commit.
        folder: where its config.json was found.

    Raises:
        WeightsInvalid: it has no safetensors files.
        ModelNotFound, GatedModel, HubRefused, NetworkUnavailable: see the classes.
    """
    from huggingface_hub import snapshot_download

    patterns = [*_WEIGHT_PATTERNS, *(f"*/{name}" for name in _WEIGHT_PATTERNS)]
    fetch = partial(snapshot_download, model_id, revision=revision, allow_patterns=patterns)
    root = Path(_typed(model_id, fetch))
    target = root / folder.name if (root / folder.name).is_dir() else root
    if not any(target.glob("*.safetensors")):
        raise WeightsInvalid(f"{model_id} has no safetensors weights", hint="only safetensors are loaded from the Hub")
    return target


def hub_reachable() -> bool:
    """Whether the Hub answers at all, told by one request without retries."""
    import httpx2
    from huggingface_hub import constants, get_session

    if constants.is_offline_mode():
        return False
    try:
        get_session().head(_endpoint(), timeout=_PROBE_SECONDS)
    except httpx2.HTTPError:
        return False
    return True


def _fetch_config(ranked: tuple[int, ModelInfo]) -> Path | CorpusError:
    """Runs in a thread, so it only fetches: transformers cannot be imported by several threads at once."""
    _, info = ranked
    try:
        return download_config(info.id, info.sha)
    except CorpusError as error:
        return error


def _describe(rank: int, info: ModelInfo, found: Path | CorpusError) -> tuple[RankingRow, Profile | None]:
    from hf_adapters.corpus.match import parse_config, profile_of

    row = RankingRow(
        rank=rank,
        downloads=info.downloads or 0,
        model_id=info.id,
        revision=info.sha,
        gated=bool(info.gated),
    )
    try:
        if isinstance(found, CorpusError):
            raise found
        values = parse_config(found.read_bytes(), f"config.json of {info.id}")
        row = replace(row, model_type=values["model_type"], config_hash=config_hash(values))
        profile = profile_of(values, info.id)
    except CorpusError as error:
        return replace(row, buildable=_how(error), no_profile_reason=str(error)), None
    return replace(row, profile_id=profile.profile_id, match="exact", buildable="native"), profile


def _how(error: CorpusError) -> str:
    if isinstance(error, RemoteCodeRequired):
        return "remote_only"
    return "gated" if isinstance(error, GatedModel) else "broken"


def _typed(what: str, call: Callable[[], _T], *, missing_file: bool = False) -> _T:
    """Call the Hub with retries and turn its errors into ours (a missing file passes through if asked)."""
    import httpx2
    from huggingface_hub import errors

    try:
        return Retrying(
            retry=retry_if_exception(_worth_retrying), stop=stop_after_attempt(_ATTEMPTS), wait=_wait, reraise=True
        )(call)
    except errors.GatedRepoError as error:
        raise GatedModel(
            f"{what} is gated: its owner has to grant access first",
            hint="ask for access on its page and log in with `hf auth login`",
        ) from error
    except errors.RepositoryNotFoundError as error:
        raise ModelNotFound(f"{what} does not exist on the Hub (or is private)", hint="check the spelling") from error
    except errors.HFValidationError as error:
        raise ModelNotFound(f"{what!r} cannot be a model id", hint="a model id looks like owner/name") from error
    except (errors.RevisionNotFoundError, errors.DisabledRepoError) as error:
        raise HubRefused(f"the Hub does not give out {what}: {type(error).__name__}") from error
    except errors.LocalEntryNotFoundError as error:
        status = _status(error)
        if status is None:
            raise NetworkUnavailable(f"the connection to the Hub broke down while fetching {what}") from error
        raise HubRefused(f"the Hub answered {status} for {what}, also after retries") from error
    except errors.EntryNotFoundError as error:
        if missing_file:
            raise
        raise HubRefused(f"the Hub has no such file of {what}") from error
    except errors.HfHubHTTPError as error:
        if _status(error) == 403:
            raise GatedModel(f"the Hub refuses access to {what} (403)", hint="log in with `hf auth login`") from error
        raise HubRefused(f"the Hub answered {_status(error)} for {what}, also after retries") from error
    except httpx2.HTTPError as error:
        raise NetworkUnavailable(f"the connection to the Hub broke down while fetching {what}: {error}") from error


def _status(error: BaseException | None) -> int | None:
    """HTTP status behind an error; huggingface_hub hides it under a missing local file."""
    while error is not None:
        response = getattr(error, "response", None)
        if response is not None:
            return int(response.status_code)
        error = error.__cause__ or error.__context__
    return None


def _worth_retrying(error: BaseException) -> bool:
    import httpx2
    from huggingface_hub import errors

    if isinstance(error, (errors.RepositoryNotFoundError, errors.OfflineModeIsEnabled)):
        return False
    status = _status(error)
    if status is not None:
        return status == 429 or status >= 500
    return isinstance(error, (httpx2.TransportError, errors.LocalEntryNotFoundError))


def _wait(state: RetryCallState) -> float:
    """As long as the Hub asks for, else twice as long each time."""
    asked = _retry_after(state.outcome.exception() if state.outcome else None)
    return min(_LONGEST_WAIT, asked if asked is not None else _FIRST_WAIT * 2.0 ** (state.attempt_number - 1))


def _retry_after(error: BaseException | None) -> float | None:
    while error is not None:
        response = getattr(error, "response", None)
        if response is not None:
            text = str(response.headers.get("Retry-After", ""))
            return float(text) if text.isdigit() else None
        error = error.__cause__ or error.__context__
    return None


def _api() -> HfApi:
    from huggingface_hub import HfApi

    return HfApi()


def _endpoint() -> str:
    from huggingface_hub import constants

    return constants.ENDPOINT


def _batches(items: Sequence[_T], size: int) -> Iterator[list[_T]]:
    rest = iter(items)
    while batch := list(islice(rest, size)):
        yield batch
