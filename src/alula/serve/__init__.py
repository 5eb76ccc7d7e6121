"""Bundles behind HTTP: a front, supervised engine processes, health, metrics."""
