"""Routes of our own API, beside those of ComfyUI."""
