"""Runs a plan: cache, events, overrides, cancellation."""
