"""What the figures were measured on: processor, memory, kernel, versions. Nothing that names the machine."""

from __future__ import annotations

import os
import platform
import subprocess
from pathlib import Path

import psutil


def machine_facts(directory: Path) -> dict[str, object]:
    return {
        "cpu": _cpu_model(),
        "cores": os.cpu_count(),
        "memory_gb": round(psutil.virtual_memory().total / 1e9, 1),
        "kernel": platform.release(),
        "system": platform.freedesktop_os_release().get("PRETTY_NAME", platform.system()),
        "file_system": _file_system(directory),
        "python": platform.python_version(),
        "java": _first_line(["java", "-version"]),
        "gcc": _first_line(["gcc", "--version"]),
        "load_at_start": [round(x, 2) for x in os.getloadavg()],
    }


def _cpu_model() -> str:
    for line in Path("/proc/cpuinfo").read_text().splitlines():
        if line.startswith("model name"):
            return line.partition(":")[2].strip()
    return platform.machine()


def _file_system(directory: Path) -> str:
    mounts = [p for p in psutil.disk_partitions(all=True) if directory.resolve().is_relative_to(p.mountpoint)]
    return max(mounts, key=lambda p: len(p.mountpoint)).fstype if mounts else "unknown"


def _first_line(command: list[str]) -> str:
    try:
        done = subprocess.run(command, capture_output=True, text=True, timeout=20)
    except OSError:
        return "absent"
    return (done.stdout or done.stderr).partition("\n")[0]
