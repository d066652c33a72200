"""Schedulers: every sampler is a generator; see sampler.py for how to write one."""
