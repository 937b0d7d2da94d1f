"""Every Python process with this folder on its PYTHONPATH reaches its own machine only, and notes its data.

Python imports a module of this name when it starts. The audit hook sees each connection and each name look-up
before it is made, whoever makes it (urllib, requests, asyncio); an error beats a download that hangs. Files
opened in the folder COURSE_DATA_DIR are listed in the file NOTE_DATA_IN.
"""

import ipaddress
import os
import sys

DATA, NOTES = os.environ["COURSE_DATA_DIR"], os.environ["NOTE_DATA_IN"]

HOST_OF = {
    "socket.connect": lambda _, address: (
        address[0] if isinstance(address, tuple) else None
    ),  # else a socket file
    "socket.sendto": lambda _, address: address[0] if isinstance(address, tuple) else None,
    "socket.getaddrinfo": lambda host, *_: host,
    "socket.gethostbyname": lambda host: host,
    "socket.gethostbyaddr": lambda host: host,
}


def is_loopback(host):
    host = host.decode() if isinstance(host, bytes) else host
    if host in (None, "", "localhost"):
        return True
    try:
        return ipaddress.ip_address(host).is_loopback
    except ValueError:  # a name
        return False


def stay_on_this_machine(event, arguments):
    if event in HOST_OF and not is_loopback(HOST_OF[event](*arguments)):
        raise OSError(f"network is off in this test: {event} {arguments[-1]!r}")


def note_data(event, arguments):
    if event == "open" and isinstance(arguments[0], str) and arguments[0].startswith(DATA + os.sep):
        with open(NOTES, "a") as notes:
            print(arguments[0], file=notes)


sys.addaudithook(stay_on_this_machine)
sys.addaudithook(note_data)
