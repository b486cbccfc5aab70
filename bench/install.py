"""System packages the benchmark needs, installed through apt-get when they are absent."""

from __future__ import annotations

import shutil
import subprocess
from pathlib import Path


class InstallError(Exception):
    """A system package is missing and could not be installed."""


def ensure_command(command: str, package: str) -> None:
    """Install Debian's `package` unless `command` is on the PATH."""
    if shutil.which(command) is None:
        apt_install(package)


def ensure_file(path: Path, package: str) -> None:
    """Install Debian's `package` unless `path` exists."""
    if not path.exists():
        apt_install(package)


def apt_install(package: str) -> None:
    if shutil.which("apt-get") is None:
        raise InstallError(f"install {package} (as Debian names it) with this system's package manager, then try again")
    for arguments in (["update", "-q"], ["install", "-y", "-q", "--no-install-recommends", package]):
        done = subprocess.run(["apt-get", *arguments], capture_output=True, text=True, timeout=600)
    if done.returncode:
        raise InstallError(f"apt-get install {package} failed: {done.stderr[-1000:]}")
