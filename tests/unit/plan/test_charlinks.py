"""Which links /dev/char is given, and which are nobody's business."""

from __future__ import annotations

from fairlead.plan import charlinks
from fairlead.plan.charlinks import Link, Node

GPU0 = Node("nvidia0", 195, 0)


def test_a_node_without_a_link_gets_one() -> None:
    cap = Node("nvidia-caps/nvidia-cap3", 236, 3)
    made = charlinks.decide([GPU0, cap], {})
    assert made.make == {"195:0": "../nvidia0", "236:3": "../nvidia-caps/nvidia-cap3"}
    assert made.remove == ()


def test_a_link_that_leads_to_the_number_is_right_whoever_made_it() -> None:
    links = {"195:0": Link("/dev/nvidia0", "195:0")}
    assert charlinks.decide([GPU0], links) == charlinks.Decision()


def test_a_link_to_another_number_is_replaced() -> None:
    links = {"195:0": Link("../nvidia7", "195:7"), "195:1": Link("../gone", None)}
    made = charlinks.decide([GPU0, Node("nvidia1", 195, 1)], links)
    assert made.make == {"195:0": "../nvidia0", "195:1": "../nvidia1"}


def test_links_of_ours_that_lead_nowhere_go_and_those_of_others_stay() -> None:
    links = {
        "510:0": Link("../nvidia-uvm", "508:0"),
        "195:5": Link("/dev/nvidia5", None),
        "1:3": Link("../null", "1:3"),
        "99:1": Link("../gone", None),
        "195:9": Link("../nvidia-like/../null", None),
    }
    assert charlinks.decide([], links).remove == ("195:5", "510:0")


def test_what_is_no_link_is_left_and_told() -> None:
    made = charlinks.decide([GPU0], {"195:0": Link(None, None)})
    assert (dict(made.make), made.blocked) == ({}, ("195:0",))


def test_of_two_nodes_of_one_number_the_first_counts() -> None:
    assert charlinks.decide([GPU0, Node("nvidia-old", 195, 0)], {}).make == {"195:0": "../nvidia0"}


def test_links_ahead_are_for_what_the_driver_will_make() -> None:
    nodes = charlinks.expected(2, {"nvidia": 195, "nvidia-uvm": 508})
    assert charlinks.decide(nodes, {}).make == {
        "195:0": "../nvidia0",
        "195:1": "../nvidia1",
        "195:255": "../nvidiactl",
        "195:254": "../nvidia-modeset",
        "508:0": "../nvidia-uvm",
        "508:1": "../nvidia-uvm-tools",
    }
    assert charlinks.expected(0, {"nvidia-uvm": 508}) == ()
    assert "nvidia-uvm" not in [node.name for node in charlinks.expected(1, {"nvidia": 195})]


def test_a_link_ahead_is_right_while_its_node_is_not_there() -> None:
    links = {"195:0": Link("../nvidia0", None)}
    assert charlinks.decide([GPU0], links) == charlinks.Decision()


def test_the_rule_calls_the_program_by_its_path_when_the_driver_comes() -> None:
    lines = [line for line in charlinks.udev_rule("/opt/fairlead").splitlines() if not line.startswith("#")]
    assert len(lines) == 2
    assert all(line.endswith('RUN+="/opt/fairlead runtime char-links --ahead"') for line in lines)
    assert 'DEVPATH=="/bus/pci/drivers/nvidia"' in lines[0]
