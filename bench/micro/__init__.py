"""Measurements of single parts, without a node around them."""
