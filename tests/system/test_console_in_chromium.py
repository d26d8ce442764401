"""The console in a real Chromium: a person logs in, runs a container, reads it and types in it; on every width."""

from __future__ import annotations

import datetime as dt
import json
from collections.abc import Iterator
from typing import Any

import axe
import browser
import pytest
from browser import Page
from home import Home, machine_of_tenancies

pytestmark = [
    pytest.mark.podman,
    pytest.mark.slow,
    pytest.mark.skipif(browser.PROGRAM is None, reason="Chromium is not installed: apt-get install chromium"),
]
_SEEN = """window.__seen = [];
const seen = (one) => window.__seen.push(one.violatedDirective + " " + one.sourceFile);
document.addEventListener("securitypolicyviolation", seen);
window.addEventListener("error", (one) => window.__seen.push(String(one.message)));"""
_PAGES = (
    *("/", "/containers", "/run?image=x", "/queue", "/tenancies", "/tenancies/red"),
    *(
        "/search?q=tra",
        "/search",
        "/claims",
        "/quotas",
        "/queues",
        "/reservations",
        "/sshkeys",
        "/notices",
        "/run?template=notebook",
        "/volumes",
        "/secrets",
        "/accounts",
        "/usage",
        "/budgets",
        "/events",
        "/keys",
        "/webhooks",
        "/audit",
        "/machine",
    ),
)


@pytest.fixture(scope="module")
def machine(image: str) -> Iterator[Home]:
    """A service on TLS with a tenancy, its owner, and an administrator."""
    with machine_of_tenancies(image, FAIRLEAD_API_LISTEN="127.0.0.1:0", FAIRLEAD_LEASE_LEDGER="on") as home:
        home.extra["HOME"] = str(home.folder)
        home.up()
        home.ok("tenancy", "create", "red", "--gpus", "6", "--network", "none")
        home.ok("user", "create", "ann")
        home.ok("user", "grant", "ann", "owner", "-T", "red")
        home.ok("user", "create", "op", "--administrator")
        yield home


@pytest.fixture
def filled(machine: Home) -> Home:
    """The machine with containers that run, wait and have ended."""
    steps = "for i in 1 2 3; do echo step $i; done; exec sleep 1000"
    machine.start("train", "-g", "2", command=("sh", "-c", steps))
    machine.ok("run", "-d", "--name", "ended", machine.image, "--", "sh", "-c", "echo over; exit 3")
    machine.until_state("ended", "failed")
    machine.ok("run", "-d", "--name", "waits", "-g", "8", machine.image, "--", "true")
    return machine


@pytest.fixture
def page() -> Iterator[Page]:
    with browser.opened("--ignore-certificate-errors") as found:
        found.call("Page.addScriptToEvaluateOnNewDocument", source=_SEEN)
        found.look(width=1280)
        yield found


def _log_in(machine: Home, page: Page, name: str) -> str:
    """Log in as a person would, and return the console's address."""
    key = machine.ok("key", "create", "--user", name).out.strip()
    address = f"{machine.ask('/v1/status')['address']}/console"
    page.open(f"{address}/")
    assert "/console/login" in page.ask("location.href")
    page.ask(f"document.getElementById('key').value = {json.dumps(key)}")
    page.press("document.querySelector('button[type=submit]').click()")
    assert page.ask("location.pathname + location.hash") == "/console/"  # the script has taken the token away
    return address


def _until(machine: Home, page: Page, script: str) -> None:
    machine.until(lambda: bool(page.ask(script)), what=script, timeout_s=20, detail=lambda: str(page.ask(_TEXT)))


_TEXT = "document.body.innerText.slice(0, 3000)"


