"""Builds the device's native part and maps the project's folders to packages.

Everything else is declared in pyproject.toml; an extension built against the
installed torch and a package-dir mapping cannot be.
"""

from __future__ import annotations

import os
from pathlib import Path

# Importing torch would load the device, whose native part may be older than the rest: it is what is built here.
os.environ["TORCH_DEVICE_BACKEND_AUTOLOAD"] = "0"

from setuptools import find_packages, setup
from torch.utils.cpp_extension import BuildExtension, CppExtension

ROOT = Path(__file__).parent
# Top-level names `corpus` and `agents` belong to other projects on PyPI.
MAPPED = {"corpus": "hf_adapters.corpus", "agents": "hf_adapters.agents", "migrations": "hf_adapters.migrations"}


def _packages() -> tuple[list[str], dict[str, str]]:
    packages = find_packages(str(ROOT), include=["hf_adapters*", "spyre_backend*"])
    package_dir = {}
    for folder, package in MAPPED.items():
        if not (ROOT / folder).is_dir():
            continue
        package_dir[package] = folder
        packages.append(package)
        packages += [f"{package}.{name}" for name in find_packages(str(ROOT / folder))]
    return packages, package_dir


SANITIZERS = ["-fsanitize=address,undefined", "-fno-sanitize=vptr", "-fno-sanitize-recover=undefined"]
# `make sanitize` sets it; such a native part needs the sanitizer's library to be loaded first.
SANITIZED = os.environ.get("SPYRE_BACKEND_SANITIZE") == "1"


def _compile_args() -> list[str]:
    args = ["-O3", "-std=c++20", "-fopenmp", "-fvisibility=hidden", "-ffp-contract=off"]
    if os.environ.get("SPYRE_BACKEND_NATIVE") == "1":
        args.append("-march=native")
    if SANITIZED:
        args += ["-O1", "-fno-omit-frame-pointer", *SANITIZERS]
    return args


PACKAGES, PACKAGE_DIR = _packages()

setup(
    packages=PACKAGES,
    package_dir=PACKAGE_DIR,
    ext_modules=[
        CppExtension(
            "spyre_backend._C",
            sorted(str(path.relative_to(ROOT)) for path in (ROOT / "spyre_backend/csrc").glob("*.cpp")),
            extra_compile_args=_compile_args(),
            extra_link_args=SANITIZERS if SANITIZED else [],
            depends=sorted(str(path.relative_to(ROOT)) for path in (ROOT / "spyre_backend/csrc").glob("*.h")),
        )
    ],
    cmdclass={"build_ext": BuildExtension},
)
