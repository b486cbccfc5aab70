"""Pipelines: data jobs over topics, declared in one file and run by Spark.

Importing this loads neither Spark nor YAML; `Pipeline` is what Python files use.
"""

from __future__ import annotations

from penstock.pipelines.definition import Pipeline

__all__ = ["Pipeline"]
