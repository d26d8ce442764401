from __future__ import annotations

import io
import os
import tarfile
from pathlib import Path
from typing import IO, cast

import pytest

from fairlead import errors
from fairlead.cli.access import copy
from fairlead.client.session import copying
from tests.unit.cli.liveservice import Service


def tar(*members: tarfile.TarInfo, data: bytes = b"hello") -> IO[bytes]:
    packed = io.BytesIO()
    with tarfile.open(fileobj=packed, mode="w") as archive:
        for member in members:
            if member.isreg():
                member.size = len(data)
            archive.addfile(member, io.BytesIO(data) if member.isreg() else None)
    packed.seek(0)
    return cast("IO[bytes]", packed)


def member(name: str, kind: bytes = tarfile.REGTYPE, target: str = "") -> tarfile.TarInfo:
    made = tarfile.TarInfo(name)
    made.type, made.linkname = kind, target
    return made


@pytest.mark.parametrize(
    ("text", "container", "path"),
    [
        ("web:/etc/hosts", "web", "/etc/hosts"),
        ("web:data", "web", "/data"),
        ("./a:b", "", "./a:b"),
        ("/a:b", "", "/a:b"),
        ("plain", "", "plain"),
        ("-", "", "-"),
    ],
)
def test_a_colon_names_a_container_unless_a_slash_comes_first(text: str, container: str, path: str) -> None:
    end = copy.parse(text)
    assert (end.container, end.path) == (container, path)


@pytest.mark.parametrize(
    "members",
    [
        (member("../escaped"),),
        (member("/absolute/../../escaped"),),
        (member("link", tarfile.SYMTYPE, "/etc"), member("link/passwd")),
        (member("link", tarfile.SYMTYPE, "../.."), member("link/escaped")),
        (member("hard", tarfile.LNKTYPE, "../../etc/passwd"),),
        (member("link", tarfile.SYMTYPE, "sub"), member("sub", tarfile.DIRTYPE), member("link/file")),
        (member("link", tarfile.SYMTYPE, "sub"), member("hard", tarfile.LNKTYPE, "link")),
        (member("link", tarfile.SYMTYPE, "sub"), member("link")),
        (member("node", tarfile.CHRTYPE),),
        (member("pipe", tarfile.FIFOTYPE),),
    ],
)
def test_no_member_leaves_the_folder_by_name_link_or_node(tmp_path: Path, members: tuple[tarfile.TarInfo, ...]) -> None:
    """What a tenant packed is never written elsewhere, nor as a device."""
    folder = tmp_path / "deep" / "target"
    folder.mkdir(parents=True)

    with pytest.raises(errors.Invalid) as caught:
        copying._extract(tar(*members), folder, copy.parse("web:/x/."))

    assert caught.value.reason == "CopyUnsafe"
    assert not (tmp_path / "escaped").exists()
    assert not (tmp_path / "deep" / "escaped").exists()


def chained(kind: bytes, data: bytes, count: int) -> bytes:
    """Headers that each bring a long name, or more headers, for the next one."""
    long = member("././@LongLink", kind)
    long.size = len(data)
    return (long.tobuf(tarfile.GNU_FORMAT) + data + bytes(-len(data) % tarfile.BLOCKSIZE)) * count


@pytest.mark.parametrize(
    "before",
    [
        pytest.param(chained(tarfile.GNUTYPE_LONGNAME, b"x\0", 3000), id="long names of long names"),
        pytest.param(chained(tarfile.XHDTYPE, b"", 3000), id="headers of headers"),
        pytest.param(chained(tarfile.XHDTYPE, b"1" * (1 << 20), 1), id="a megabyte of digits"),
        pytest.param(chained(tarfile.GNUTYPE_LONGNAME, b"x" * (2 << 20), 1), id="a name of two megabytes"),
        pytest.param(tar(member("x", tarfile.DIRTYPE)).read(512) + b"\xff" * 512, id="what is no header"),
        pytest.param(tar(member("x", tarfile.DIRTYPE)).read(512), id="no end"),
    ],
)
def test_a_tar_whose_headers_are_not_of_this_world_is_not_whole_and_costs_nothing(
    tmp_path: Path, before: bytes
) -> None:
    """No stack that ends, no pattern that takes for ever, no name of gigabytes, no silent end."""
    rest = b"" if before.startswith(b"x") and len(before) == tarfile.BLOCKSIZE else tar(member("x/file")).read()
    data = cast("IO[bytes]", io.BytesIO(before + rest))
    assert copying._extract(data, tmp_path, copy.parse("web:/x")) is False
    assert not (tmp_path / "x" / "file").exists()


