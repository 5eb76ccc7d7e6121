"""Decoders on OpenVINO with their cache in pages: steps of ragged chunks without padding, and nothing is copied."""
