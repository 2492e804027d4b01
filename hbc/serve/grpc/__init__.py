"""gRPC: the Open Inference Protocol v2 with Triton's extensions, and gRPC's health checks, over the engine of `hbc serve`."""