def test_a_target_whose_name_is_too_long_is_said(tmp_path: Path) -> None:
    with pytest.raises(errors.Invalid, match="File name too long") as caught:
        copying._extract(tar(member("file")), tmp_path / ("x" * 5000), copy.parse("web:/file"))
    assert caught.value.reason == "CopyFailed"


def test_a_link_that_was_there_is_not_written_through(tmp_path: Path) -> None:
    outside, folder = tmp_path / "outside", tmp_path / "folder"
    outside.write_text("mine")
    folder.mkdir()
    (folder / "file").symlink_to(outside)
    with pytest.raises(errors.Invalid, match="goes through a link"):
        copying._extract(tar(member("file")), folder, copy.parse("web:/file"))
    assert outside.read_text() == "mine"


@pytest.mark.parametrize("path", ["results", "results/"])
def test_nothing_is_written_beside_what_was_asked_for_whatever_the_container_calls_it(
    tmp_path: Path, path: str
) -> None:
    """A container may make `results` a link to `.bashrc`, or pack more than it was asked for."""
    mine = tmp_path / ".bashrc"
    mine.write_text("mine")
    copying._extract(tar(member(".bashrc")), tmp_path, copy.parse(f"web:{path}"))
    assert (tmp_path / "results").read_bytes() == b"hello"
    (tmp_path / "results").unlink()
    with pytest.raises(errors.Invalid, match="was not asked for") as caught:
        copying._extract(tar(member("results"), member(".bashrc")), tmp_path, copy.parse(f"web:{path}"))
    assert caught.value.reason == "CopyUnsafe"
    assert mine.read_text() == "mine"


@pytest.mark.parametrize("prefix", ["", "./"])
def test_what_is_in_a_folder_goes_into_a_new_one(tmp_path: Path, prefix: str) -> None:
    packed = tar(member(f"{prefix}sub", tarfile.DIRTYPE), member(f"{prefix}sub/f"), member(f"{prefix}g"))
    assert copying._extract(packed, tmp_path / "new", copy.parse("web:/d/."))
    assert (tmp_path / "new/sub/f").read_bytes() == (tmp_path / "new/g").read_bytes() == b"hello"


def test_an_archive_that_is_cut_off_or_lies_is_said(tmp_path: Path) -> None:
    whole = tar(member("d", tarfile.DIRTYPE), member("d/a"), data=b"x" * 5000).read()
    assert not copying._extract(cast("IO[bytes]", io.BytesIO(whole[:3000])), tmp_path, copy.parse("web:/d"))
    late = member("d")
    late.pax_headers = {"mtime": "1e300"}
    nul = member("d")
    nul.pax_headers = {"path": "d/\0"}
    for one in (late, nul, member("d", tarfile.LNKTYPE, "d2")):
        with pytest.raises(errors.Invalid, match="no file system takes") as caught:
            copying._extract(tar(one), tmp_path / "e", copy.parse("web:/d"))
        assert caught.value.reason == "CopyFailed"


def test_what_arrives_is_the_readers_own_and_links_within_stay(tmp_path: Path) -> None:
    """Debian 12's Python has no filters of tarfile's: the rules are ours on every Python."""
    one = member("bin/tool")
    one.mode, one.uid, one.uname = 0o6777, 12345, "nobody"
    packed = tar(member("bin", tarfile.DIRTYPE), one, member("lib/tool", tarfile.SYMTYPE, "../bin/tool"))
    copying._extract(packed, tmp_path, copy.parse("web:/x/."))
    found = (tmp_path / "bin/tool").stat()
    assert (found.st_mode & 0o7777, found.st_uid) == (0o755, os.getuid())
    assert (tmp_path / "lib/tool").read_bytes() == b"hello"


def test_a_folder_that_is_there_receives_and_one_that_is_not_becomes_the_source(tmp_path: Path) -> None:
    (tmp_path / "there").mkdir()
    copying._extract(
        tar(member("conf", tarfile.DIRTYPE), member("conf/a")), tmp_path / "there", copy.parse("web:/conf")
    )
    copying._extract(tar(member("conf", tarfile.DIRTYPE), member("conf/a")), tmp_path / "new", copy.parse("web:/conf"))
    assert (tmp_path / "there/conf/a").read_bytes() == b"hello"
    assert (tmp_path / "new/a").read_bytes() == b"hello"


