"""Ray Serve before the library that trained the model: one replica and one proxy."""

import sys
import time
from pathlib import Path

import ray
from ray import serve
from starlette.requests import Request


@serve.deployment(num_replicas=1, max_ongoing_requests=64)
class Service:
    """One replica."""

    def __init__(self) -> None:
        from source import probabilities

        self.probabilities = probabilities

    async def __call__(self, request: Request) -> dict[str, list[float]]:
        """The answer of the service."""
        return {"probabilities": self.probabilities(await request.json())}


if __name__ == "__main__":
    folder = str(Path(__file__).parent)
    ray.init(num_cpus=2, include_dashboard=False, log_to_driver=False, runtime_env={"env_vars": {"PYTHONPATH": folder}})
    serve.start(http_options={"host": "127.0.0.1", "port": int(sys.argv[1])})
    serve.run(Service.bind(), route_prefix="/predict")
    while True:
        time.sleep(60)
