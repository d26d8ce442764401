"""`fairlead debug`: what a person types and reads."""

from __future__ import annotations

from tests.unit.cli.container.test_cli_streams import piped
from tests.unit.cli.liveservice import Service


def _box(service: Service) -> None:
    assert service.fairlead("run", "-d", "--name", "box", "demo", "sleep", "60").exit_code == 0


def test_a_program_joins_with_its_input_and_ends_with_its_code(service: Service) -> None:
    _box(service)
    line = ("debug", "-i", "--target", "box", "box", "--", "sh", "-c", "cat; exit 5")
    result = piped(service, *line, stdin=b"one\n")
    assert (result.returncode, result.stdout) == (5, b"one\n"), result.stderr
    assert result.stderr.startswith(b"Defaulting debug container name to debugger-")


def test_without_input_it_is_started_and_its_output_is_kept(service: Service) -> None:
    _box(service)
    result = service.fairlead("debug", "-c", "look", "box", "--", "echo", "here")
    assert (result.exit_code, result.stdout, result.stderr) == (0, "", "")
    assert service.fairlead("logs", "-f", "-c", "look", "box").stdout == "here\n"
    assert '"is_ephemeral": true' in service.fairlead("inspect", "box").stdout


def test_an_image_that_is_not_there_says_so(service: Service) -> None:
    _box(service)
    result = service.fairlead("debug", "--image", "localhost/none:1", "--pull", "never", "-c", "look", "box")
    assert result.exit_code == 4
    assert '"look" does not start' in result.stderr
    assert "localhost/none:1" in result.stderr
