"""Loop nodes: each drives its body by per-step outputs and feedback inputs."""
