"""Is an engine equal to the model? Metrics, limits with reasons, the gate."""
