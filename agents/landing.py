"""Land an approved adapter: a commit on a new branch with the file, its test and the evidence in its message.

The branch is made with git's plumbing: neither the working tree nor the index of the repository is touched.
"""

from __future__ import annotations

import os
import subprocess
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from hf_adapters.errors import HfAdaptersError

ADAPTERS = "hf_adapters/adapters"
TESTS = "tests/adapters"
_IDENTITY = {"GIT_AUTHOR_NAME": "hf-adapters", "GIT_AUTHOR_EMAIL": "hf-adapters@localhost"}

_TEST = '''"""{summary}"""

from __future__ import annotations

import pytest
import torch

from hf_adapters.adapters.{name} import ADAPTER
from hf_adapters.patching import patch_report, patch_with, unpatch
from hf_adapters.protocols import Example
from tests.adapters.test_proofs import release_of, tensors


@pytest.mark.parametrize("example", ADAPTER.examples(), ids=lambda example: example.name)
def test_it_computes_what_stock_computes(example: Example) -> None:
    model, inputs = example.build(), example.inputs()
    with torch.no_grad():
        stock = list(tensors(model(**inputs)))
        patch_with(model, [ADAPTER], release=release_of(ADAPTER))
        assert patch_report(model).sites
        ours = list(tensors(model(**inputs)))
        unpatch(model)
    assert len(ours) == len(stock) > 0
    for after, before in zip(ours, stock, strict=True):
        assert after.shape == before.shape
        assert (after - before).abs().amax() <= {tolerance} * before.abs().amax().clamp(min=1e-300)


def test_it_is_for_the_rules_that_it_was_accepted_for() -> None:
    assert ADAPTER.rules == {rules}
    assert ADAPTER.equivalence == "{equivalence}"
'''


class CannotLand(HfAdaptersError):
    """The repository cannot take the branch."""

    code = "E_CANNOT_LAND"


@dataclass(frozen=True, kw_only=True, slots=True)
class Landing:
    """What is to land."""

    name: str
    source: str
    summary: str
    rules: tuple[str, ...]
    equivalence: str
    case_id: int
    message: str
    """Body of the commit message: the evidence."""
    beside: tuple[Landing, ...] = ()
    """Adapters of the same case that land in the same commit; their messages are not used."""

    def files(self) -> Mapping[str, str]:
        """Path in the repository -> content."""
        own = self._own()
        return {path: content for other in self.beside for path, content in other.files().items()} | own

    def _own(self) -> dict[str, str]:
        test = _TEST.format(
            name=self.name,
            summary=self.summary.replace('"""', "'''"),
            rules="(" + ", ".join(f'"{rule}"' for rule in self.rules) + (",)" if len(self.rules) == 1 else ")"),
            equivalence=self.equivalence,
            tolerance=1e-9,
        )
        return {f"{ADAPTERS}/{self.name}.py": self.source, f"{TESTS}/test_{self.name}.py": test}

    @property
    def branch(self) -> str:
        """Name of the new branch."""
        return f"agents/{self.name}-{self.case_id}"


def land(landing: Landing, repository: Path) -> str:
    """Make the branch; its name. Landing the same thing twice leaves the first branch as it is.

    Raises:
        CannotLand: there is no repository, a file of that name exists, or git fails.
    """
    head = _git(repository, "rev-parse", "--verify", "HEAD^{commit}")
    existing = _git(repository, "rev-parse", "--verify", "--quiet", f"refs/heads/{landing.branch}", check=False)
    if existing:
        trailer = _git(repository, "log", "-1", "--format=%(trailers:key=Case,valueonly)", existing)
        if trailer.strip() == str(landing.case_id):
            return landing.branch
        raise CannotLand(f"the branch {landing.branch} exists already and is not of this case; rename or delete it")
    for path in landing.files():
        if _git(repository, "ls-tree", "--name-only", head, "--", path):
            raise CannotLand(f"{path} exists already in {head[:12]}; reject the draft with the wish for another name")
    tree = _tree(landing, repository, head)
    message = f"{landing.summary.rstrip('.')}\n\n{landing.message.strip()}\n\nCase: {landing.case_id}\n"
    commit = _git(repository, "commit-tree", tree, "-p", head, text=message, identity=True)
    # The empty old value makes git refuse to move a branch that appeared meanwhile.
    _git(repository, "update-ref", f"refs/heads/{landing.branch}", commit, "")
    return landing.branch


def _tree(landing: Landing, repository: Path, head: str) -> str:
    with tempfile.TemporaryDirectory(prefix="hf-adapters-index-") as folder:
        index = {"GIT_INDEX_FILE": str(Path(folder) / "index")}
        _git(repository, "read-tree", head, more=index)
        for path, content in landing.files().items():
            blob = _git(repository, "hash-object", "-w", "--stdin", text=content)
            _git(repository, "update-index", "--add", "--cacheinfo", f"100644,{blob},{path}", more=index)
        return _git(repository, "write-tree", more=index)


def _git(
    repository: Path,
    *arguments: str,
    text: str | None = None,
    more: Mapping[str, str] | None = None,
    identity: bool = False,
    check: bool = True,
) -> str:
    environment = {**os.environ, **(more or {})}
    if identity and not _git(repository, "config", "user.email", check=False):
        environment |= _IDENTITY | {key.replace("AUTHOR", "COMMITTER"): value for key, value in _IDENTITY.items()}
    try:
        done = subprocess.run(
            ["git", "-C", str(repository), *arguments],
            input=text,
            capture_output=True,
            text=True,
            env=environment,
            check=False,
        )
    except FileNotFoundError as error:
        raise CannotLand("git is not installed; the draft is kept in the database") from error
    if done.returncode and check:
        raise CannotLand(f"git {arguments[0]} in {repository}: {done.stderr.strip() or done.returncode}")
    return done.stdout.strip() if done.returncode == 0 else ""
