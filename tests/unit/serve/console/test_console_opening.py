"""`Open` in the console: offered to who may enter, and the tab is led to the port's own host."""

from __future__ import annotations

import dataclasses
import re
from collections.abc import AsyncIterator
from pathlib import Path

import pytest

from fairlead.serve.limits.gate import Policy
from fairlead.serve.opened import hosts
from fairlead.serve.opened.grants import Grants
from tests.unit.serve.console.test_console_pages import Browser
from tests.unit.serve.v1.accounts.test_api_accounts import UNLIMITED, Lab, opened
from tests.unit.serve.world import World


@pytest.fixture
async def lab(world: World, tmp_path: Path) -> AsyncIterator[Lab]:
    async with opened(world, tmp_path) as made:
        grants = Grants(domain=hosts.Domain(name="apps.test.example", port=8443))
        made.services = dataclasses.replace(made.services, grants=grants)
        made.app = made.guarded(Policy(key=UNLIMITED, address=UNLIMITED))
        yield made


async def _session(lab: Lab, name: str = "work") -> None:
    more = {"tenancy": "red", "args": ["sleep", "60"], "labels": {"session": "notebook"}}
    assert (await lab.run("developer", name, **more)).status_code == 201
    await lab.ask("developer", "GET", f"/v1/containers/{name}/wait", params={"state": "started"})


async def test_a_click_leads_a_tab_to_a_host_of_the_port_s_own(lab: Lab) -> None:
    await _session(lab)
    browser = Browser(lab)
    await browser.log_in(lab.keys["developer"])
    here = f"/console/containers/{lab.namespaces['red']}/work"
    shown = (await browser.get(here)).text
    assert re.search(rf'action="{here}/open" target="_blank" rel="noopener".*name="port" value="8888"', shown)
    answer = await browser.client.post(f"{here}/open", data={"csrf": await browser.csrf(), "port": "8888"})
    assert answer.status_code == 200
    wait, _, address = answer.headers["refresh"].partition("; url=")
    assert wait == "0"
    assert re.fullmatch(r"https://[0-9a-f]{24}\.apps\.test\.example:8443/\.fairlead/open\?ticket=[0-9a-f]{64}", address)
    assert (answer.headers["referrer-policy"], answer.headers["cache-control"]) == ("no-referrer", "no-store")
    assert "cross-origin-opener-policy" in answer.headers
    assert address in answer.text, "for who has scripts and refreshes off"


@pytest.mark.parametrize("port", ["", "0", "99999", "x", "8888/../1", "8888:stop", "1" * 30, "-1"])
async def test_what_is_no_port_opens_nothing(lab: Lab, port: str) -> None:
    await _session(lab)
    browser = Browser(lab)
    await browser.log_in(lab.keys["developer"])
    path = f"/console/containers/{lab.namespaces['red']}/work/open"
    answer = await browser.client.post(path, data={"csrf": await browser.csrf(), "port": port})
    assert (answer.status_code in {400, 404}, "refresh" in answer.headers) == (True, False), answer.text


async def test_who_may_not_enter_is_offered_no_door_and_gets_none(lab: Lab) -> None:
    await _session(lab)
    here = f"/console/containers/{lab.namespaces['red']}/work"
    for who, status in (("viewer", 403), ("stranger", 404)):
        browser = Browser(lab)
        await browser.log_in(lab.keys[who])
        assert 'value="8888"' not in (await browser.get(here)).text
        answer = await browser.client.post(f"{here}/open", data={"csrf": browser.token, "port": "8888"})
        assert (answer.status_code, "refresh" in answer.headers) == (status, False)
    browser = Browser(lab)
    await browser.log_in(lab.keys["developer"])
    forged = await browser.client.post(f"{here}/open", data={"csrf": "0" * 64, "port": "8888"})
    assert (forged.status_code, "CSRFTokenMissing" in forged.text) == (403, True)
