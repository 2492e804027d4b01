"""The command `hbc serve`: answers requests for saved models over HTTP."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Annotated

import typer

from hbc.cli.terminal import Backend, Device, Quiet, names_in
from hbc.errors import ArtifactError, requires

TOKEN = "HBC_TOKEN"


def serve(
    models: Annotated[
        list[str] | None, typer.Argument(metavar="MODEL…", help="Saved models: FILE.hbc, or NAME=FILE.hbc.", show_default=False)
    ] = None,
    directory: Annotated[
        Path | None,
        typer.Option(
            "--dir", help="A folder of models: NAME/VERSION/model.hbc, NAME/model.hbc or NAME.hbc.", show_default=False
        ),
    ] = None,
    host: Annotated[str, typer.Option(help="The address to listen on. 0.0.0.0: all of this computer's.")] = "127.0.0.1",
    port: Annotated[
        int, typer.Option(help="The port to listen on. 0: any free one, which the log names.", min=0, max=65535)
    ] = 8000,
    workers: Annotated[int, typer.Option(help="Processes that serve, with one socket.", min=1, max=256)] = 1,
    threads: Annotated[int, typer.Option(help="Large calls that a worker makes at once.", min=1, max=256)] = 1,
    poll: Annotated[float, typer.Option(help="Seconds between two looks at the files. 0: only at SIGHUP.", min=0)] = 2.0,
    max_queue: Annotated[
        int, typer.Option(help="Requests that may wait in a worker. One more is answered with 429.", min=1)
    ] = 1000,
    max_batch: Annotated[int, typer.Option(help="The most rows of waiting requests that are computed together.", min=1)] = 1000,
    max_delay: Annotated[
        float, typer.Option(help="Microseconds that a large request waits for others, to be computed with them.", min=0)
    ] = 0.0,
    timeout: Annotated[float, typer.Option(help="Seconds after which a request is given up.")] = 60.0,
    max_body: Annotated[int, typer.Option(help="The most bytes of a request's body.", min=1)] = 32 << 20,
    max_rows: Annotated[int, typer.Option(help="The most rows of a request.", min=1)] = 100_000,
    max_columns: Annotated[int, typer.Option(help="The most columns of a request.", min=1)] = 10_000,
    max_connections: Annotated[int, typer.Option(help="The most connections of a worker.", min=1)] = 20_000,
    drain: Annotated[float, typer.Option(help="Seconds that requests have to end in after SIGTERM.")] = 30.0,
    token_file: Annotated[
        Path | None,
        typer.Option(help=f"A file with a token that requests must bring. By default ${TOKEN}, or none.", show_default=False),
    ] = None,
    allowed_host: Annotated[
        list[str] | None,
        typer.Option(
            help="A name by which the server may be called, besides localhost and addresses; may come several times. '*': any. By default "
            "any, but on 127.0.0.1 without a token none.",
            show_default=False,
        ),
    ] = None,
    certificate: Annotated[
        Path | None, typer.Option(help="A file with the certificate for TLS (PEM).", show_default=False)
    ] = None,
    key: Annotated[Path | None, typer.Option(help="The file with its private key (PEM).", show_default=False)] = None,
    grpc_port: Annotated[
        int | None,
        typer.Option(
            help="Answer over gRPC too, on this port. Needs the extra `grpc`.",
            show_default=False,
            min=0,
            max=65535,
        ),
    ] = None,
    methods: Annotated[
        str | None,
        typer.Option(
            help="The methods to compile and serve, such as predict_proba,predict. By default all.", show_default=False
        ),
    ] = None,
    drift: Annotated[
        bool,
        typer.Option(
            "--drift", help="Count missing values, unknown categories and outlying numbers of each column, for /metrics."
        ),
    ] = False,
    fixed: Annotated[bool, typer.Option("--fixed", help="Clients may not load and unload models.")] = False,
    access_log: Annotated[
        bool, typer.Option("--access-log", help="Write a line for each request. It makes answers a little slower.")
    ] = False,
    trust_code: Annotated[
        bool, typer.Option("--trust-code", help="Run the compiled code in the files: whoever wrote them can run anything here.")
    ] = False,
    backend: Backend = None,
    device: Device = None,
    quiet: Quiet = False,
) -> None:
    """Answer requests for saved models over HTTP: the Open Inference Protocol v2, and plain JSON.

    A model is loaded anew when its file changes, and no request is lost. The models, and how to call them: /openapi.json. SIGTERM ends the
    server when all requests are answered. Needs the extra `serve`.

    Example: `hbc serve prices=model.hbc --port 8000`, then
    `curl localhost:8000/v1/models/prices:predict -d '{"record": {"rooms": 4, "age": 31}}'`
    """
    with requires("serve"):
        from hbc.serve.parent import serve
        from hbc.serve.process import Settings
    if grpc_port is not None:
        with requires("grpc"):
            import hbc.serve.grpc.server  # noqa: F401
    if grpc_port == port != 0:
        raise ValueError(f"--port, --grpc-port: found {port} for both, expected two ports")
    if not models and directory is None:
        raise ArtifactError(path="hbc serve", found="no model", expected="a saved model, or --dir with a folder of them")
    files = _named(models or [])
    if directory is not None and not directory.is_dir():
        raise ArtifactError(path=str(directory), found="no folder", expected="a folder of models")
    limits = {
        **{"queue": max_queue, "batch": max_batch, "delay": max_delay / 1e6, "timeout": timeout, "body": max_body},
        **{"rows": max_rows, "columns": max_columns, "connections": max_connections, "drain_seconds": drain},
    }
    serve(
        Settings(
            files,
            None if directory is None else str(directory),
            host,
            port,
            workers=workers,
            threads=threads,
            poll=poll,
            trust_code=trust_code,
            backend=backend,
            device=device,
            token=_token(token_file),
            allowed_hosts=allowed_host or [],
            certificate=None if certificate is None else str(certificate),
            key=None if key is None else str(key),
            grpc=grpc_port,
            methods=[] if methods is None else names_in("--methods", methods),
            drift=drift,
            control=not fixed,
            access_log=access_log,
            quiet=quiet,
            limits=limits,
        )
    )


def _named(models: list[str]) -> dict[str, str]:
    """Name → file. Raises ArtifactError for a file that does not exist, ValueError for a name that comes twice."""
    files: dict[str, str] = {}
    for model in models:
        name, equals, path = model.partition("=")
        if not equals or Path(model).exists():
            name, path = Path(model).stem, model
        if not Path(path).is_file():
            raise ArtifactError(path=path, found="no file", expected="a model saved by hbc")
        if name in files:
            raise ValueError(f"{path}: found the name {name!r} twice, expected NAME=FILE with another name")
        files[name] = os.path.abspath(path)
    return files


def _token(file: Path | None) -> str | None:
    """The token, without the white space around it. Raises ArtifactError for an empty file, or for characters that no header holds."""
    token = os.environ.get(TOKEN) if file is None else file.read_text()
    if token is None:
        return None
    token = token.strip()
    if not token or not token.isascii() or not token.isprintable() or " " in token:
        raise ArtifactError(
            path=str(file or f"${TOKEN}"), found="no token", expected="printable ASCII characters without spaces"
        )
    return token
