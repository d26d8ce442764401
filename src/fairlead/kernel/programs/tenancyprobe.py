"""Serves a word, or tries what can be reached, from inside a pod: the trial of a tenancy's network in Fairlead's image.

    python3 -I -S -c TEXT serve PORT WORD
    python3 -I -S -c TEXT try '[[TRIES, "get", ADDRESS, PORT, WORD], [TRIES, "tcp", ADDRESS, PORT], …]'

TEXT is this file: the image has Python and no shell. A word that begins with `$` is taken from the environment. Of each
try, in order, one line is written: `fairlead NUMBER reached` or `fairlead NUMBER refused`. Standard library only.
"""

import contextlib
import json
import os
import socket
import sys
import time

LONGEST_S = 2.0


def serve(port: int, word: str) -> None:
    """Answer every connection of either family with the word, for ever."""
    try:
        server = socket.create_server(("::", port), family=socket.AF_INET6, dualstack_ipv6=True)
    except (OSError, ValueError):  # a node without IPv6
        server = socket.create_server(("", port))
    while True:
        connection, _ = server.accept()
        with connection, contextlib.suppress(OSError):
            connection.settimeout(LONGEST_S)
            connection.recv(4096)
            connection.sendall(f"HTTP/1.0 200 OK\r\n\r\n{word}\n".encode())


def attempt(how: str, address: str, port: str = "443", word: str = "") -> bool:
    """Return whether an address answers: with the word (`get`), at all (`tcp`), or has a name's address (`dns`)."""
    if how == "dns":
        return bool(socket.getaddrinfo(address, int(port)))
    with socket.create_connection((address, int(port)), LONGEST_S) as connection:
        if how == "tcp":
            return True
        connection.sendall(b"GET /word HTTP/1.0\r\n\r\n")
        return word.encode() in b"".join(iter(lambda: connection.recv(4096), b""))


def reaches(tries: int, words: list[str]) -> bool:
    """Try up to so many times, a second apart."""
    known = os.environ  # noqa: TID251 (a program of its own, in a pod whose kubelet sets these)
    given = [known.get(word[1:], "") if word.startswith("$") else word for word in words]
    for left in range(tries, 0, -1):
        with contextlib.suppress(OSError, ValueError):
            if attempt(*given):
                return True
        if left > 1:
            time.sleep(1)
    return False


def main(arguments: list[str]) -> int:
    """Run the program; `serve` ends with its pod."""
    if arguments[0] == "serve":
        serve(int(arguments[1]), arguments[2])
    for number, (tries, *words) in enumerate(json.loads(arguments[1])):
        sys.stdout.write(f"fairlead {number} {'reached' if reaches(tries, words) else 'refused'}\n")
        sys.stdout.flush()
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
