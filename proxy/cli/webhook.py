"""Commands `reauth-proxy webhook`: add the sidecar to pods, and show those with an old one."""

import asyncio
import json
import logging
import os
import sys
from functools import partial
from pathlib import Path
from typing import Annotated, Any

import typer

from proxy.cli.common import Exit, fail
from proxy.cli.listing import Listing, Output, OutputOption, print_list
from proxy.errors import ProxyError

app = typer.Typer(
    help="Add the sidecar to pods (Kubernetes).",
    no_args_is_help=True,
    rich_markup_mode=None,
)

ImageOption = Annotated[str | None, typer.Option(metavar="IMAGE", help="Image of the sidecar.")]
RedirectImageOption = Annotated[
    str | None, typer.Option(metavar="IMAGE", help="Image of the init container of `transparent`.")
]


@app.command()
def serve(
    image: ImageOption = None,
    redirect_image: RedirectImageOption = None,
    host: Annotated[
        str, typer.Option(metavar="ADDRESS", help="Address to listen on; `::` for IPv6.")
    ] = "0.0.0.0",  # noqa: S104 - a pod's
    port: Annotated[int, typer.Option(metavar="PORT", help="Port for the API server, TLS.")] = 8443,
    probe_port: Annotated[
        int, typer.Option(metavar="PORT", help="Port for the kubelet's probes.")
    ] = 8080,
    certificate: Annotated[
        Path | None,
        typer.Option(metavar="FILE", help="Certificate (PEM) that somebody else renews."),
    ] = None,
    key: Annotated[Path | None, typer.Option(metavar="FILE", help="Its key (PEM).")] = None,
    service: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="Service that the API server asks, for a certificate of its own."
        ),
    ] = "reauth-proxy-webhook",
    secret: Annotated[
        str, typer.Option(metavar="NAME", help="Secret in which replicas share that certificate.")
    ] = "reauth-proxy-webhook-tls",  # noqa: S107 - a name
    configuration: Annotated[
        str,
        typer.Option(
            metavar="NAME", help="MutatingWebhookConfiguration that is given its authority."
        ),
    ] = "reauth-proxy",
) -> None:
    """Answer the API server until SIGTERM.

    Without --certificate and --key it makes a certificate itself, and renews it.
    """
    if (certificate is None) != (key is None):
        raise typer.BadParameter("give both --certificate and --key, or neither")
    from proxy.kubernetes import server
    from proxy.kubernetes.api import Api
    from proxy.kubernetes.own_certificate import OwnCertificate
    from proxy.kubernetes.template import Images, load

    logging.basicConfig(level=logging.INFO, format="%(levelname)s %(message)s")
    if certificate is not None and key is not None:
        follow = partial(server.follow_files, files=server.Files(certificate, key))
    else:
        try:
            own = OwnCertificate(
                Api(os.environ), secret=secret, service=service, webhook=configuration
            )
        except ProxyError as error:
            raise fail(str(error), Exit.USAGE) from None
        follow = partial(server.follow_own, own=own)
    template = load(Images(proxy=image, redirect=redirect_image))
    try:
        asyncio.run(server.serve(template, host, (port, probe_port), follow))
    except ProxyError as error:
        raise fail(str(error), Exit.USAGE) from None


@app.command()
def drift(
    image: ImageOption = None,
    redirect_image: RedirectImageOption = None,
    output: OutputOption = Output.TABLE,
) -> None:
    """List pods whose sidecar is not the one that they would get now; exit status 1 if any.

    Reads `kubectl get pods --all-namespaces --output json` from stdin; give the webhook's images.
    """
    from proxy.kubernetes.drift import Drifted, drifted
    from proxy.kubernetes.template import Images, load

    try:
        pods: Any = json.load(sys.stdin)
        found = drifted(pods["items"], load(Images(proxy=image, redirect=redirect_image)))
    except (ValueError, KeyError, TypeError):
        raise fail(
            "stdin is not what `kubectl get pods --all-namespaces --output json` prints",
            Exit.USAGE,
        ) from None
    listing: Listing[Drifted] = Listing(
        items="pods with another sidecar",
        headings=("Namespace", "Pod", "Sidecar"),
        lines=lambda one: [one],
        document=lambda one: one._asdict(),
        name=lambda one: f"{one.namespace}/{one.name}",
    )
    print_list(listing, found, output)
    raise typer.Exit(Exit.REFUSED if found else 0)