def test_a_person_submits_a_container_reads_its_output_and_types_in_it(machine: Home, page: Page) -> None:
    address = _log_in(machine, page, "ann")
    page.open(f"{address}/run")
    lines = "i=0; while true; do i=$((i+1)); echo line $i; sleep 0.2; done"
    fields = {"f-image": machine.image, "f-name": "web", "f-args": f"sh -c '{lines}'", "f-gpus": "1"}
    for name, value in fields.items():
        page.ask(f"document.getElementById('{name}').value = {json.dumps(value)}")
    page.ask("document.getElementById('f-name').dispatchEvent(new Event('input', {bubbles: true}))")
    _until(machine, page, "document.getElementById('request').innerText.includes('--name web')")
    page.press("document.querySelector('button[value=run]').click()")
    assert page.ask("location.pathname").endswith("/web")
    _until(machine, page, "document.querySelectorAll('.way td.done').length === 4")  # the silicon's is the machine's
    _until(machine, page, "/line [5-9]/.test(document.getElementById('log').textContent)")
    page.open(page.ask("location.href"))  # it runs now: the terminal is offered
    page.ask("document.getElementById('tab-terminal-tab').click()")
    page.ask("document.getElementById('open-terminal').click()")
    _until(machine, page, "document.getElementById('terminal-state').textContent.startsWith('Connected')")
    page.type("echo seen $((6*7))\n")
    # What a screen reader is told: rows outside the window are not painted.
    _until(machine, page, "document.getElementById('terminal').textContent.includes('seen 42')")
    page.type("exit 4\n")
    _until(machine, page, "document.getElementById('terminal-state').textContent.includes('exit code 4')")

    assert page.ask("window.__seen") == []
    page.ask("window.confirm = () => true")
    page.press("document.getElementById('remove').click()")
    assert "web is being removed" in page.ask(_TEXT)


def test_a_page_refreshes_itself_and_keeps_the_focus(filled: Home, page: Page) -> None:
    machine = filled
    address = _log_in(machine, page, "op")
    page.open(f"{address}/containers")
    link = "document.querySelector('a[href$=\"/train\"]')"
    page.ask(f"{link}.focus(); window.__same = {link}")
    machine.ok("run", "-d", "--name", "later", machine.image, "--", "true")
    _until(machine, page, "document.querySelector('a[href$=\"/later\"]') !== null")
    assert page.ask(f"document.activeElement === window.__same && document.activeElement === {link}") is True
    machine.rm("later")


def test_a_slash_leads_to_the_search_and_a_name_to_its_page(filled: Home, page: Page) -> None:
    address = _log_in(filled, page, "op")
    page.open(f"{address}/containers")
    page.type("/")
    assert page.ask("document.activeElement.id") == "jump"
    assert page.ask("document.activeElement.value") == ""
    page.type("wai")
    page.press("document.getElementById('jump').form.requestSubmit()")
    assert page.ask("document.querySelector('.hits a').innerText") == "waits"
    page.type("/waits/")
    assert page.ask("document.activeElement.value") == "waits/", "what was there is selected; a slash is a letter here"
    page.ask("document.activeElement.value = 'train'")
    page.press("document.getElementById('jump').form.requestSubmit()")
    assert page.ask("location.pathname").endswith("/default/train")
    assert page.ask("window.__seen") == []


def test_the_week_is_on_the_browsers_clock_and_arrows_go_through_its_hours(machine: Home, page: Page) -> None:
    page.call("Emulation.setTimezoneOverride", timezoneId="America/New_York")
    address = _log_in(machine, page, "op")
    page.open(f"{address}/reservations")
    _until(machine, page, "document.getElementById('week').dataset.zone === 'America/New_York'")
    page.open(f"{address}/reservations?week={dt.datetime.now(dt.UTC).date() + dt.timedelta(days=7)}&zone=Europe/Berlin")
    assert page.ask("document.getElementById('week').dataset.zone") == "Europe/Berlin"
    assert page.ask("document.querySelectorAll('#week td > a[tabindex=\"0\"]').length") == 1
    page.ask("document.querySelector('#week td > a[tabindex=\"0\"]').focus()")
    for key in ("ArrowDown", "ArrowDown", "ArrowRight", "ArrowUp"):
        page.call("Input.dispatchKeyEvent", type="rawKeyDown", key=key)
    where = "document.activeElement.closest('td')"
    assert page.ask(f"[{where}.parentNode.rowIndex, {where}.cellIndex]") == [2, 2]
    page.press("document.activeElement.click()")
    assert page.ask("document.getElementById('from').value").endswith(" 01:00")
    assert page.ask("document.getElementById('zone').value") == "Europe/Berlin"
    assert page.ask("window.__seen") == []


