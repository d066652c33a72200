"""What clients made for ComfyUI expect: its routes, its shapes of answers and errors."""
