"""BentoML before the library that trained the model."""

from typing import Any

import bentoml


@bentoml.service(traffic={"timeout": 60}, workers=1)
class Service:
    """One worker."""

    def __init__(self) -> None:
        from source import probabilities

        self.probabilities = probabilities

    @bentoml.api
    def predict(
        self, rows: list[list[float]] | None = None, records: list[dict[str, Any]] | None = None
    ) -> dict[str, list[float]]:
        """The answer of the service."""
        return {"probabilities": self.probabilities({"rows": rows, "records": records})}
