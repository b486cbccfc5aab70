"""What this machine allows: a network and mounts of our own as root, plain processes otherwise.

As root the program moves into fresh network and mount namespaces before it does anything else. Bridges, addresses and
mounts that it makes are then invisible outside, no address in it leads anywhere but to its own nodes, and the kernel
takes everything back when the last of its processes is gone, even if it is killed.
"""

from __future__ import annotations

import ctypes
import os
import shutil
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from bench.install import InstallError, ensure_command, ensure_file

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketime.so.1")
NAMED_NAMESPACES = Path("/run/netns")
_CLONE_NEWNS, _CLONE_NEWNET = 0x00020000, 0x40000000
_PR_SET_PDEATHSIG, _SIGKILL = 1, 9
_LIBC = ctypes.CDLL(None, use_errno=True)


class MachineError(Exception):
    """The machine refused something that chaos needs."""


@dataclass(frozen=True, slots=True)
class Machine:
    """What can be done here, and a word about each thing that cannot."""

    has_network: bool = False
    has_disks: bool = False
    has_fake_time: bool = False
    left_out: dict[str, str] = field(default_factory=dict)


def run(*command: str, namespace: str | None = None) -> str:
    """A system command, inside a named network namespace if one is given; what it said, or MachineError."""
    enter = enter_namespace(namespace) if namespace else None
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, preexec_fn=enter)
    if done.returncode:
        raise MachineError(f"{' '.join(command)} failed: {(done.stderr or done.stdout).strip()}")
    return done.stdout


def enter_namespace(name: str) -> Callable[[], None]:
    """For a child process: go into the named network namespace, and die with the parent."""
    path = NAMED_NAMESPACES / name

    def enter() -> None:
        die_with_parent()
        handle = os.open(path, os.O_RDONLY)
        if _LIBC.setns(handle, _CLONE_NEWNET):
            raise OSError(ctypes.get_errno(), f"cannot enter {path}")
        os.close(handle)

    return enter


def die_with_parent() -> None:
    _LIBC.prctl(_PR_SET_PDEATHSIG, _SIGKILL)


def prepare(*, is_plain: bool, wants_fake_time: bool) -> Machine:
    """Install what is missing, move into namespaces of our own, and say what there is."""
    if is_plain or os.geteuid() != 0:
        why = "plain processes were asked for" if is_plain else "only root may do that"
        return Machine(left_out=dict.fromkeys(("network", "disks", "fake time"), why))
    left_out: dict[str, str] = {}
    tools = {"network": [("ip", "iproute2"), ("iptables", "iptables")], "disks": [("mkfs.ext4", "e2fsprogs")]}
    for part, commands in tools.items():
        _install(part, commands, left_out)
    if wants_fake_time:
        try:
            ensure_file(FAKETIME, "libfaketime")
        except InstallError as error:
            left_out["fake time"] = str(error)
    if "network" not in left_out and "disks" not in left_out:
        _move(left_out)
    return Machine(
        has_network="network" not in left_out,
        has_disks="disks" not in left_out,
        has_fake_time=wants_fake_time and "fake time" not in left_out,
        left_out=left_out,
    )


def _install(part: str, commands: Sequence[tuple[str, str]], left_out: dict[str, str]) -> None:
    for command, package in commands:
        try:
            ensure_command(command, package)
        except InstallError as error:
            left_out[part] = str(error)


def _move(left_out: dict[str, str]) -> None:
    if _LIBC.unshare(_CLONE_NEWNET | _CLONE_NEWNS):
        why = os.strerror(ctypes.get_errno())
        left_out |= {"network": f"no namespace of its own: {why}", "disks": f"no mounts of its own: {why}"}
        return
    run("mount", "--make-rprivate", "/")
    NAMED_NAMESPACES.mkdir(exist_ok=True)
    run("mount", "-t", "tmpfs", "chaos", str(NAMED_NAMESPACES))
    run("ip", "link", "set", "lo", "up")


def is_there(command: str) -> bool:
    return shutil.which(command) is not None
