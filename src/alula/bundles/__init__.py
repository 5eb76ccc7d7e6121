"""The folder that holds a built model: manifest, digests, cache."""