def test_an_administrator_keeps_a_gpu_back_and_gives_it_back(machine: Home, page: Page) -> None:
    address = _log_in(machine, page, "op")
    page.open(f"{address}/machine")
    free = "[...document.querySelectorAll('tbody tr')].find(row => row.innerText.includes('Free'))"
    name = page.ask(f"{free}.querySelector('th').innerText")
    page.ask(f"{free}.querySelector('details').open = true; {free}.querySelector('input[name=why]').value = 'fan'")
    page.press(f"{free}.querySelector('form button').click()")
    row = (
        f"[...document.querySelectorAll('tbody tr')].find(row => row.innerText.includes({json.dumps(name.split()[1])}))"
    )
    assert "Quarantined" in page.ask(f"{row}.innerText")
    assert page.ask("document.body.innerText.includes('fan')")
    page.ask("window.confirm = () => true")
    page.press("[...document.querySelectorAll('button')].find(one => one.innerText === 'Release').click()")
    assert page.ask("document.body.innerText.includes('Quarantined')") is False


def test_a_person_makes_a_key_with_the_keyboard_alone_and_logs_in_with_it(machine: Home, page: Page) -> None:
    address = _log_in(machine, page, "ann")
    own = machine.ok("key", "create", "--user", "ann").out.strip()
    page.open(f"{address}/keys")
    page.ask("document.getElementById('note').focus()")
    page.type("laptop")
    page.ask("document.getElementById('confirm').focus()")
    page.type(own)
    page.ask("document.querySelector('form[action=\"/console/keys\"] button[type=submit]').focus()")
    page.press("document.activeElement.click()")
    key = page.ask("document.getElementById('secret').textContent")
    assert key.startswith("flk_")
    assert "laptop" in page.ask(_TEXT)
    page.press("document.querySelector('form[action=\"/console/logout\"] button').click()")
    page.ask(f"document.getElementById('key').value = {json.dumps(key)}")
    page.press("document.querySelector('button[type=submit]').click()")
    assert page.ask("location.pathname") == "/console/"
    assert page.ask("window.__seen") == []


def test_an_owner_makes_a_volume_and_a_webhook(machine: Home, page: Page) -> None:
    address = _log_in(machine, page, "ann")
    page.open(f"{address}/volumes")
    page.ask("document.getElementById('name').value = 'data'")
    page.press("document.querySelector('form[action=\"/console/volumes\"] button').click()")
    assert "data" in page.ask("document.querySelector('tbody th').innerText")
    page.open(f"{address}/webhooks")
    page.ask("document.getElementById('url').value = 'https://example.com/hook'")
    page.press("document.querySelector('form[action=\"/console/webhooks\"] button').click()")
    assert page.ask("document.getElementById('secret').textContent").startswith("whsec_")
    page.press("document.querySelector('tbody a').click()")
    assert "Nothing was sent yet" in page.ask(_TEXT)
    page.ask("window.confirm = () => true")
    page.press("document.querySelector('button.danger').click()")
    page.open(f"{address}/volumes")
    page.ask("window.confirm = () => true")
    page.press("document.querySelector('button.danger').click()")
    assert "No volumes yet" in page.ask(_TEXT)


