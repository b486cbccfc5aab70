"""``penstock secure``: the certificates, credentials and settings of a secured cluster, kept in directories."""

from __future__ import annotations

from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from penstock.cli.exits import CommandError, Exit
from penstock.cli.master_keys import keys
from penstock.cli.options import combined, output_option
from penstock.cli.output import Output
from penstock.errors import InvalidPrincipal, InvalidRequest

if TYPE_CHECKING:
    from penstock.secure.directory import NodePlan, SecureDirectory

_SOON_DAYS: Final = 30

directory_argument = click.argument("directory", type=click.Path(path_type=Path))

_listeners = combined(
    click.option(
        "--host",
        "hosts",
        multiple=True,
        metavar="NAME",
        help="A name or address that clients reach the node by, besides localhost. Repeat it for several.",
    ),
    click.option("--kafka", metavar="HOST:PORT", default="127.0.0.1:9092", show_default=True, help="Kafka clients."),
    click.option("--http", metavar="HOST:PORT", default="127.0.0.1:8080", show_default=True, help="REST, metrics."),
    click.option("--grpc", metavar="HOST:PORT", default="127.0.0.1:9000", show_default=True, help="gRPC."),
)


@click.group()
def secure() -> None:
    """Make a secured cluster: certificates, credentials, keys and settings."""


@secure.command()
@directory_argument
@click.option("--node-id", type=click.IntRange(min=0), default=1, show_default=True, help="The first node's id.")
@_listeners
@click.option("--internal", metavar="HOST:PORT", help="Where other nodes reach it; leave it out for a single node.")
@output_option
def init(directory: Path, out: Output, **options: Any) -> None:
    """Write everything that a secured first node needs to DIRECTORY.

    TLS at every door, logins by SCRAM, password, certificate and API key, access rules, and encryption at rest are on.
    """
    made = _directory(directory)
    _attempt(made.init, _plan(options))
    detail = {
        "settings": made.path / "penstock.yaml",
        "ca": made.path / "ca.pem",
        "credentials": made.path / "admin.credentials",
        "token": made.path / "admin.token",
    }
    out.done(
        detail,
        f"Wrote {made.path}. Keep ca.key and admin.* secret. Back the directory up: without master.key the data cannot "
        "be read.\n\n"
        f"  penstock serve --config {made.path / 'penstock.yaml'}\n"
        f"  penstock topic list --url https://{options['http']} --ca {made.path / 'ca.pem'} "
        f"--token-file {made.path / 'admin.token'}",
    )


@secure.command("add-node")
@directory_argument
@click.argument("node_directory", type=click.Path(path_type=Path))
@click.option("--node-id", type=click.IntRange(min=0), required=True, help="Its id, unique in the cluster.")
@_listeners
@click.option("--internal", metavar="HOST:PORT", required=True, help="Where other nodes reach it.")
@click.option("--join", metavar="HOST:PORT", required=True, help="The internal address of a node of the cluster.")
@output_option
def add_node(directory: Path, node_directory: Path, out: Output, **options: Any) -> None:
    """Write the settings and certificates of another node to NODE_DIRECTORY.

    DIRECTORY is the one that `penstock secure init` made. Copy NODE_DIRECTORY to the node's machine.
    """
    made = _directory(node_directory)
    _attempt(_directory(directory).add_node, made, _plan(options))
    settings = made.path / "penstock.yaml"
    out.done({"settings": settings}, f"Wrote {made.path}.\n\n  penstock serve --config {settings}")


@secure.command("add-client")
@directory_argument
@click.argument("name")
@output_option
def add_client(directory: Path, name: str, out: Output) -> None:
    """Issue a certificate that a client logs in with, as the user NAME.

    It gives no rights by itself: `penstock acl` gives them to User:NAME.
    """
    certificate, key = _attempt(_directory(directory).add_client, name)
    detail = {"certificate": certificate, "key": key}
    out.done(detail, f"Wrote {certificate} and {key}. The client is User:{name}.")


@secure.command()
@directory_argument
@click.argument("node_directory", type=click.Path(path_type=Path), required=False)
@output_option
def rotate(directory: Path, node_directory: Path | None, out: Output) -> None:
    """Issue new certificates for the node and the admin of DIRECTORY, or for the node of NODE_DIRECTORY.

    A node that runs takes them within seconds, without a restart. Connections that are open stay open.
    """
    target = None if node_directory is None else _directory(node_directory)
    replaced = _attempt(_directory(directory).rotate, target)
    out.done({"replaced": replaced}, "\n".join(f"Issued {path} anew." for path in replaced))


@secure.command()
@directory_argument
@output_option
def status(directory: Path, out: Output) -> int:
    """Show the certificates of DIRECTORY and what needs attention. The exit code is 1 if something does."""
    found = _directory(directory)
    now = datetime.now(UTC)
    certificates = _attempt(lambda: list(found.certificates()))
    rows = [
        {
            "certificate": each.path.name,
            "expires": each.expires.isoformat(timespec="seconds"),
            "days_left": each.days_left(now),
        }
        for each in certificates
    ]
    out.rows(rows, {"Certificate": "certificate", "Expires": "expires", "Days left": "days_left"})
    findings = [
        f"{each.path.name} {'has expired' if each.expires <= now else f'expires in {each.days_left(now)} days'}: "
        "run `penstock secure rotate`."
        for each in certificates
        if each.days_left(now) < _SOON_DAYS
    ]
    findings += [f"{path} can be read by others: run `chmod 600 {path}`." for path in _attempt(found.exposed)]
    for finding in findings:
        click.echo(finding, err=True)
    if not findings and out.is_table:
        click.echo("All is well.")
    return Exit.FAILURE if findings else Exit.OK


secure.add_command(keys)


def _directory(path: Path) -> SecureDirectory:
    from penstock.extras import needs

    with needs("server", "`penstock secure`"):
        from penstock.secure.directory import SecureDirectory

    return SecureDirectory(path)


def _plan(options: dict[str, Any]) -> NodePlan:
    from penstock.config.kinds import HostPort
    from penstock.secure.directory import NodePlan

    for name in ("kafka", "http", "grpc", "internal", "join"):
        if options.get(name) is not None:
            try:
                HostPort().parse(options[name])
            except ValueError as error:
                raise click.BadParameter(str(error), param_hint=f"--{name}") from None
    return NodePlan(**options)


def _attempt(action: Any, *args: Any) -> Any:
    try:
        return action(*args)
    except (InvalidRequest, InvalidPrincipal) as error:
        raise CommandError(error.message, Exit.USAGE) from error