def test_files_go_into_a_container_and_come_back(service: Service, tmp_path: Path) -> None:
    assert service.fairlead("run", "-d", "--name", "a", "demo", "sleep", "60").exit_code == 0
    assert service.fairlead("wait", "a", "--state", "started").exit_code == 0
    (tmp_path / "file").write_bytes(b"some\x00bytes")

    assert service.fairlead("cp", str(tmp_path / "file"), "a:/tmp/").exit_code == 0
    back = service.fairlead("cp", "a:/tmp/", str(tmp_path / "back"))

    assert back.exit_code == 0, back.stderr
    assert any(path.read_bytes() == b"some\x00bytes" for path in tmp_path.glob("back*"))


def test_a_path_that_is_not_there_is_said(service: Service, tmp_path: Path) -> None:
    assert service.fairlead("run", "-d", "--name", "a", "demo", "sleep", "60").exit_code == 0
    assert service.fairlead("wait", "a", "--state", "started").exit_code == 0
    result = service.fairlead("cp", "a:/nosuch", str(tmp_path))
    assert result.exit_code == 2
    assert "/nosuch" in result.stderr
    assert service.fairlead("cp", str(tmp_path / "nosuch"), "a:/tmp/").exit_code == 2
    assert service.fairlead("cp", "here", "there").exit_code == 2


def test_stats_and_top_show_a_running_container(service: Service) -> None:
    assert service.fairlead("run", "-d", "--name", "a", "demo", "sleep", "60").exit_code == 0
    assert service.fairlead("wait", "a", "--state", "started").exit_code == 0
    shown = service.fairlead("stats", "--no-stream")
    assert shown.stdout.splitlines()[0].split()[:2] == ["NAME", "CPU"]
    share = float(shown.stdout.splitlines()[1].split()[1].removesuffix("%"))
    assert 8 < share < 12  # of a container that uses a tenth of a processor, as two looks at the clock find it
    assert "1 MiB" in service.fairlead("stats", "--no-stream", "--format", "{{.Name}} {{.MemUsage}}", "a").stdout
    assert "sleep 60" in service.fairlead("top", "a").stdout


def test_port_names_the_hosts_side(service: Service) -> None:
    assert service.fairlead("run", "-d", "--name", "a", "-p", "8080:80", "demo", "sleep", "60").exit_code == 0
    assert service.fairlead("port", "a").stdout == "80/tcp -> 0.0.0.0:8080\n"
    assert service.fairlead("port", "a", "80").stdout == "0.0.0.0:8080\n"
    assert service.fairlead("port", "a", "81").exit_code == 2


def test_images_are_named_saved_and_loaded(service: Service, tmp_path: Path) -> None:
    assert service.fairlead("tag", "demo", "localhost/other:2").exit_code == 0
    assert "localhost/other:2" in service.fairlead("images").stdout
    file = tmp_path / "images.tar"
    assert service.fairlead("save", "-o", str(file), "localhost/other:2").exit_code == 0
    assert file.read_text() == "localhost/other:2"
    file.write_text("localhost/loaded:1")
    assert service.fairlead("load", "-i", str(file)).exit_code == 0
    assert "localhost/loaded:1" in service.fairlead("images").stdout
    refused = service.fairlead("save", "-o", str(tmp_path / "no.tar"), "nosuch")
    assert "nosuch" in refused.stderr
    assert refused.exit_code == 2
    assert not (tmp_path / "no.tar").exists()


def test_prune_asks_and_takes_no_silence_for_a_yes(service: Service) -> None:
    assert service.fairlead("run", "--name", "a", "demo", "true").exit_code == 0
    refused = service.fairlead("prune")
    assert refused.exit_code == 2
    assert "1 ended" in refused.stderr
    assert "a\n" in service.fairlead("prune", "-f").stdout
    assert service.fairlead("ps", "-aq").stdout == ""


def test_an_ended_container_is_started_once_more(service: Service) -> None:
    assert service.fairlead("run", "--name", "a", "demo", "echo", "once").exit_code == 0
    before = service.fairlead("inspect", "a", "--format", "{{.Id}}").stdout
    assert service.fairlead("start", "a").stdout == "a\n"
    assert service.fairlead("wait", "a").exit_code == 0
    assert service.fairlead("logs", "a").stdout == "once\n"
    assert service.fairlead("inspect", "a", "-f", "{{.Id}}").stdout != before
    assert service.fairlead("inspect", "a", "-f", "{{.State.ExitCode}}").stdout == "0\n"
    assert service.fairlead("ps", "-a", "--format", "{{.Names}} {{.State}}").stdout == "a succeeded\n"


def test_a_pull_that_fails_says_why(service: Service) -> None:
    result = service.fairlead("pull", "nosuch")
    assert result.exit_code == 2
    assert "manifest unknown" in result.stderr
