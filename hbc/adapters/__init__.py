"""Thin adapters to the servers of others: MLServer, KServe, BentoML, Ray Serve, Triton, AWS Lambda. docs/serving-elsewhere.md shows each.

An adapter reads a request in the form of its server, has `hosted.Hosted` answer it, and writes the answer. Only the adapter's own file
imports the server's package."""
