"""The server process: routes, WebSocket streams, queue, storage, security. It never imports ONNX Runtime."""