def test_a_person_keeps_a_secret_with_the_keyboard_and_no_page_has_its_value_again(machine: Home, page: Page) -> None:
    address = _log_in(machine, page, "ann")
    page.open(f"{address}/secrets")
    page.ask("document.getElementById('name').focus()")
    page.type("api-token")
    page.ask("document.getElementById('value').focus()")
    page.type("hunter2")
    assert page.ask("getComputedStyle(document.getElementById('value')).webkitTextSecurity") == "disc"
    page.ask("document.querySelector('form[action=\"/console/secrets\"] button').focus()")
    page.press("document.activeElement.click()")
    assert "api-token" in page.ask("document.querySelector('tbody th').innerText")
    before = page.ask("document.querySelector('tbody .values').innerText")
    page.ask("document.querySelector('tbody details').open = true")
    page.ask("document.querySelector('tbody textarea').value = 'hunter3'")
    page.press("document.querySelector('form[action$=\"/replace\"] button').click()")
    after = page.ask("document.querySelector('tbody .values').innerText")
    assert after != before
    assert "hunter" not in page.ask("document.documentElement.outerHTML")
    page.ask("window.confirm = () => true; document.querySelector('tbody details').open = true")
    page.press("document.querySelector('form[action$=\"/delete\"] button').click()")
    assert "No secrets yet" in page.ask(_TEXT)
    assert page.ask("window.__seen") == []


def test_an_administrator_sets_a_budget_and_takes_it_back(machine: Home, page: Page) -> None:
    address = _log_in(machine, page, "op")
    page.open(f"{address}/budgets")
    page.ask("document.getElementById('amount').value = 'much'")
    page.press("document.querySelector('form[action=\"/console/budgets\"] button').click()")
    assert 'amount "much" is not' in page.ask(_TEXT)
    page.ask("document.getElementById('amount').value = '500'")
    page.press("document.querySelector('form[action=\"/console/budgets\"] button').click()")
    assert "of 500" in page.ask(_TEXT)
    page.ask("window.confirm = () => true")
    page.press("document.querySelector('form[action$=\"/remove\"] button').click()")
    assert "No budgets" in page.ask(_TEXT)
    assert page.ask("window.__seen") == []


def test_events_come_as_they_happen_and_a_hidden_page_holds_no_connection(filled: Home, page: Page) -> None:
    machine = filled
    address = _log_in(machine, page, "op")
    page.open(f"{address}/events?q=later")
    _until(machine, page, "document.getElementById('events-state').textContent === 'Following.'")
    assert page.ask("document.getElementById('events').innerText") == "None like these yet."
    machine.ok("run", "-d", "--name", "later", machine.image, "--", "true")
    _until(machine, page, "document.getElementById('events').innerText.includes('pod/later')")
    assert "pod/train" not in page.ask("document.getElementById('events').innerText")
    page.ask(
        "window.__lines = []; window.__log = new EventSource('/v1/containers/train/logs');"
        "window.__log.onmessage = (one) => window.__lines.push(JSON.parse(one.data).text); 1"
    )
    _until(machine, page, "window.__lines.join() === 'step 1,step 2,step 3'")
    page.ask("window.__log.close(); 1")
    assert page.ask("window.__seen") == []
    machine.rm("later")


@pytest.mark.parametrize(
    ("width", "scheme"), [(360, "light"), (390, "dark"), (1280, "light"), (1280, "dark"), (2560, "light")]
)
def test_no_page_is_too_wide_or_keeps_somebody_out(filled: Home, page: Page, width: int, scheme: str) -> None:
    rules = axe.script()
    address = _log_in(filled, page, "op")
    found: dict[str, Any] = {}
    page.look(width=width, scheme=scheme)
    for path in (
        *_PAGES,
        "/containers/default/train",
        "/containers/default/waits",
        "/containers/default/ended",
        _gpu(filled),
        "/nix",
    ):
        page.open(address + path)
        wide = page.ask("document.documentElement.scrollWidth - document.documentElement.clientWidth")
        found[path] = [
            *axe.problems(page, rules),
            *([f"{wide} px too wide"] if wide > 0 else []),
            *page.ask("window.__seen"),
        ]
        for tab in page.ask("[...document.querySelectorAll('[data-tabs] a')].slice(1).map(one => one.hash)"):
            page.ask(f"document.querySelector('[data-tabs] a[href=\"{tab}\"]').click()")
            found[path + tab] = axe.problems(page, rules)
    assert {path: problems for path, problems in found.items() if problems} == {}


