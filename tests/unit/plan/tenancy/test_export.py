"""How an NFS export is written, and what none may say."""

from __future__ import annotations

import pytest

from fairlead import errors
from fairlead.plan.tenancy import export
from fairlead.wire.fairlead.tenancy import NFSExport


@pytest.mark.parametrize(
    ("text", "server", "path"),
    [
        ("nas:/exports/red", "nas", "/exports/red"),
        ("nas-1.example.org:/", "nas-1.example.org", "/"),
        ("[fd00::7]:/red", "fd00::7", "/red"),
    ],
)
def test_an_export_is_read_and_written_as_mount_takes_it(text: str, server: str, path: str) -> None:
    found = export.parse(text)
    assert (found.server, found.path) == (server, path)
    assert export.source(found) == text


@pytest.mark.parametrize(
    "text",
    [
        "",
        "nas",
        "nas:red",
        ":/red",
        "-o:/red",
        "nas:/../etc",
        "nas:/red/../../x",
        "nas:/a b",
        "nas:/a\nb",
        "na s:/red",
        "nas,evil:/red",
        "[fe80::1%x,evil]:/red",
        "nas:/" + "x" * 1024,
    ],
)
def test_what_is_no_export_is_refused_with_its_form(text: str) -> None:
    with pytest.raises(errors.Invalid) as caught:
        export.parse(text)
    assert (caught.value.reason, caught.value.hint) == ("ExportInvalid", "SERVER:/PATH")


def test_devices_and_privileges_stay_out_whatever_the_options_say() -> None:
    assert (
        export.options(NFSExport(server="nas", path="/", options=("vers=4.2", "soft"))) == "vers=4.2,soft,nosuid,nodev"
    )


@pytest.mark.parametrize("option", ["suid", "dev", "bind", "remount", "ro", "vers=4,suid", "a b", "", "-x", "x=$(id)"])
def test_an_option_that_is_not_allowed_is_a_problem(option: str) -> None:
    assert list(export.problems(NFSExport(server="nas", path="/", options=(option,))))


@pytest.mark.parametrize(("options", "port"), [((), 2049), (("port=20490",), 20490), (("port=x",), 2049)])
def test_the_port_is_the_servers(options: tuple[str, ...], port: int) -> None:
    assert export.port(NFSExport(server="nas", path="/", options=options)) == port
