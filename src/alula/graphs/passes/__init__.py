"""Rewrites of a graph, each with a precondition and a postcondition."""