def _gpu(machine: Home) -> str:
    return f"/gpus/{machine.ask('/v1/gpus')['gpus'][0]['gpu']['uuid']}"


def test_figures_over_time_are_drawn_and_go_on_by_themselves(filled: Home, page: Page) -> None:
    machine = filled
    rules = axe.script()
    address = _log_in(machine, page, "op")
    page.open(f"{address}/containers/default/train#metrics")
    shown = "document.querySelectorAll('#metrics .plot polyline').length"
    machine.until(lambda: page.ask(shown) > 8, what="lines", timeout_s=60, detail=lambda: str(page.ask(_TEXT)))
    assert page.ask("[...document.querySelectorAll('#metrics .plot h3')].map(one => one.innerText).slice(0, 2)") == [
        "GPU load",
        "GPU memory",
    ]
    first = "document.querySelector('#plot-gpu-load polyline').getAttribute('points').split(' ').length"
    points = page.ask(first)
    machine.until(lambda: page.ask(first) > points, what="one more point", timeout_s=30)
    assert "mean" in page.ask("document.querySelector('#plot-gpu-load desc').textContent")
    assert page.ask("document.querySelectorAll('#metrics .mark').length") > 0
    for width, scheme in ((390, "light"), (1280, "dark")):
        page.look(width=width, scheme=scheme)
        assert page.ask("document.documentElement.scrollWidth - document.documentElement.clientWidth") == 0
        assert axe.problems(page, rules) == []
    page.open(address + _gpu(machine))
    assert page.ask("document.querySelectorAll('.plot').length") >= 5
    page.press("document.getElementById('range-7d').click()")
    assert page.ask("document.querySelector('.ranges [aria-current]').innerText") == "Last week"
    page.open(f"{address}/")
    assert page.ask("document.querySelectorAll('svg.spark').length") == 8
    assert "used" in page.ask("document.querySelector('.use').innerText")
    assert page.ask("window.__seen") == []


def test_tabs_have_addresses_and_go_by_the_keyboard(filled: Home, page: Page) -> None:
    address = _log_in(filled, page, "op")
    page.open(f"{address}/containers/default/train#gpus")
    shown = "[...document.querySelectorAll('section.tab')].filter(one => !one.hidden).map(one => one.id).join()"
    assert page.ask(shown) == "gpus"
    page.ask("document.getElementById('tab-gpus').focus()")
    page.call("Input.dispatchKeyEvent", type="keyDown", key="ArrowRight")
    assert page.ask(f"{shown} + location.hash + document.activeElement.id") == "events#eventstab-events"
    page.ask("history.back()")
    _until(filled, page, f"{shown} === 'gpus'")
    page.look(width=390)
    page.open(f"{address}/queue")
    visible = "document.getElementById('pages').offsetHeight > 0"
    assert page.ask(visible) is False, "on a phone the menu is closed"
    page.ask("document.querySelector('button.menu').click()")
    assert page.ask(f"{visible} && document.querySelector('button.menu').ariaExpanded === 'true'") is True


def test_pages_are_read_without_scripts(filled: Home, page: Page) -> None:
    address = _log_in(filled, page, "op")
    page.call("Emulation.setScriptExecutionDisabled", value=True)
    for path, words in (("/", "GPU 7"), ("/containers/default/train", "step 3"), ("/queue", "waiting for 8 GPUs")):
        page.open(address + path)
        assert words in page.ask("document.body.innerText"), path
